"""Block reads: rows of safetensors files into a sink, by many threads.

`os.preadv` writes straight into the table where its rows lie as in the file, else into a scratch block per
thread. Files are not mapped, since mapped pages count as the process's memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from ngram_ple.checkpoint.safetensors_file import TensorSlice, open_checked, pread_into

if TYPE_CHECKING:
    from ngram_ple.tables.sink import RowSink

# A block costs some 0.1 ms of Python, which threads do one after another: blocks of 2 MiB halve the speed.
WEIGHT_BLOCK_BYTES = 8 << 20
SCALE_BLOCK_BYTES = (
    1 << 20
)  # smaller: scales are checked and may be widened, which takes a few times the block
MAX_THREADS = 16
_MAX_OPEN = 4


@dataclass(frozen=True)
class RowRead:
    """Rows to read: where they lie, the leaf and global row of the first one, and the tensor's name."""

    source: TensorSlice
    leaf: str
    first_row: int
    name: str

    @property
    def end_row(self) -> int:
        """Global row after the last one."""
        return self.first_row + self.source.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the file."""
        rows = self.source.shape[0]
        return self.source.nbytes // rows if rows else 0

    @property
    def title(self) -> str:
        """File and tensor, for messages."""
        return f"{self.source.file}: {self.name}"


class OpenFiles:
    """The files that one reading thread has open, a few at most."""

    def __init__(self) -> None:
        self._files: dict[Path, open_checked] = {}

    def place(self, read: RowRead, row: int) -> tuple[int, int]:
        """Return descriptor and byte offset of a global row."""
        file = self._files.pop(read.source.file, None) or open_checked(read.source.file)
        self._files[read.source.file] = file  # the last: the one that is closed has not been used for longest
        if len(self._files) > _MAX_OPEN:
            self._files.pop(next(iter(self._files))).close()
        return file.fileno(), read.source.offset + (row - read.first_row) * read.row_bytes

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


class Hands(OpenFiles):
    """What one reading thread holds: open files and a block of memory."""

    def __init__(self, sink: RowSink) -> None:
        super().__init__()
        self.sink = sink
        self._memory: torch.Tensor | None = None

    def scratch(self, nbytes: int) -> torch.Tensor:
        """Return uint8 ``[nbytes]`` of the kind that the sink likes, the same memory each time."""
        if self._memory is None or self._memory.numel() < nbytes:
            self._memory = self.sink.scratch(nbytes)
        return self._memory[:nbytes]


class Block(Protocol):
    """A piece of work for one thread."""

    @property
    def nbytes(self) -> int:
        """Bytes that it reads."""
        ...

    def copy(self, hands: Hands) -> None:
        """Read it into the sink."""
        ...


@dataclass(frozen=True)
class _RowBlock:
    """Rows without scales of their own."""

    read: RowRead
    first_row: int
    num_rows: int

    @property
    def nbytes(self) -> int:
        return self.num_rows * self.read.row_bytes

    def copy(self, hands: Hands) -> None:
        fd, offset = hands.place(self.read, self.first_row)
        direct = hands.sink.direct("weight", self.first_row, self.num_rows)
        if direct is not None:
            return pread_into(fd, direct, offset, self.read.source.file)
        rows = hands.scratch(self.nbytes)
        pread_into(fd, rows.numpy().data.cast("B"), offset, self.read.source.file)
        hands.sink.write("weight", self.first_row, rows.view(self.num_rows, self.read.row_bytes))
        return None


def block_rows(leaf: str, row_bytes: int) -> int:
    """Rows of a block of `leaf`, at least one."""
    limit = WEIGHT_BLOCK_BYTES if leaf == "weight" else SCALE_BLOCK_BYTES
    return max(1, limit // max(1, row_bytes))


def row_blocks(reads: Sequence[RowRead], row_start: int, row_end: int) -> Iterator[Block]:
    """Cut the rows [row_start, row_end) of `reads`, weights alone, into blocks, tensor by tensor."""
    for read in reads:
        first, last = max(row_start, read.first_row), min(row_end, read.end_row)
        step = block_rows("weight", read.row_bytes)
        for row in range(first, last, step):
            yield _RowBlock(read, row, min(step, last - row))


def reading_threads(most: int = MAX_THREADS) -> int:
    """Count the CPUs at hand, `most` at most."""
    return min(most, len(os.sched_getaffinity(0)))


def read_blocks(
    blocks: Iterable[Block],
    sink: RowSink,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Read blocks into the sink.

    Parameters
    ----------
    blocks : iterable of Block
        Of disjoint rows.
    sink : RowSink
    threads : int, optional
        By default `reading_threads`, as many as the sink can use.
    progress : callable, optional
        Called with the bytes of each finished block, one call at a time.

    Raises
    ------
    CheckpointError
        A file that ends early or cannot be read, a scale that is not finite. What was read until then has
        been written.
    """
    _Run(iter(blocks), sink, progress).work(threads or reading_threads(sink.most_threads))


class _Run:
    """One `read_blocks`: threads that take blocks from one iterator until it ends or one of them fails."""

    def __init__(
        self, blocks: Iterator[Block], sink: RowSink, progress: Callable[[int], object] | None
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
            futures = [pool.submit(self._worker) for _ in range(threads)]
            try:
                for future in futures:
                    future.result()
            except BaseException:  # Ctrl-C reaches this thread alone: leaving the pool waits for the others
                self._failed = True
                raise
        return None

    def _worker(self) -> None:
        hands = Hands(self._sink)
        try:
            while (block := self._next()) is not None:
                block.copy(hands)
                if self._progress is not None:
                    with self._lock:
                        self._progress(block.nbytes)
        except BaseException:
            self._failed = True
            raise
        finally:
            hands.close()

    def _next(self) -> Block | None:
        with self._lock:
            return None if self._failed else next(self._blocks, None)
