"""Where tables live: one file a placement."""

from __future__ import annotations

import torch

from ngram_ple.build_info import check_gpu_backend
from ngram_ple.errors import ConfigError
from ngram_ple.formats import RowFormat
from ngram_ple.tables.base import Table
from ngram_ple.tables.counters import TableCounters
from ngram_ple.tables.cpu import CpuTable
from ngram_ple.tables.device import DeviceTable
from ngram_ple.tables.node_copy import NodeCopy, node_copy
from ngram_ple.tables.pinned import PinnedTable
from ngram_ple.tables.sink import RowSink

__all__ = [
    "PLACEMENTS",
    "CpuTable",
    "DeviceTable",
    "NodeCopy",
    "PinnedTable",
    "RowSink",
    "Table",
    "TableCounters",
    "home_device",
    "make_table",
    "node_copy",
    "parse_device",
]

PLACEMENTS = ("device", "pinned", "cpu")


def home_device(placement: str, device: torch.device | str | int | None = None) -> torch.device:
    """Return the device on which inputs, hash buffers and results of a placement live.

    Raises
    ------
    ConfigError
        An unknown placement, a device that does not fit it, no GPU for ``"device"`` and ``"pinned"``, or
        kernels that were built for others.
    """
    _check_placement(placement)
    wanted = None if device is None else parse_device(device)
    if placement == "cpu":
        if wanted is not None and wanted.type != "cpu":
            raise ConfigError(f"device must be cpu or None for placement 'cpu', got {wanted}")
        return torch.device("cpu")
    if wanted is not None and wanted.type != "cuda":
        raise ConfigError(f"device must be a cuda device or None for placement {placement!r}, got {wanted}")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"placement {placement!r} needs a GPU that torch can use, got none; use placement='cpu'"
        )
    check_gpu_backend()
    index = torch.cuda.current_device() if wanted is None or wanted.index is None else wanted.index
    return torch.device("cuda", index)


def parse_device(device: torch.device | str | int) -> torch.device:
    """Return the torch.device that an argument names; a number is a GPU.

    Raises
    ------
    ConfigError
        It names none.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cuda", device)
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device must name a torch device, got {device!r}") from None


def make_table(
    placement: str,
    format: RowFormat,
    row_start: int,
    row_end: int,
    device: torch.device,
    share: NodeCopy | None = None,
) -> Table:
    """Allocate a table, its rows yet to be written. On the meta device it takes no memory.

    `share`, of placements in host memory alone, gives memory that other processes use too.
    """
    _check_placement(placement)
    if device.type == "meta":
        slots = torch.empty((row_end - row_start, format.slot_bytes), dtype=torch.uint8, device=device)
        return Table(format, slots, row_start)
    if placement == "cpu":
        return CpuTable(format, row_start, row_end, share)
    if placement == "pinned":
        return PinnedTable(format, row_start, row_end, device, share=share)
    return DeviceTable(format, row_start, row_end, device)


def _check_placement(placement: str) -> None:
    if placement not in PLACEMENTS:
        raise ConfigError(f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}")
