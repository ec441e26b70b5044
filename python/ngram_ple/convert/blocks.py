"""Blocks of rows on worker threads: the largest magnitude of a table, and its rows encoded."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import torch

from ngram_ple import _core, ops
from ngram_ple.checkpoint.layout import table_layout
from ngram_ple.checkpoint.safetensors_file import TORCH_DTYPES
from ngram_ple.convert.head_errors import HeadErrors, pieces
from ngram_ple.convert.source import PLAIN, Reader, SourceTable
from ngram_ple.errors import CheckpointError
from ngram_ple.hash_plan import HashPlan

_BLOCK_BYTES = 4 << 20  # of the source: smaller ones cost more of Python, a thread at a time, than caches win

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Workers:
    """A pool of threads, each with its own reader, that hands results out in order."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ngram_ple-convert")
        self._ahead = 32 * threads  # blocks that may wait: enough while results are waited for elsewhere
        self._local = threading.local()
        self._readers: list[Reader] = []

    def each(
        self, work: Callable[[Reader, _Item], _Result], items: Iterable[_Item]
    ) -> Generator[_Result, None, None]:
        """Yield work(reader, item) of each item, in order. Once closed, nothing is under way any more."""
        waiting: deque[Future[_Result]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(lambda one: work(self._reader(), one), item))
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            wait([future for future in waiting if not future.cancel()])

    def close(self) -> None:
        """End the threads, which finish the blocks they are at, and close their files."""
        self._pool.shutdown(cancel_futures=True)
        for reader in self._readers:
            reader.close()

    def _reader(self) -> Reader:
        if not hasattr(self._local, "reader"):
            self._local.reader = Reader()
            self._readers.append(self._local.reader)
        reader: Reader = self._local.reader
        return reader


def block_rows(source: SourceTable) -> int:
    """Rows of a block."""
    return max(1, _BLOCK_BYTES // source.row_bytes)


def row_ranges(first: int, last: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut [first, last) into ranges of `step` rows."""
    for row in range(first, last, step):
        yield row, min(last, row + step)


def find_amax(
    source: SourceTable,
    plan: HashPlan,
    workers: Workers,
    saturate: bool,
    progress: Callable[[int], object],
) -> float:
    """Return the largest finite magnitude of the rows that heads address.

    Raises
    ------
    CheckpointError
        A NaN or an infinity, unless `saturate`; the row is named.
    """

    def work(reader: Reader, rows: tuple[int, int]) -> tuple[float, int]:
        values = source.values(reader, *rows)
        most = 0.0
        for heads, begin, end in pieces(plan, *rows):
            if not heads:
                continue
            part = values[begin - rows[0] : end - rows[0]]
            found = _largest(source, part, finite_only=saturate)
            if found == float("inf") or found != found:
                raise CheckpointError(_not_finite(source, begin + _first_bad(part)))
            most = max(most, found)
        return most, (rows[1] - rows[0]) * source.row_bytes

    amax = 0.0
    ranges = row_ranges(0, source.padded_rows, block_rows(source))
    for most, nbytes in workers.each(work, ranges):
        amax = max(amax, most)
        progress(nbytes)
    return amax


@dataclass(frozen=True)
class BlockEncoder:
    """Encodes blocks of one table.

    Attributes
    ----------
    source, plan
    format : str
        The target's.
    global_scale : float
        1 where the target has none.
    scale_is_bf16 : bool
        Of fp8-rowwise scales.
    saturate : bool
        Take NaN and infinities.
    copies : bool
        The source stores these very bytes: they are taken as they are.
    """

    source: SourceTable
    plan: HashPlan
    format: str
    global_scale: float
    scale_is_bf16: bool
    saturate: bool
    copies: bool

    @property
    def leaf_dtypes(self) -> dict[str, str]:
        """Safetensors codes of the leaves that are written."""
        dtypes = {leaf.name: leaf.dtypes[0] for leaf in table_layout(self.format, self.source.head_dim).rows}
        if self.format == "fp8-rowwise":
            dtypes["weight_scale"] = "BF16" if self.scale_is_bf16 else "F32"
            if self.copies:
                dtypes["weight_scale"] = self.source.scale_dtype
        return dtypes

    def __call__(
        self, reader: Reader, first: int, last: int
    ) -> tuple[list[torch.Tensor], dict[int, HeadErrors]]:
        """Read, encode and compare rows [first, last).

        Returns the leaves as the target stores them, in the reader's memory until its next block, and what
        that changed, by head.
        """
        errors: dict[int, HeadErrors] = defaultdict(HeadErrors)
        if self.copies:
            leaves = self.source.stored(reader, first, last)
            for heads, begin, end in pieces(self.plan, first, last):
                for head in heads:
                    errors[head].count += (end - begin) * self.source.head_dim
            return list(leaves.values()), errors
        values = self.source.values(reader, first, last)
        leaves = {}
        for leaf in table_layout(self.format, self.source.head_dim).rows:
            dtype = TORCH_DTYPES[self.leaf_dtypes[leaf.name]]
            memory = reader.scratch(f"new {leaf.name}", (last - first) * leaf.width * dtype.itemsize)
            leaves[leaf.name] = memory.view(dtype).view(last - first, leaf.width)
        scale = leaves.get("weight_scale")
        for heads, begin, end in pieces(self.plan, first, last):
            sums = _core.encode_rows(
                self.source.values_format,
                self.format,
                self.source.head_dim,
                self.global_scale,
                self.scale_is_bf16,
                end - begin,
                values[begin - first :].data_ptr(),
                leaves["weight"][begin - first :].data_ptr(),
                0 if scale is None else scale[begin - first :].data_ptr(),
            )
            if heads and sums.not_finite and not self.saturate:
                raise CheckpointError(_not_finite(self.source, begin + sums.first_not_finite))
            for head in heads:
                errors[head].add_native(sums, (end - begin) * self.source.head_dim)
        return list(leaves.values()), errors


def copies_bytes(source: SourceTable, format: str) -> bool:
    """Whether a quantized source already is in the target's format."""
    return source.format == format and format not in PLAIN


def _largest(source: SourceTable, values: torch.Tensor, finite_only: bool) -> float:
    return _core.largest_magnitude(source.values_format, values.numel(), values.data_ptr(), finite_only)


def _first_bad(values: torch.Tensor) -> int:
    return int((~ops.row_amax(values).isfinite()).nonzero()[0, 0])


def _not_finite(source: SourceTable, row: int) -> str:
    return f"{source.title}: row {row} has a NaN or an infinity, expected finite values (or --saturate)"
