"""Which way of reading is the fastest on this machine, for every size of a batch."""

from __future__ import annotations

from collections.abc import Mapping

MADE: list[str] = []
"""What the measurements of this process came to, one line for each that differs, see `build_info`."""

_GAIN = 0.93  # what another way must take, of the time of the one before, to be worth the change


class Calibration:
    """Times of each way at a few batch sizes, and the choice that follows.

    A batch goes the way that was fastest at the measured size nearest to its own, by ratio, unless the way of
    smaller batches was hardly slower.

    Parameters
    ----------
    times : mapping of int to mapping of str to float
        Ids of a batch to µs by way.

    Attributes
    ----------
    times : dict
        The same.
    choices : list of (int, str)
        From so many ids on, this way; the first from 0.
    """

    def __init__(self, times: Mapping[int, Mapping[str, float]]) -> None:
        self.times = {count: dict(times[count]) for count in sorted(times)}
        self.choices: list[tuple[int, str]] = []
        previous = 0
        for count, ways in self.times.items():
            best = min(ways, key=lambda way: ways[way])
            if not self.choices:
                self.choices.append((0, best))
            elif ways[best] < _GAIN * ways.get(self.choices[-1][1], float("inf")):
                self.choices.append((round((previous * count) ** 0.5), best))
            previous = count

    @classmethod
    def usual(cls) -> Calibration:
        """Return what holds for large tables on most machines, without measuring."""
        return cls({1024: {"zero-copy": 1.0}, 4096: {"staged": 1.0}})

    def way(self, count: int) -> str:
        """Return the way that a batch of `count` ids takes."""
        chosen = self.choices[0][1]
        for begin, way in self.choices[1:]:
            if count >= begin:
                chosen = way
        return chosen

    def __str__(self) -> str:
        """Return such as ``zero-copy, staged from 1448 ids``."""
        (_, first), *rest = self.choices
        return ", ".join([first, *(f"{way} from {begin} ids" for begin, way in rest)])
