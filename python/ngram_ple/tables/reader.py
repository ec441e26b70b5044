"""The ways a GPU reads rows of a table in pinned host memory, and the choice between them."""

from __future__ import annotations

import itertools
import os
import statistics
import time
import weakref
from typing import cast

import torch

from ngram_ple import _core, registration
from ngram_ple.errors import ConfigError, shown
from ngram_ple.formats import RowFormat
from ngram_ple.tables.calibration import MADE, Calibration

_ops = registration.load()

WAYS = ("zero-copy", "ordered", "staged")
"""Read each row in place; distinct rows in place in address order; distinct rows gathered by CPU workers."""

STRATEGIES = ("auto", *WAYS)
"""`WAYS`, and the best of them for a batch's size, as measured when the table was made."""

COUNTERS = (
    "batches",
    "batch_ids",
    "listed_rows",
    "rows_read_by_gpu",
    "zero_copy_calls",
    "zero_copy_ids",
    "worker_batches",
    "worker_nanoseconds",
    "failed_batches",
)
"""What `PinnedReader.counters` tells. The GPU itself counts the first four, of ordered and staged lookups,
replays of a graph included; rows that workers gathered are ``listed_rows - rows_read_by_gpu``. Zero-copy
lookups count when they are launched or captured."""

_MOST_IDS = 131072  # of a batch in one go: 8192 tokens of 16 heads
_MOST_THREADS = 24
_CPUS_LEFT = 3  # for the caller, the driver and the rest of the machine
# Up to so many bytes address translation is no wall, and every row costs the same in place as staged.
_SMALL_TABLE = 256 << 20
_CALIBRATION_IDS = (512, 1024, 2048, 4096, 8192, 16384)


def host_threads_by_default() -> int:
    """Return how many workers gather rows: the CPUs at hand but for a few."""
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) - _CPUS_LEFT))


class PinnedReader:
    """Lookups in one table, by any of `WAYS`: the same bits.

    Parameters
    ----------
    slots : Tensor
        The table, uint8 ``[rows, slot_bytes]`` in pinned memory.
    format : RowFormat
    row_start : int
    device : torch.device
        The GPU that reads it.
    strategy : str
        One of `STRATEGIES`.
    host_threads : int, optional
        Workers of the staged way; all CPUs but three by default, 24 at most.
    max_ids : int, optional
        Ids of a batch that buffers are made for; larger batches go in parts. 131072 by default, and at most.
    calibrate : bool
        Whether ``"auto"`` measures, for less than 0.3 s; otherwise it goes by what is true of most machines.
        The environment's ``NGRAM_PLE_CALIBRATE=0`` turns it off, too.

    Attributes
    ----------
    calibration : Calibration or None
        What ``"auto"`` goes by; None for other strategies and for tables too small to matter.
    calibration_seconds : float
        How long it took.
    device_bytes, pinned_bytes : int
        Memory of the reader beside the table.
    max_ids : int
        Ids of a batch in one go.

    Raises
    ------
    ConfigError
        A strategy or a number that is none.
    PinnedMemoryError
        The staging area does not fit.
    """

    def __init__(
        self,
        slots: torch.Tensor,
        format: RowFormat,
        row_start: int,
        device: torch.device,
        *,
        strategy: str = "auto",
        host_threads: int | None = None,
        max_ids: int | None = None,
        calibrate: bool = True,
    ) -> None:
        check_options(strategy, host_threads)
        self.strategy = strategy
        self.host_threads = 0
        self.calibration: Calibration | None = None
        self.calibration_seconds = 0.0
        self._slots, self._format, self._row_start, self._device = slots, format, row_start, device
        self._fixed_way = "zero-copy" if strategy == "auto" else strategy
        if strategy in ("staged", "auto"):
            self.host_threads = host_threads or host_threads_by_default()
        if strategy == "auto" and slots.numel() <= _SMALL_TABLE:
            self.host_threads = 0
        batched = self.host_threads > 0 or strategy == "ordered"
        self._open(min(max_ids or _MOST_IDS, _MOST_IDS) if batched else 1)
        if strategy == "auto" and batched:
            measured = calibrate and os.environ.get("NGRAM_PLE_CALIBRATE", "1") != "0"
            began = time.perf_counter()
            self.calibration = self._calibrate() if measured else Calibration.usual()
            self.calibration_seconds = time.perf_counter() - began
            if measured:
                self._note(self.calibration)

    def _note(self, calibration: Calibration) -> None:
        name, gib = torch.cuda.get_device_name(self._device), self._slots.numel() / 2**30
        line = f"{name}, {self._format.name} {gib:.1f} GiB, host_threads={self.host_threads}: {calibration}"
        if line not in MADE:
            MADE.append(line)

    def _open(self, max_ids: int) -> None:
        shape = (self._format.name, self._format.head_dim)
        sizes = cast(torch.Tensor, _ops.reader_bytes(self._slots, *shape, max_ids, self.host_threads))
        device_bytes, pinned_bytes = sizes.tolist()
        memory = torch.empty(device_bytes, dtype=torch.uint8, device=self._device)
        region = _core.PinnedRegion(pinned_bytes, self._device.index)
        staging = torch.frombuffer(region, dtype=torch.uint8)
        self.number = cast(
            int,
            _ops.open_reader(
                self._slots, memory, staging, *shape, self._row_start, max_ids, self.host_threads
            ),
        )
        self.device_bytes, self.pinned_bytes = device_bytes, pinned_bytes
        self.max_ids = max_ids
        # Waits for the device, then frees the memory.
        self._close = weakref.finalize(self, _ops.close_reader, self._slots, self.number)

    def way(self, count: int) -> str:
        """Return the one of `WAYS` that a batch of `count` ids takes."""
        return self._fixed_way if self.calibration is None else self.calibration.way(count)

    def lookup(
        self,
        ids: torch.Tensor,
        global_scale: torch.Tensor | None,
        out_dtype: str,
        *,
        way: str | None = None,
        sms: int = 0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Decode rows: ids of any shape to ``[*ids.shape, head_dim]``; see `ngram_ple.ops.lookup`.

        Parameters
        ----------
        way : str, optional
            One of `WAYS`; the strategy's own by default.
        sms : int
            At most so many multiprocessors read rows; 0 for no limit.

        Raises
        ------
        RuntimeError
            A wrong argument; or a worker failed in an earlier lookup, whose rows are NaN.
        """
        options = {
            "reader": self.number,
            "way": way or self.way(ids.numel()),
            "sms": sms,
            "format": self._format.name,
            "out_dtype": out_dtype,
            "head_dim": self._format.head_dim,
            "row_start": self._row_start,
        }
        if out is None:
            return cast(torch.Tensor, _ops.pinned_lookup(ids, self._slots, global_scale, **options))
        _ops.pinned_lookup.out(ids, self._slots, global_scale, **options, out=out)
        return out

    def can_bring(self, count: int) -> bool:
        """Whether `bring` may take the place of `lookup` for so many ids, and should."""
        return self.way(count) == "staged" and count <= self.max_ids and self._format.slot_bytes % 16 == 0

    def bring(
        self, ids: torch.Tensor, side: torch.cuda.Stream, places: torch.Tensor, rows: torch.Tensor
    ) -> None:
        """Find the distinct rows on the current stream, and have workers and copies bring them on another.

        The copies need no multiprocessor, so the rows arrive while other work fills the GPU. A copy brings as
        many bytes as if no row were there twice.

        Parameters
        ----------
        ids : Tensor
            int32 or int64 ``[...]``, at most `max_ids`.
        side : Stream
            It goes on after the current stream.
        places : Tensor
            int32 of the same shape: for each id its row of `rows`, -1 where the table owns none.
        rows : Tensor
            uint8 ``[ids, slot_bytes]``: slots of distinct rows, as many as there are.

        Raises
        ------
        RuntimeError
            A wrong argument; or a worker failed in an earlier lookup, whose rows are NaN.
        """
        _ops.bring_rows(
            ids, self._slots, reader=self.number, stream=side.cuda_stream, places=places, rows=rows
        )

    def counters(self) -> dict[str, int]:
        """Return totals by the names of `COUNTERS`, as far as the GPU has got, without waiting for it."""
        values = cast(torch.Tensor, _ops.reader_counters(self._slots, self.number)).tolist()
        return dict(zip(COUNTERS, values, strict=True))

    def close(self) -> None:
        """Wait for the GPU and end the workers; lookups are refused from then on."""
        self._close()

    def __repr__(self) -> str:
        """Return strategy, calibration and workers, as a module shows them."""
        text = f"strategy={self.strategy}"
        text += "" if self.calibration is None else f" ({self.calibration})"
        return text + (f", host_threads={self.host_threads}" if self.host_threads else "")

    def _calibrate(self) -> Calibration:
        scale = torch.ones(1, device=self._device) if self._format.has_global_scale else None
        rows = self._slots.shape[0]
        times: dict[int, dict[str, float]] = {}
        with torch.inference_mode(), torch.cuda.device(self._device):
            for count in _CALIBRATION_IDS:
                ids = [
                    torch.randint(self._row_start, self._row_start + rows, (count,), device=self._device)
                    for _ in range(16)
                ]
                # The least of a few: a machine that is busy elsewhere makes workers late, never early.
                rounds = [{way: self._time(way, ids, scale) for way in WAYS} for _ in range(2)]
                times[count] = {way: min(took[way] for took in rounds) for way in WAYS}
        return Calibration(times)

    def _time(self, way: str, ids: list[torch.Tensor], scale: torch.Tensor | None) -> float:
        """Median µs of lookups one after another, of the second half: workers are awake then."""
        self.lookup(ids[0].repeat(16384 // ids[0].numel() + 1), scale, "bf16", way="zero-copy")
        events = []
        for each in ids:
            events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self.lookup(each, scale, "bf16", way=way)
            events[-1].record()
        torch.cuda.current_stream().synchronize()
        later = itertools.pairwise(events[len(events) // 2 :])
        return statistics.median(float(a.elapsed_time(b)) * 1e3 for a, b in later)


def has_readers() -> bool:
    """Whether this build has other ways than ``"zero-copy"``: on CUDA."""
    return torch.version.hip is None


def check_options(strategy: object, host_threads: object) -> None:
    """Refuse what is no strategy, or none of this build, and what is no number of workers.

    Raises
    ------
    ConfigError
        It names the argument.
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy must be one of {', '.join(STRATEGIES)}, got {shown(strategy)}")
    if strategy not in ("auto", "zero-copy") and not has_readers():
        raise ConfigError(f"strategy must be auto or zero-copy on ROCm, got {shown(strategy)}")
    if host_threads is None:
        return
    if not isinstance(host_threads, int) or isinstance(host_threads, bool) or not 1 <= host_threads <= 1024:
        raise ConfigError(f"host_threads must be an int within 1..1024 or None, got {shown(host_threads)}")
