"""What encoding has changed, summed up for each head of a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from ngram_ple import _core
from ngram_ple.hash_plan import HashPlan


@dataclass
class HeadErrors:
    """Sums over the values of one head's rows.

    Attributes
    ----------
    squared_error, squared_value : float
        Sums of (value - decoded)² and value², over finite values; decoded in fp32.
    largest_error : float
    saturated : int
        Finite values beyond what their scale reaches, which became its largest code.
    zeroed : int
        Values other than zero that became zero.
    not_finite : int
        NaN and infinite values; they count nowhere else.
    count : int
        All values.
    """

    squared_error: float = 0.0
    squared_value: float = 0.0
    largest_error: float = 0.0
    saturated: int = 0
    zeroed: int = 0
    not_finite: int = 0
    count: int = 0

    @property
    def relative_rms(self) -> float:
        """sqrt(Σ(value - decoded)² / Σvalue²), 0 where all values are."""
        return math.sqrt(self.squared_error / self.squared_value) if self.squared_value else 0.0

    def add(self, other: HeadErrors) -> None:
        """Add the sums of other rows."""
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            setattr(self, one.name, max(mine, theirs) if one.name == "largest_error" else mine + theirs)

    def add_native(self, sums: _core.EncodeError, count: int) -> None:
        """Add what native code has summed over `count` values."""
        self.add(
            HeadErrors(
                sums.squared_error,
                sums.squared_value,
                sums.largest_error,
                sums.saturated,
                sums.zeroed,
                sums.not_finite,
                count,
            )
        )

    def facts(self) -> dict[str, Any]:
        """Return what a report shows of them."""
        share = 1 / self.count if self.count else 0.0
        return {
            "relative_rms": self.relative_rms,
            "largest_error": self.largest_error,
            "saturated_share": self.saturated * share,
            "zero_share": self.zeroed * share,
            "not_finite": self.not_finite,
            "values": self.count,
        }

    def to_list(self) -> list[float | int]:
        """Return the sums for JSON."""
        return list(asdict(self).values())


def pieces(plan: HashPlan, first: int, last: int) -> Iterator[tuple[list[int], int, int]]:
    """Cut rows [first, last) where heads begin and end: the heads that address a piece, first row, last row.

    No head addresses the tail that pads a table.
    """
    spans = [(offset, offset + size) for offset, size in zip(plan.head_offsets, plan.head_sizes, strict=True)]
    cuts = {row for span in spans for row in span if first < row < last}
    for begin, end in pairwise(sorted({first, last, *cuts})):
        yield [head for head, span in enumerate(spans) if span[0] <= begin and end <= span[1]], begin, end


def total(heads: Sequence[HeadErrors]) -> HeadErrors:
    """Add up all heads."""
    result = HeadErrors()
    for head in heads:
        result.add(head)
    return result
