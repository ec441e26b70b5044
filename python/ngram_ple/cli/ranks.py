"""Commands started by torchrun: the process is one rank of several, which share the table."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ngram_ple.errors import NgramPleError
from ngram_ple.parallel import EtpGroup


@contextmanager
def started_by_torchrun(placement: str) -> Iterator[EtpGroup | None]:
    """Join the ranks that torchrun started, one GPU each unless `placement` is ``"cpu"``; else give None.

    Raises
    ------
    NgramPleError
        More ranks on this machine than GPUs.
    """
    if not dist.is_available() or int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        yield None
        return
    if placement != "cpu":
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise NgramPleError(
                f"torchrun's rank {local} of this machine needs a GPU of its own, got {count}"
            )
        torch.cuda.set_device(local)
    dist.init_process_group("gloo" if placement == "cpu" else "nccl")
    yield EtpGroup()
    dist.destroy_process_group()  # after an error others may still wait for this rank: its end tells them


def cut(first: int, last: int, ranks: int) -> list[tuple[int, int]]:
    """Cut ``[first, last)`` into a part for each rank, as equal as they can be, the last ones shorter."""
    step = -(-(last - first) // ranks)
    bounds = [min(first + rank * step, last) for rank in range(ranks + 1)]
    return list(itertools.pairwise(bounds))


def gather_on_first(group: EtpGroup, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Return the rows of all ranks one after another on the first; nothing of meaning on the others."""
    most = max(counts)
    padded = rows.new_empty((most, *rows.shape[1:]))
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts] if group.rank == 0 else None
    dist.gather(
        padded.view(torch.uint8), None if parts is None else [part.view(torch.uint8) for part in parts]
    )
    return rows if parts is None else torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])
