"""Block reads for formats whose rows have scales of their own.

Files hold rows and scales in two tensors, a table holds them side by side. A block reads both for the same
rows and puts whole slots together in native code, piece by piece in a core's cache, so that the table's
memory is written once.
"""

from __future__ import annotations

import ctypes
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ngram_ple import _core
from ngram_ple.checkpoint.read import Block, Hands, RowRead
from ngram_ple.checkpoint.scales import bad_scale_message
from ngram_ple.errors import CheckpointError
from ngram_ple.formats import RowFormat

SLOT_BLOCK_BYTES = 8 << 20  # as large as WEIGHT_BLOCK_BYTES, for the same reason


class _Scales:
    """The scales of all rows, in one tensor or in several."""

    def __init__(self, reads: Sequence[RowRead]) -> None:
        self._reads = sorted(reads, key=lambda read: read.first_row)
        self._starts = [read.first_row for read in self._reads]

    def cut(self, first_row: int, num_rows: int) -> Iterator[tuple[RowRead, int, int]]:
        """Yield the tensors that hold the scales of these rows: tensor, first row, rows."""
        row, end = first_row, first_row + num_rows
        while row < end:
            read = self._reads[bisect_right(self._starts, row) - 1]
            last = min(end, read.end_row)
            yield read, row, last - row
            row = last


@dataclass(frozen=True)
class _SlotBlock:
    """Rows of a weight tensor and their scales."""

    read: RowRead
    scales: _Scales
    format: RowFormat
    first_row: int
    num_rows: int

    @property
    def nbytes(self) -> int:
        pieces = self.scales.cut(self.first_row, self.num_rows)
        return self.num_rows * self.read.row_bytes + sum(count * read.row_bytes for read, _, count in pieces)

    def copy(self, hands: Hands) -> None:
        direct = hands.sink.direct("slot", self.first_row, self.num_rows)
        if direct is not None:
            return self._fill(hands, ctypes.addressof(ctypes.c_char.from_buffer(direct)))
        slots = hands.scratch(self.num_rows * self.format.slot_bytes)
        self._fill(hands, slots.data_ptr())
        hands.sink.write("slot", self.first_row, slots.view(self.num_rows, self.format.slot_bytes))
        return None

    def _fill(self, hands: Hands, address: int) -> None:
        for scales, row, count in self.scales.cut(self.first_row, self.num_rows):
            failed, at, error = _core.read_slots(
                self.format.name,
                self.format.head_dim,
                count,
                *hands.place(self.read, row),
                *hands.place(scales, row),
                scales.source.dtype,
                address + (row - self.first_row) * self.format.slot_bytes,
            )
            if failed == "bad_scale":
                raise CheckpointError(bad_scale_message(scales.title, row + at))
            if failed:
                file = (self.read if failed == "rows" else scales).source.file
                why = os.strerror(error) if error else "truncated: more bytes expected"
                raise CheckpointError(f"{file}: {why} at byte {at}")


def slot_blocks(reads: Sequence[RowRead], format: RowFormat, row_start: int, row_end: int) -> Iterator[Block]:
    """Cut the rows [row_start, row_end) of `reads`, weights and scales, into blocks of whole slots.

    Coverage must have been proved: every row has its scales.
    """
    scales = _Scales([read for read in reads if read.leaf == "weight_scale" and read.source.shape[0]])
    step = max(1, SLOT_BLOCK_BYTES // format.slot_bytes)
    for read in reads:
        if read.leaf != "weight":
            continue
        first, last = max(row_start, read.first_row), min(row_end, read.end_row)
        for row in range(first, last, step):
            yield _SlotBlock(read, scales, format, row, min(step, last - row))
