"""Communicators of a group's own, and what is asked of torch about groups."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ngram_ple.errors import ExchangeError


def new_group(ranks: Sequence[int], backend: str, timeout: timedelta | None = None) -> dist.ProcessGroup:
    """Make a communicator; only its ranks call this, others may be in groups of their own."""
    with as_exchange_error("setting up a communicator"):
        made: dist.ProcessGroup = dist.new_group(
            list(ranks), timeout=timeout, backend=backend, use_local_synchronization=True
        )
    return made


def know_as_many_groups(group: dist.ProcessGroup) -> None:
    """Make ranks with fewer groups than others make some of themselves alone.

    torch names a group that its members make without the rest of the world by how many groups its process
    has: where ranks have different numbers, they would wait for one another under different names.
    """
    known = len(dist.distributed_c10d._world.pg_names)
    each: list[Any] = [None] * dist.get_world_size(group)
    with as_exchange_error("an exchange of statuses"):
        dist.all_gather_object(each, known, group=group)
    for _ in range(max(each) - known):
        new_group([dist.get_rank()], "gloo")


@contextlib.contextmanager
def as_exchange_error(what: str) -> Iterator[None]:
    """Name what failed: backends say which socket or communicator, as a RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().split("\n")[0]
        raise ExchangeError(f"{what} over the ETP group failed, has a rank ended? {first}") from error


def host() -> str:
    """Return what tells this machine, as it runs now, from others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text() if boot.exists() else socket.gethostname()


def timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """Return the group's own timeout, where its backend tells."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        found = getattr(options, "_timeout", None)
        if isinstance(found, timedelta):
            return found
    return None
