"""What a table that knows several ways to read its rows tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TableCounters:
    """Totals since the table was made.

    Attributes
    ----------
    ways : mapping of str to int
        Batches by the way they were looked up.
    bus_bytes : int
        Bytes of rows that the GPU read over the bus.
    seconds : mapping of str to float
        Time of the table's own stages, such as the work of host threads.
    """

    ways: Mapping[str, int] = field(default_factory=dict)
    bus_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
