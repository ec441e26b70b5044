"""How evenly a text hits the rows of each hash head, against what an even hash would do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ngram_ple import ops
from ngram_ple.config import NGramConfig
from ngram_ple.hash_plan import HashPlan
from ngram_ple.text import RaggedTokens

BINS = 256
ODD_SIGMAS = 6.0
"""Deviations beyond this many standard deviations do not happen to an even hash."""

_CHUNK = 1 << 16

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeadHits:
    """One head's rows under a text.

    A text repeats its n-grams, so hits alone are uneven for any hash; each different n-gram, though, falls on
    a row of its own choice. Distinct rows are therefore what is compared with an even hash.

    Attributes
    ----------
    head, order, size : int
        Number, n of its n-grams, and rows.
    hits, distinct : int64 ``[bins]``
        Hits and distinct rows hit, in equal bins of rows (256, fewer for a smaller head).
    ngrams : int
        Different n-grams of the text.
    expected : float
        Distinct rows that so many n-grams hit on average when hashed evenly.
    sigma : float
        Standard deviation of that number.
    """

    head: int
    order: int
    size: int
    hits: Counts
    distinct: Counts
    ngrams: int
    expected: float
    sigma: float

    @property
    def distinct_rows(self) -> int:
        """Distinct rows hit."""
        return int(self.distinct.sum())

    def band(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return mean and standard deviation of each bin's distinct rows, given their sum."""
        rows = np.bincount(_bins(np.arange(self.size), self.size)) if self.size < 1 << 20 else None
        share = np.full(len(self.hits), 1 / len(self.hits)) if rows is None else rows / self.size
        left = (self.size - self.distinct_rows) / max(1, self.size - 1)  # drawn without replacement
        return self.distinct_rows * share, np.sqrt(self.distinct_rows * share * (1 - share) * left)

    @property
    def skew(self) -> float:
        """How far the bins' chi-square lies from its mean, in standard deviations."""
        mean, sigma = self.band()
        if len(mean) < 2 or not float(sigma.min()) > 0:
            return 0.0
        freedom = len(mean) - 1
        # The bins share one sum, which takes 1 - share of the variance of each.
        square = float((((self.distinct - mean) / sigma) ** 2 * (1 - mean / mean.sum())).sum())
        return (square - freedom) / math.sqrt(2 * freedom)

    @property
    def shortfall(self) -> float:
        """How many standard deviations the distinct rows are from what is expected; negative: too few."""
        return (self.distinct_rows - self.expected) / max(self.sigma, 1.0)

    @property
    def odd(self) -> bool:
        """Whether an even hash does not do that."""
        return self.skew > ODD_SIGMAS or abs(self.shortfall) > ODD_SIGMAS


def row_hits(tokens: RaggedTokens, config: NGramConfig, plan: HashPlan) -> list[HeadHits]:
    """Hash a text and count; one element a head.

    Memory: 16 bytes a token and head order, and a byte a row of one head at a time.
    """
    counts = [_Counter(size) for size in plan.head_sizes]
    multipliers, sizes, offsets = (
        torch.tensor(values, dtype=torch.int64)
        for values in (plan.multipliers, plan.head_sizes, plan.head_offsets)
    )
    for first in range(0, tokens.num_tokens, _CHUNK):
        last = min(tokens.num_tokens, first + _CHUNK)
        ids, starts, context = tokens.chunk(first, last, config.ngram_size - 1, config.eos_token_id)
        rows = ops.ngram_ids(
            ids, starts, context, multipliers, sizes, offsets, config.eos_token_id, config.heads_per_ngram
        )
        for head, counter in enumerate(counts):
            counter.add((rows[:, head] - plan.head_offsets[head]).numpy())
    ngrams = _distinct_ngrams(tokens, config)
    return [
        counter.result(head, head // config.heads_per_ngram + 2, ngrams)
        for head, counter in enumerate(counts)
    ]


class _Counter:
    """Collects one head's rows."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._hits = np.zeros(min(BINS, size), dtype=np.int64)
        self._seen: list[Counts] = []

    def add(self, rows: Counts) -> None:
        self._hits += np.bincount(_bins(rows, self._size), minlength=len(self._hits))
        self._seen.append(np.unique(rows))

    def result(self, head: int, order: int, ngrams: dict[int, int]) -> HeadHits:
        rows = np.unique(np.concatenate(self._seen)) if self._seen else np.empty(0, np.int64)
        distinct = np.bincount(_bins(rows, self._size), minlength=len(self._hits)).astype(np.int64)
        load = ngrams[order] / self._size
        expected = (
            -self._size * math.expm1(ngrams[order] * math.log1p(-1 / self._size)) if self._size > 1 else 1.0
        )
        variance = self._size * math.exp(-load) * (1 - (1 + load) * math.exp(-load))
        return HeadHits(
            head,
            order,
            self._size,
            self._hits,
            distinct,
            ngrams[order],
            expected,
            math.sqrt(max(0.0, variance)),
        )


def _bins(rows: Counts, size: int) -> Counts:
    bins = min(BINS, size)
    # In floating point: a product with a size above 2^55 would not fit.
    return np.minimum((rows / size * bins).astype(np.int64), bins - 1)


def _distinct_ngrams(tokens: RaggedTokens, config: NGramConfig) -> dict[int, int]:
    """Count the different n-grams of each order, the hash's rule for ends of text applied."""
    ids = tokens.input_ids.numpy()
    starts = tokens.query_start_loc.numpy()
    position = np.arange(len(ids)) - np.repeat(starts[:-1], np.diff(starts))
    code = ids.astype(np.int64)
    cut = np.zeros(len(ids), dtype=bool)
    counts = {}
    for step in range(1, config.ngram_size):
        before = np.concatenate([np.full(step, config.eos_token_id), ids[:-step]])[: len(ids)]
        cut |= (position < step) | (before == config.eos_token_id)
        before = np.where(cut, config.eos_token_id, before)
        # Number the n-grams so far: pairs of (number of the shorter one, older token).
        pairs = np.stack([code, before], axis=1)
        unique, code = np.unique(pairs, axis=0, return_inverse=True)
        code = code.reshape(-1).astype(np.int64)
        counts[step + 1] = len(unique)
    return counts
