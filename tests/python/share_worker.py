"""What the processes of test_share.py do: hold a shared table, and tell what they see of it."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import time
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import ngram_ple.loaded_module
import torch
from modules import batch
from ngram_ple import NGramEmbedding
from ngram_ple.checkpoint import read_table
from ngram_ple.tables import node_note


@cache
def _forking() -> ForkServerContext:
    """A server that has imported this module and forks the workers: importing torch takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["share_worker"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
    return context


def digest(module: NGramEmbedding) -> str:
    return hashlib.sha256(module.table.slots.numpy().tobytes()).hexdigest()


def memory_files() -> list[int]:
    """Inodes of the shared memory that this process maps."""
    with Path("/proc/self/maps").open() as maps:
        return [int(line.split()[4]) for line in maps if "memfd:ngram_ple-" in line]


def hold(pipe: Connection, folder: str, options: dict[str, Any]) -> None:
    """Load with share="node", tell about it, and keep it until told to end."""
    filled = []
    node_note.note_folder = lambda: Path(folder).parent
    node_note.PATIENCE_SECONDS = options.get("patience", 60.0)

    def slow_read(*arguments: Any, **named: Any) -> None:
        filled.append(True)
        pipe.send("filling")
        for _ in range(options.get("steps", 0)):
            time.sleep(0.01)
            named["progress"](0)
        if options.get("fail"):
            raise ValueError("the files are bad")
        read_table(*arguments, **named)

    ngram_ple.loaded_module.read_table = slow_read
    torch.set_num_threads(1)
    try:
        placement = options.get("placement", "cpu")
        module = NGramEmbedding.from_pretrained(folder, placement=placement, share="node", threads=1)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send((bool(filled), memory_files(), digest(module)))
    if options.get("leave_child"):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        pipe.send(child)
    while pipe.recv() == "look up":
        device = module.layer_multipliers.device
        pipe.send(
            hashlib.sha256(module(*batch(device)).cpu().view(torch.uint8).numpy().tobytes()).hexdigest()
        )


class Worker:
    """One process under way."""

    def __init__(self, folder: Path, **options: Any) -> None:
        context = _forking()
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=hold, args=(other, str(folder), options), daemon=True)
        self.process.start()
        other.close()

    def told(self) -> Any:
        """The next thing it says; an error after two minutes, which nothing here takes."""
        assert self.pipe.poll(120), "a worker hangs"
        return self.pipe.recv()

    def loaded(self) -> Any:
        """What it says once it has loaded or failed."""
        while (said := self.told()) == "filling":
            pass
        return said

    def looked_up(self) -> Any:
        """A digest of its embedding of a batch."""
        self.pipe.send("look up")
        return self.told()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def end(self) -> None:
        if self.process.is_alive():
            self.pipe.send("end")
        self.process.join(120)
        assert self.process.exitcode == 0
