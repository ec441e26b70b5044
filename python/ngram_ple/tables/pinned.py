"""Tables in pinned host memory, read by the GPU in place."""

from __future__ import annotations

import torch

from ngram_ple import _core
from ngram_ple.formats import RowFormat
from ngram_ple.tables.base import Table
from ngram_ple.tables.cpu import CpuTable
from ngram_ple.tables.node_copy import NodeCopy


class PinnedTable(CpuTable):
    """A table in host memory of exact size that the GPU reads over the bus, row by row.

    It is filled like a table on the CPU, straight from the files; nothing passes through the GPU. The memory
    lasts as long as `slots` or a view of it, and a forked child does not inherit it.

    Parameters
    ----------
    format : RowFormat
    row_start, row_end : int
        The global rows held.
    device : torch.device
        The GPU that reads them.
    piece_bytes : int, optional
        Most bytes that are registered with the driver at once; 64 GiB by default.
    threads : int
        Threads that touch the memory first; 0 stands for the CPUs at hand.
    share : NodeCopy, optional
        The memory of other processes' tables, too; the process's own by default.

    Attributes
    ----------
    huge_page_bytes : int
        Bytes that lie in transparent huge pages, as the kernel told once the memory was there.

    Raises
    ------
    PinnedMemoryError
        The memory does not fit or could not be mapped or registered, with the numbers.
    """

    placement = "pinned"

    def __init__(
        self,
        format: RowFormat,
        row_start: int,
        row_end: int,
        device: torch.device,
        *,
        piece_bytes: int = 64 << 30,
        threads: int = 0,
        share: NodeCopy | None = None,
    ) -> None:
        shape = (row_end - row_start, format.slot_bytes)
        self.huge_page_bytes = 0
        if row_end == row_start:
            slots = torch.empty(shape, dtype=torch.uint8, device="cpu")
        else:
            make = _core.PinnedRegion if share is None else share.region
            region = make(shape[0] * shape[1], device.index, piece_bytes, threads)
            self.huge_page_bytes = region.huge_bytes()
            slots = torch.frombuffer(region, dtype=torch.uint8).view(shape)  # holds the region
        Table.__init__(self, format, slots, row_start)
        if self.global_scale is not None:
            self.global_scale = self.global_scale.to(device)

    def write(self, leaf: str, first_row: int, block: torch.Tensor) -> None:
        """Copy rows or scales into their slots, blocks of a GPU by way of pageable memory.

        A single copy by the driver may not cross two registered pieces.
        """
        super().write(leaf, first_row, block.cpu())
