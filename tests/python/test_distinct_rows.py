"""The distinct rows of a batch and who owns them, against torch.unique."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from ngram_ple.parallel.all_to_all import distinct_rows
from seeds import for_seeds


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@for_seeds(60)
def test_are_those_of_unique(dtype: torch.dtype, device: torch.device, rng: random.Random) -> None:
    rows, ranks = rng.randint(1, 50), rng.randint(1, 6)
    count = rng.choice([0, 1, 2, rng.randint(0, 200)])
    odd = [-1, -(2**40), rows, 2**40]
    ids = [rng.choice(odd) if rng.random() < 0.2 else rng.randrange(rows) for _ in range(count)]
    step = -(-rows // ranks)
    bounds = [min(rank * step, rows) for rank in range(ranks + 1)]
    given = torch.tensor(ids, dtype=torch.int64, device=device)
    found = distinct_rows(given, torch.tensor(bounds, dtype=dtype, device=device), rows)
    expected = sorted({i for i in ids if 0 <= i < rows})
    assert found.counts.tolist() == [
        sum(begin <= i < end for i in expected) for begin, end in itertools.pairwise(bounds)
    ]
    assert found.rows.dtype == dtype
    assert found.rows[: len(expected)].tolist() == expected
    assert found.index.tolist() == [expected.index(i) if 0 <= i < rows else -1 for i in ids]
