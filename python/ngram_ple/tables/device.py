"""Tables in GPU memory."""

from __future__ import annotations

import torch

from ngram_ple.formats import RowFormat
from ngram_ple.tables.base import Table


class DeviceTable(Table):
    """A table in the memory of one GPU.

    It is filled through one pinned block a reading thread, each copied on a stream of its own, so that reads
    and copies overlap and no second copy of the table ever exists.

    Parameters
    ----------
    format : RowFormat
    row_start, row_end : int
        The global rows held.
    device : torch.device
    slots : Tensor, optional
        Memory for them, uint8 ``[row_end - row_start, slot_bytes]``; allocated by default.
    """

    placement = "device"
    most_threads = 8  # with blocks of 8 MiB: 64 MiB of pinned memory, and faster than 16 on an H200
    _non_blocking = True

    def __init__(
        self,
        format: RowFormat,
        row_start: int,
        row_end: int,
        device: torch.device,
        slots: torch.Tensor | None = None,
    ) -> None:
        if slots is None:
            slots = torch.empty((row_end - row_start, format.slot_bytes), dtype=torch.uint8, device=device)
        super().__init__(format, slots, row_start)
        # The memory may be a block that earlier work on this stream still uses: fills begin after that.
        self._allocated = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._allocated.record(torch.cuda.current_stream(device))

    def scratch(self, nbytes: int) -> torch.Tensor:
        """Return pinned memory, which the GPU copies from without staging it again."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def write(self, leaf: str, first_row: int, block: torch.Tensor) -> None:
        """Copy rows or scales into their slots and wait for the copy, not for other work of the GPU."""
        device = self.slots.device
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_event(self._allocated)
        if block.is_cuda:
            stream.wait_stream(torch.cuda.current_stream(block.device))
        with torch.cuda.stream(stream):
            super().write(leaf, first_row, block)
        stream.synchronize()
