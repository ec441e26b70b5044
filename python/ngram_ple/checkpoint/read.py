"""Block reads: rows of safetensors files into a sink, by many threads.

`os.preadv` writes straight into the table where its rows lie as in the file, else into a scratch block per
thread. Files are not mapped, since mapped pages count as the process's memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ngram_ple.checkpoint.safetensors_file import TensorSlice, open_checked, pread_into
from ngram_ple.checkpoint.scales import row_scale_bytes

if TYPE_CHECKING:
    from ngram_ple.tables.sink import RowSink

WEIGHT_BLOCK_BYTES = 4 << 20
SCALE_BLOCK_BYTES = (
    1 << 20
)  # smaller: scales are checked and may be widened, which takes a few times the block
_MAX_THREADS = 16


@dataclass(frozen=True)
class RowRead:
    """Rows to read: where they lie, the leaf and global row of the first one, and the tensor's name."""

    source: TensorSlice
    leaf: str
    first_row: int
    name: str


@dataclass(frozen=True)
class _Block:
    read: RowRead
    first_row: int
    num_rows: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return self.num_rows * self.row_bytes

    @property
    def offset(self) -> int:
        return self.read.source.offset + (self.first_row - self.read.first_row) * self.row_bytes


def block_rows(leaf: str, row_bytes: int) -> int:
    """Rows of a block of `leaf`, at least one."""
    limit = WEIGHT_BLOCK_BYTES if leaf == "weight" else SCALE_BLOCK_BYTES
    return max(1, limit // max(1, row_bytes))


def reading_threads() -> int:
    """Count the CPUs at hand, 16 at most."""
    return min(_MAX_THREADS, len(os.sched_getaffinity(0)))


def read_rows(
    reads: Sequence[RowRead],
    sink: RowSink,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Read the owned rows of `reads` into the sink.

    Parameters
    ----------
    reads : sequence of RowRead
        Disjoint rows.
    sink : RowSink
        Its [row_start, row_end) says which rows are read.
    threads : int, optional
        The CPUs at hand, at most 16, by default.
    progress : callable, optional
        Called with the bytes of each finished block, one call at a time.

    Raises
    ------
    CheckpointError
        A file that ends early or cannot be read, a scale that is not finite. What was read until then has
        been written.
    """
    blocks = (
        block for read in reads for block in _blocks(read, sink.row_start, sink.row_end) if block.num_rows
    )
    _Run(blocks, sink, progress).work(threads or reading_threads())


class _Run:
    """One `read_rows`: threads that take blocks from one iterator until it ends or one of them fails."""

    def __init__(
        self, blocks: Iterator[_Block], sink: RowSink, progress: Callable[[int], object] | None
    ) -> None:
        self._blocks = blocks
        self._sink = sink
        self._progress = progress
        self._lock = threading.Lock()
        self._failed = False

    def work(self, threads: int) -> None:
        if threads == 1:
            return self._worker()
        with ThreadPoolExecutor(threads, thread_name_prefix="ngram_ple-read") as pool:
            for future in [pool.submit(self._worker) for _ in range(threads)]:
                future.result()
        return None

    def _worker(self) -> None:
        scratch: torch.Tensor | None = None
        file: open_checked | None = None
        opened = None
        try:
            while (block := self._next()) is not None:
                if file is None or opened != block.read.source.file:
                    if file is not None:
                        file.close()
                    opened = block.read.source.file
                    file = open_checked(opened)
                scratch = self._copy(block, file.fileno(), scratch)
                if self._progress is not None:
                    with self._lock:
                        self._progress(block.nbytes)
        except BaseException:
            self._failed = True
            raise
        finally:
            if file is not None:
                file.close()

    def _next(self) -> _Block | None:
        with self._lock:
            return None if self._failed else next(self._blocks, None)

    def _copy(self, block: _Block, fd: int, scratch: torch.Tensor | None) -> torch.Tensor | None:
        read = block.read
        if read.leaf == "weight":
            direct = self._sink.direct(read.leaf, block.first_row, block.num_rows)
            if direct is not None:
                pread_into(fd, direct, block.offset, read.source.file)
                return scratch
        if scratch is None or scratch.numel() < block.nbytes:
            scratch = self._sink.scratch(block.nbytes)
        rows = scratch[: block.nbytes].view(block.num_rows, block.row_bytes)
        pread_into(fd, rows.numpy().data.cast("B"), block.offset, read.source.file)
        if read.leaf != "weight":
            rows = row_scale_bytes(
                rows, read.source.dtype, f"{read.source.file}: {read.name}", block.first_row
            )
        self._sink.write(read.leaf, block.first_row, rows)
        return scratch


def _blocks(read: RowRead, row_start: int, row_end: int) -> Iterator[_Block]:
    rows = read.source.shape[0]
    row_bytes = read.source.nbytes // rows if rows else 0
    first, last = max(row_start, read.first_row), min(row_end, read.first_row + rows)
    step = block_rows(read.leaf, row_bytes)
    for row in range(first, last, step):
        yield _Block(read, row, min(step, last - row), row_bytes)
