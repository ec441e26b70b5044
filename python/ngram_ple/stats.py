"""Counters of one embedding that a user can read, and the ranges that a profiler shows.

Without `Watch.detailed` a call costs about a microsecond of the host and nothing of the GPU.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from ngram_ple.tables import Table, TableCounters

_MOST_EVENTS = 64  # that are kept without asking whether they are done


@dataclass(frozen=True)
class LookupStats:
    """What one embedding did since it was made or since `reset_stats`.

    Attributes
    ----------
    calls : int
        Batches that were ordered outside of graph captures and, in detail, replays of captured ones.
    captured_calls : int
        Batches recorded into graphs, which looks nothing up yet.
    tokens, rows : int
        Of `calls`; a token has H rows.
    distinct_share : float or None
        Distinct rows of a batch over its rows, on the whole; None unless counted in detail.
    bus_bytes : int
        Bytes of rows that a GPU read over the bus: all rows of `calls` where it reads each in place, what it
        fetched where the table counts that, 0 for tables that are not pinned.
    ways : mapping of str to int
        Batches by the way rows were read: ``"zero-copy"``, others of pinned tables, ``"device"``, ``"cpu"``.
    seconds : mapping of str to float
        Time by stage, in detail; on a GPU from one event of the calling stream to another, so ``"wait"`` is
        the part of a prefetch that was not hidden. ``"embed"``: hash and lookup of `forward`; ``"lookup"``:
        `sync_lookup`; ``"start"`` and ``"wait"``: the two halves of a prefetch. Captured calls are not timed.
    """

    calls: int = 0
    captured_calls: int = 0
    tokens: int = 0
    rows: int = 0
    distinct_share: float | None = None
    bus_bytes: int = 0
    ways: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


class Watch:
    """The counters of one embedding.

    Parameters
    ----------
    table : Table
    heads : int
        H.
    device : torch.device
        Of the lookups.
    """

    def __init__(self, table: Table, heads: int, device: torch.device) -> None:
        self._table = table
        self._heads = heads
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._lock = threading.Lock()
        self._on_device: torch.Tensor | None = None  # batches, rows, distinct rows
        self.reset()

    @property
    def detailed(self) -> bool:
        """Whether distinct rows, replays and times are counted, at a cost: see `set_detailed`."""
        return self._on_device is not None

    def set_detailed(self, detailed: bool) -> None:
        """Count distinct rows, replays of graphs and times too, or no longer.

        See `NGramEmbedding.set_detailed_stats`.
        """
        if detailed != self.detailed:
            zeros = torch.zeros(3, dtype=torch.int64, device=self._device) if detailed else None
            self._on_device = zeros
            self.reset()

    def reset(self) -> None:
        """Begin again at zero."""
        with self._lock:
            self._calls = self._tokens = self._captured = 0
            self._seconds: defaultdict[str, float] = defaultdict(float)
            self._events: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
            self._table_before = self._table.counters() or TableCounters()
            if self._on_device is not None:
                self._on_device.zero_()

    def batch(
        self, stage: str, tokens: int, ids: Callable[[], torch.Tensor]
    ) -> contextlib.AbstractContextManager[None]:
        """Count a batch whose lookup is inside; `ids` gives its ids where they are counted."""
        captured = self._on_gpu and torch.cuda.is_current_stream_capturing()
        with self._lock:
            if captured:
                self._captured += 1
            else:
                self._calls += 1
                self._tokens += tokens
        if self._on_device is not None:
            self._count_on_device(self._on_device, ids())
        elif not _RANGES:
            return _NOTHING
        return self.stage(stage)

    def stage(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Time what is inside and give it a range, where either is asked for."""
        return self._stage(name) if _RANGES or self._on_device is not None else _NOTHING

    def stats(self) -> LookupStats:
        """Return the counters; in detail it waits for the GPU."""
        with self._lock:
            self._take_times(wait=True)
            calls, tokens, seconds = self._calls, self._tokens, dict(self._seconds)
            share = None
            if self._on_device is not None:
                calls, rows, distinct = self._on_device.tolist()  # replays too
                tokens = rows // self._heads
                share = distinct / rows if rows else None
        rows = tokens * self._heads
        ways, bus_bytes = {self._way(): calls} if calls else {}, 0
        if self._table.placement == "pinned":
            format = self._table.format
            bus_bytes = rows * (format.row_bytes + format.scale_bytes)
        told = self._table.counters()
        if told is not None:
            before = self._table_before
            ways = {way: count - before.ways.get(way, 0) for way, count in told.ways.items()}
            ways = {way: count for way, count in ways.items() if count}
            bus_bytes = told.bus_bytes - before.bus_bytes
            seconds |= {name: spent - before.seconds.get(name, 0) for name, spent in told.seconds.items()}
        return LookupStats(calls, self._captured, tokens, rows, share, bus_bytes, ways, seconds)

    def _way(self) -> str:
        return "zero-copy" if self._table.placement == "pinned" else self._table.placement or "device"

    @staticmethod
    def _count_on_device(counts: torch.Tensor, ids: torch.Tensor) -> None:
        """Add to the counts in device memory in the order of the current stream, at each replay too."""
        ordered = ids.flatten().sort().values
        distinct = (ordered[1:] != ordered[:-1]).sum() + min(ordered.numel(), 1)
        counts[0] += 1
        counts[1] += ordered.numel()
        counts[2] += distinct

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        captured = self._on_gpu and torch.cuda.is_current_stream_capturing()
        timed = self.detailed and not captured
        with _range(f"ngram_ple.{name}") if _RANGES else _NOTHING:
            if not timed:
                yield
            elif self._on_gpu:
                begin, end = (
                    torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                    for _ in range(2)
                )
                stream = torch.cuda.current_stream(self._device)
                begin.record(stream)
                yield
                end.record(stream)
                with self._lock:
                    self._events.append((name, begin, end))
                    self._take_times(wait=False)
            else:
                began = time.perf_counter()
                yield
                with self._lock:
                    self._seconds[name] += time.perf_counter() - began

    def _take_times(self, wait: bool) -> None:
        """Add up the events that are done, or all of them."""
        while self._events and (wait or len(self._events) > _MOST_EVENTS):
            name, begin, end = self._events[0]
            if wait:
                end.synchronize()
            elif not end.query():  # type: ignore[no-untyped-call]
                return
            self._events.popleft()
            self._seconds[name] += begin.elapsed_time(end) / 1000


_NOTHING = contextlib.nullcontext()
_RANGES = os.environ.get("NGRAM_PLE_NVTX", "0") not in ("", "0")


def _range(name: str) -> contextlib.AbstractContextManager[None]:
    if torch.cuda.is_available():
        return torch.cuda.nvtx.range(name)
    return torch.profiler.record_function(name)
