"""Tables in GPU memory."""

from __future__ import annotations

import torch

from ngram_ple.formats import RowFormat
from ngram_ple.tables.base import Table


class DeviceTable(Table):
    """A table in the memory of one GPU."""

    placement = "device"

    def __init__(self, format: RowFormat, row_start: int, row_end: int, device: torch.device) -> None:
        slots = torch.empty((row_end - row_start, format.slot_bytes), dtype=torch.uint8, device=device)
        super().__init__(format, slots, row_start)
