"""What every placement shares: one block of row slots, lookups over it, and loading into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch

from ngram_ple import ops
from ngram_ple.formats import RowFormat
from ngram_ple.tables.counters import TableCounters


class _Decoding(TypedDict):
    format: str
    out_dtype: str
    head_dim: int
    row_start: int
    row_end: int


class Table:
    """Rows ``[row_start, row_end)`` of one layer's table, as uint8 ``[row_end - row_start, slot_bytes]``.

    Raw bytes that are neither a Parameter nor a buffer: nothing that walks a module can cast, move or copy
    them. A `RowSink`.

    Parameters
    ----------
    format : RowFormat
    slots : Tensor
        The memory, uninitialised.
    row_start : int
        Global number of the first row held.

    Attributes
    ----------
    global_scale : Tensor or None
        float32 ``[1]`` beside the slots, for formats that have one; NaN until it is set.
    is_shard : bool
        Whether other ranks hold the rest, so that rows outside are no fault (``NGRAM_PLE_CHECK=1``).
    """

    placement = ""
    most_threads = 16
    _non_blocking = False  # whether `write` may leave copies under way on the current stream

    def __init__(self, format: RowFormat, slots: torch.Tensor, row_start: int) -> None:
        self.format = format
        self.slots = slots
        self.row_start = row_start
        self.row_end = row_start + slots.shape[0]
        self.is_shard = False
        self.global_scale = (
            torch.full((1,), float("nan"), dtype=torch.float32, device=slots.device)
            if format.has_global_scale
            else None
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the slots."""
        return self.slots.numel()

    def counters(self) -> TableCounters | None:
        """Return None: rows are read in one way."""
        return None

    def lookup(self, ids: torch.Tensor, out_dtype: str, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode rows: ids to ``[*ids.shape, head_dim]``, in `out` if given; see `ops.lookup`."""
        rows = (self.slots, None, self.global_scale)
        if out is None:
            return ops.lookup(ids, *rows, **self._decoding(out_dtype))
        torch.ops.ngram_ple.lookup.out(ids, *rows, **self._decoding(out_dtype), out=out)
        return out

    def lookup_ahead(self, ids: torch.Tensor, out_dtype: str, out: torch.Tensor, sms: int) -> None:
        """`lookup` beside other work, on at most `sms` multiprocessors where that is not 0 and can be."""
        self.lookup(ids, out_dtype, out)

    def brings(self, count: int, out_dtype: str) -> bool:
        """Whether so many rows can come ahead of time by `bring`, in no more memory than decoded."""
        return False

    def bring(
        self, ids: torch.Tensor, side: torch.cuda.Stream, places: torch.Tensor, rows: torch.Tensor
    ) -> None:
        """See `PinnedReader.bring`."""
        raise NotImplementedError

    def decode(
        self, places: torch.Tensor, rows: torch.Tensor, out_dtype: str, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Decode what `bring` has brought: ``[*places.shape, head_dim]``, in `out` if given."""
        how: _Decoding = self._decoding(out_dtype) | {"row_start": 0, "row_end": -1}
        if out is None:
            return ops.lookup(places, rows, None, self.global_scale, **how)
        torch.ops.ngram_ple.lookup.out(places, rows, None, self.global_scale, **how, out=out)
        return out

    def embed(
        self,
        batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        plan: Sequence[torch.Tensor],
        eos_token_id: int,
        heads_per_ngram: int,
        out_dtype: str,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hash and decode: ``[T, H·head_dim]``, in `out` if given; see `ops.embed`."""
        hashing = (*batch, plan[0], plan[1], plan[2], eos_token_id, heads_per_ngram)
        rows = (self.slots, None, self.global_scale)
        if out is None:
            return ops.embed(*hashing, *rows, **self._decoding(out_dtype))
        torch.ops.ngram_ple.embed.out(*hashing, *rows, **self._decoding(out_dtype), out=out)
        return out

    def _decoding(self, out_dtype: str) -> _Decoding:
        return {
            "format": self.format.name,
            "out_dtype": out_dtype,
            "head_dim": self.format.head_dim,
            "row_start": self.row_start,
            "row_end": self.row_end if self.is_shard else -1,
        }

    def direct(self, leaf: str, first_row: int, num_rows: int) -> memoryview | None:
        """Return None: rows are handed to `write`."""
        return None

    def scratch(self, nbytes: int) -> torch.Tensor:
        """Return memory for a reading thread."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def write(self, leaf: str, first_row: int, block: torch.Tensor) -> None:
        """Copy rows, their scales and the slot's zero padding, or whole slots into their slots."""
        format = self.format
        begin = first_row - self.row_start
        slots = self.slots[begin : begin + block.shape[0]]
        if leaf == "slot":
            slots.copy_(block, non_blocking=self._non_blocking)
            return
        if leaf == "weight":
            slots[:, : format.row_bytes].copy_(block, non_blocking=self._non_blocking)
            return
        end = format.scale_offset + format.scale_bytes
        slots[:, format.row_bytes : format.scale_offset].zero_()
        slots[:, format.scale_offset : end].copy_(block, non_blocking=self._non_blocking)
        slots[:, end:].zero_()

    def set_global_scale(self, value: float) -> None:
        """Set the scale in place: its address stays valid under captured graphs."""
        if self.global_scale is None:
            raise ValueError(f"format {self.format.name} has no global scale, got {value}")
        self.global_scale.fill_(value)
