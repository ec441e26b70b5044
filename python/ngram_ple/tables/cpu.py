"""Tables in pageable host memory, read by the CPU kernels."""

from __future__ import annotations

import ctypes

import torch

from ngram_ple import _core
from ngram_ple.formats import RowFormat
from ngram_ple.tables.base import Table
from ngram_ple.tables.node_copy import NodeCopy


class CpuTable(Table):
    """A table in host memory, transparent huge pages asked for: its rows are read in random order.

    `share` gives the memory of other processes' tables.
    """

    placement = "cpu"

    def __init__(
        self, format: RowFormat, row_start: int, row_end: int, share: NodeCopy | None = None
    ) -> None:
        shape = (row_end - row_start, format.slot_bytes)
        if share is None or row_end == row_start:
            slots = torch.empty(shape, dtype=torch.uint8, device="cpu")
            _core.advise_huge_pages(slots.data_ptr(), slots.numel())
        else:
            region = share.region(shape[0] * shape[1], None)
            slots = torch.frombuffer(region, dtype=torch.uint8).view(shape)  # holds the region
        super().__init__(format, slots, row_start)

    def direct(self, leaf: str, first_row: int, num_rows: int) -> memoryview | None:
        """Return the rows' own bytes where a slot is a row and nothing else."""
        if leaf != "slot" and (leaf != "weight" or self.format.slot_bytes != self.format.row_bytes):
            return None
        at = self.slots.data_ptr() + (first_row - self.row_start) * self.format.slot_bytes
        nbytes = num_rows * self.format.slot_bytes
        return memoryview((ctypes.c_char * nbytes).from_address(at)).cast("B")
