"""Tables in pinned host memory, read by the GPU in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ngram_ple import _core, ops
from ngram_ple.formats import RowFormat
from ngram_ple.tables.base import Table
from ngram_ple.tables.counters import TableCounters
from ngram_ple.tables.cpu import CpuTable
from ngram_ple.tables.node_copy import NodeCopy
from ngram_ple.tables.reader import PinnedReader


class PinnedTable(CpuTable):
    """A table in host memory of exact size that the GPU reads over the bus.

    Each lookup reads row by row, in place, until `open_reader` brings other ways.

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
    reader : PinnedReader or None
        How lookups read; None for each row in place.

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
        self.device = device
        self.reader: PinnedReader | None = None
        self._embeddings = self._embedded_ids = 0
        if self.global_scale is not None:
            self.global_scale = self.global_scale.to(device)

    def open_reader(self, **options: Any) -> PinnedReader:
        """Choose how lookups read, with the options of `PinnedReader`, once and before any of them.

        Raises
        ------
        ConfigError, PinnedMemoryError
            As `PinnedReader` does.
        """
        self.reader = PinnedReader(self.slots, self.format, self.row_start, self.device, **options)
        return self.reader

    def counters(self) -> TableCounters | None:
        """Return what the reader has counted; embeddings read in place while no graph is captured, too."""
        if self.reader is None:
            return None
        told = self.reader.counters()
        ways = {
            "zero-copy": told["zero_copy_calls"] + self._embeddings,
            "ordered": told["batches"] - told["worker_batches"],
            "staged": told["worker_batches"],
        }
        rows = told["zero_copy_ids"] + self._embedded_ids + told["listed_rows"]
        return TableCounters(
            ways,
            rows * (self.format.row_bytes + self.format.scale_bytes),
            {"gather": told["worker_nanoseconds"] / 1e9},
        )

    def lookup(self, ids: torch.Tensor, out_dtype: str, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode rows: ids to ``[*ids.shape, head_dim]``, in `out` if given; see `ops.lookup`."""
        if self.reader is None:
            return super().lookup(ids, out_dtype, out)
        return self.reader.lookup(ids, self.global_scale, out_dtype, out=out)

    def lookup_ahead(self, ids: torch.Tensor, out_dtype: str, out: torch.Tensor, sms: int) -> None:
        """`lookup` beside other work, on at most `sms` multiprocessors where that is not 0."""
        if self.reader is None:
            super().lookup_ahead(ids, out_dtype, out, sms)
        else:
            self.reader.lookup(ids, self.global_scale, out_dtype, sms=sms, out=out)

    def brings(self, count: int, out_dtype: str) -> bool:
        """Whether the reader would have them staged, and slots are no larger than decoded rows."""
        decoded = self.format.head_dim * (4 if out_dtype == "fp32" else 2)
        return self.reader is not None and self.reader.can_bring(count) and self.format.slot_bytes <= decoded

    def bring(
        self, ids: torch.Tensor, side: torch.cuda.Stream, places: torch.Tensor, rows: torch.Tensor
    ) -> None:
        """See `PinnedReader.bring`."""
        assert self.reader is not None
        self.reader.bring(ids, side, places, rows)

    def embed(
        self,
        batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        plan: Sequence[torch.Tensor],
        eos_token_id: int,
        heads_per_ngram: int,
        out_dtype: str,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hash and decode, ``[T, H·head_dim]``: in one kernel where rows are read in place."""
        count = batch[0].shape[0] * plan[1].shape[0]
        if self.reader is None or self.reader.way(count) == "zero-copy":
            self._embeddings += 1
            self._embedded_ids += count
            return super().embed(batch, plan, eos_token_id, heads_per_ngram, out_dtype, out)
        ids = ops.ngram_ids(*batch, plan[0], plan[1], plan[2], eos_token_id, heads_per_ngram)
        rows = None if out is None else out.view(*ids.shape, -1)
        return self.lookup(ids, out_dtype, rows).flatten(1)

    def write(self, leaf: str, first_row: int, block: torch.Tensor) -> None:
        """Copy rows or scales into their slots, blocks of a GPU by way of pageable memory.

        A single copy by the driver may not cross two registered pieces.
        """
        super().write(leaf, first_row, block.cpu())
