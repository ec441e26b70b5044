"""Processes that are the ranks of a world, and do what they are told until they are stopped."""

from __future__ import annotations

import datetime
import itertools
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_PATIENCE = 120.0


class World:
    """`size` processes; `run` lets some of them do something together."""

    def __init__(self, size: int, timeout: float = 60.0, backend: str = "gloo") -> None:
        context = multiprocessing.get_context("spawn")
        store = Path(tempfile.mkdtemp()) / "store"
        self.processes = []
        self._pipes: list[Connection] = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, rank, size, str(store), timeout, backend), daemon=True
            )
            process.start()
            there.close()
            self.processes.append(process)
            self._pipes.append(here)

    def start(self, ranks: Sequence[int], call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Let each of `ranks` call it with (their group, *arguments)."""
        for rank in ranks:
            self._pipes[rank].send((list(ranks), call, arguments, options))

    def answer(self, rank: int) -> Any:
        """What a rank returned; an exception of its is returned as well."""
        if not self._pipes[rank].poll(_PATIENCE):
            raise TimeoutError(f"rank {rank} does not answer")
        return self._pipes[rank].recv()

    def answers(
        self, ranks: Sequence[int], call: Callable[..., Any], *arguments: Any, **options: Any
    ) -> list[Any]:
        """`start`, then every answer, exceptions included."""
        self.start(ranks, call, *arguments, **options)
        return [self.answer(rank) for rank in ranks]

    def run(
        self, ranks: Sequence[int], call: Callable[..., Any], *arguments: Any, **options: Any
    ) -> list[Any]:
        """`start`, then every answer; the first exception is raised."""
        answers = self.answers(ranks, call, *arguments, **options)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, rank: int, size: int, store: str, timeout: float, backend: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=_PATIENCE),
    )  # fmt: skip
    some = (ranks for count in range(2, size + 1) for ranks in itertools.combinations(range(size), count))
    patience = datetime.timedelta(seconds=timeout)
    groups = {ranks: dist.new_group(list(ranks), timeout=patience) for ranks in some}
    while True:
        try:
            ranks, call, arguments, options = pipe.recv()
        except EOFError:
            return
        try:
            answer = call(groups[tuple(ranks)], *arguments, **options)
        except Exception as error:
            error.add_note(traceback.format_exc()) if hasattr(error, "add_note") else None
            answer = error
        pipe.send(answer)
