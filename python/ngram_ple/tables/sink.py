"""Where loaded rows go: the interface between checkpoint readers and tables."""

from __future__ import annotations

from typing import Protocol

import torch

from ngram_ple.formats import RowFormat


class RowSink(Protocol):
    """Memory that takes rows of one rank's range.

    `leaf` is ``"weight"``, ``"weight_scale"`` or ``"slot"`` (whole slots, as the table holds them). Rows are
    global row numbers inside ``[row_start, row_end)``.
    Calls for disjoint rows may come from several threads at once.
    """

    row_start: int
    row_end: int
    format: RowFormat
    most_threads: int  # more do not fill it faster, or would hold too much memory

    def direct(self, leaf: str, first_row: int, num_rows: int) -> memoryview | None:
        """Return the writable bytes of these rows where they lie as in a file, else None."""
        ...

    def scratch(self, nbytes: int) -> torch.Tensor:
        """Return uint8 ``[nbytes]`` on the CPU for a reading thread to fill for `write`, again and again."""
        ...

    def write(self, leaf: str, first_row: int, block: torch.Tensor) -> None:
        """Take uint8 ``[n, bytes]`` of any device: values, codes, fp32 row scales, E4M3 block scales, slots.

        The block is free to be changed once this returns.
        """
        ...

    def set_global_scale(self, value: float) -> None:
        """Take the scale of the whole table."""
        ...
