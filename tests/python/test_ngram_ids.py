"""ngram_ids: known values, hand-computed cases, and what must not matter."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from batches import INT64X3, Batch, random_batch, small_plan
from ngram_ple import HashPlan, NGramConfig, ops
from seeds import for_seeds

PUBLISHED = NGramConfig(vocab_size=248320, ple_embed_dim=2560, eos_token_id=248044, ple_layer_ids=(2,))
IDS_OF_9707 = [
    16410909, 39682429, 55103279, 60931720, 87006904, 116506179, 131512017, 152932897,
    169641436, 182022480, 209277433, 237891023, 256841529, 277007269, 290665954, 300984276,
]  # fmt: skip


def test_published_model(device: torch.device) -> None:
    plan = HashPlan.from_config(PUBLISHED)
    lists = (plan.multipliers, plan.head_sizes, plan.head_offsets)
    batch = Batch([9707], [0, 1], [[248044, 248044]], lists, 248044, 8)
    assert ops.ngram_ids(*batch.arguments(device)).tolist() == [IDS_OF_9707]


# N 3, K 1. Multipliers 1, 16, 256 and sizes of 2^40 show the history as hexadecimal digits, the newest token
# lowest: (tokens, query_start_loc, contexts, ids of order 2, ids of order 3). EOS is 0xE.
HAND_COMPUTED = {
    "one request": ([1, 2, 3], [0, 3], [[8, 9]], [0x91, 0x12, 0x23], [0x891, 0x912, 0x123]),
    "EOS in the chunk": ([1, 0xE, 3], [0, 3], [[8, 9]], [0x91, 0x1E, 0xE3], [0x891, 0x91E, 0xEE3]),
    "EOS long ago": ([0xE, 3, 4], [0, 3], [[8, 9]], [0x9E, 0xE3, 0x34], [0x89E, 0xEE3, 0xE34]),
    "EOS in the context": ([1, 2], [0, 2], [[8, 0xE]], [0xE1, 0x12], [0xEE1, 0xE12]),
    "EOS oldest": ([1, 2], [0, 2], [[0xE, 9]], [0x91, 0x12], [0xE91, 0x912]),
    "EOS twice": ([0xE, 0xE, 5], [0, 3], [[8, 9]], [0x9E, 0xEE, 0xE5], [0x89E, 0xEEE, 0xEE5]),
    "fresh": ([1], [0, 1], [[0xE, 0xE]], [0xE1], [0xEE1]),
    "two requests": ([1, 2, 3], [0, 1, 3], [[4, 5], [6, 7]], [0x51, 0x72, 0x23], [0x451, 0x672, 0x723]),
    "empty first": ([1, 2], [0, 0, 2], [[4, 5], [6, 7]], [0x71, 0x12], [0x671, 0x712]),
    "empty between": ([1, 2], [0, 1, 1, 2], [[4, 5], [6, 7], [8, 9]], [0x51, 0x92], [0x451, 0x892]),
    "empty last": ([1, 2], [0, 2, 2], [[4, 5], [6, 7]], [0x51, 0x12], [0x451, 0x512]),
    "all empty": ([], [0, 0, 0], [[4, 5], [6, 7]], [], []),
}  # fmt: skip


@pytest.mark.parametrize("case", HAND_COMPUTED)
def test_hand_computed(case: str, device: torch.device) -> None:
    tokens, bounds, contexts, pairs, triples = HAND_COMPUTED[case]
    batch = Batch(tokens, bounds, contexts, ([1, 16, 256], [2**40] * 2, [0, 2**41]), 0xE, 1)
    got = ops.ngram_ids(*batch.arguments(device)).cpu()
    assert got.shape == (len(tokens), 2)
    assert got[:, 0].tolist() == pairs
    assert (got[:, 1] - 2**41).tolist() == triples


@pytest.mark.parametrize("dtypes", list(itertools.product((torch.int32, torch.int64), repeat=3)))
def test_integer_types_are_independent(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype], device: torch.device
) -> None:
    for seed in range(5):
        batch = random_batch(random.Random(seed))
        assert torch.equal(ops.ngram_ids(*batch.arguments(device, dtypes)).cpu(), batch.expected())


@for_seeds(60)
def test_agrees_with_the_reference(device: torch.device, rng: random.Random) -> None:
    batch = random_batch(rng)
    assert torch.equal(ops.ngram_ids(*batch.arguments(device)).cpu(), batch.expected())


@pytest.mark.parametrize("requests", [1, 3, 300])
def test_many_tokens(requests: int, device: torch.device) -> None:
    """More than one thread's or block's share."""
    rng = random.Random(requests)
    batch = random_batch(rng, requests=requests)
    bounds = sorted(rng.randrange(3000) for _ in range(requests - 1))
    batch.query_start_loc = [0, *bounds, 3000]
    batch.input_ids = [rng.randrange(6) for _ in range(3000)]
    assert torch.equal(ops.ngram_ids(*batch.arguments(device)).cpu(), batch.expected())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_context_rows_may_lie_apart_and_be_more(dtype: torch.dtype, device: torch.device) -> None:
    batch = random_batch(random.Random(5), requests=4)
    arguments = batch.arguments(device, (torch.int64, torch.int64, dtype))
    context = arguments[2]
    assert isinstance(context, torch.Tensor)
    wide = torch.full((9, context.shape[1] + 5), 123456, dtype=dtype, device=device)
    wide[:4, 2 : 2 + context.shape[1]] = context
    arguments[2] = wide[:, 2 : 2 + context.shape[1]]
    assert torch.equal(ops.ngram_ids(*arguments).cpu(), batch.expected())
    arguments[2] = context[:1].expand(4, -1)  # a row stride of 0: one context for all
    batch.contexts = [batch.contexts[0]] * 4
    assert torch.equal(ops.ngram_ids(*arguments).cpu(), batch.expected())


def in_range(ids: torch.Tensor, batch: Batch) -> bool:
    sizes, offsets = (torch.tensor(values) for values in batch.plan[1:])
    return bool(((ids >= offsets) & (ids < offsets + sizes)).all())


def test_padding_tokens_count_as_the_last_request(device: torch.device) -> None:
    for seed in range(20):
        batch = random_batch(random.Random(seed), padding=5)
        got = ops.ngram_ids(*batch.arguments(device)).cpu()
        assert in_range(got, batch)
        real = batch.query_start_loc[-1]
        batch.input_ids = batch.input_ids[:real]
        assert torch.equal(got[:real], batch.expected())


def test_no_requests(device: torch.device) -> None:
    batch = Batch([], [0], [], small_plan(3, 2), 1, 2)
    assert ops.ngram_ids(*batch.arguments(device)).shape == (0, 4)
    batch.input_ids = [1, 2, 3]
    if device.type == "cpu":
        with pytest.raises(RuntimeError, match="query_start_loc names no request for 3 tokens"):
            ops.ngram_ids(*batch.arguments(device))
    else:
        assert in_range(ops.ngram_ids(*batch.arguments(device)).cpu(), batch)


@for_seeds(40)
def test_chunking_does_not_matter(device: torch.device, rng: random.Random) -> None:
    batch = random_batch(rng, requests=1)
    whole = ops.ngram_ids(*batch.arguments(device)).cpu()
    history = [*batch.contexts[0], *batch.input_ids]
    columns, total = len(batch.contexts[0]), len(batch.input_ids)
    cuts = sorted({0, total, *(rng.randint(0, total) for _ in range(rng.randint(0, 4)))})
    parts = []
    for begin, end in itertools.pairwise(cuts):
        chunk = Batch(
            batch.input_ids[begin:end], [0, end - begin], [history[begin : begin + columns]],
            batch.plan, batch.eos, batch.heads_per_ngram,
        )  # fmt: skip
        parts.append(ops.ngram_ids(*chunk.arguments(device)).cpu())
    assert torch.equal(torch.cat(parts) if parts else whole[:0], whole)


@for_seeds(40)
def test_order_of_requests_does_not_matter(device: torch.device, rng: random.Random) -> None:
    batch = random_batch(rng)
    ids = ops.ngram_ids(*batch.arguments(device)).cpu()
    spans = list(itertools.pairwise(batch.query_start_loc))
    order = rng.sample(range(len(spans)), len(spans))
    tokens = [batch.input_ids[slice(*spans[r])] for r in order]
    bounds = [0, *itertools.accumulate(len(chunk) for chunk in tokens)]
    shuffled = Batch(
        [token for chunk in tokens for token in chunk], bounds, [batch.contexts[r] for r in order],
        batch.plan, batch.eos, batch.heads_per_ngram,
    )  # fmt: skip
    expected = torch.cat([ids[slice(*spans[r])] for r in order])
    assert torch.equal(ops.ngram_ids(*shuffled.arguments(device)).cpu(), expected)


@for_seeds(60)
def test_wrapping_products_agree_with_torch(device: torch.device, rng: random.Random) -> None:
    """Huge and negative tokens, multipliers and sizes: torch's own int64 arithmetic."""
    edges = [2**63 - 1, -(2**63), -(2**63) + 1, 2**62, -1, 0, 1, 2**31, -(2**31)]

    def huge() -> int:
        return rng.choice([rng.choice(edges), rng.randrange(-(2**63), 2**63)])

    tokens = torch.tensor([huge() for _ in range(12)], device=device)
    factors = torch.tensor([huge() for _ in range(2)], device=device)
    sizes = torch.tensor(
        [rng.choice([1, 2, 20000003, 2**31, 2**62, rng.randrange(1, 2**62)]) for _ in range(3)]
    )
    sizes = sizes.to(device)
    eos = huge()
    previous = torch.cat((tokens.new_tensor([eos]), tokens[:-1]))
    expected = torch.remainder(((tokens * factors[0]) ^ (previous * factors[1])).unsqueeze(1), sizes)
    got = ops.ngram_ids(
        tokens, torch.tensor([0, 12], device=device), torch.tensor([[eos]], device=device),
        factors, sizes, torch.zeros_like(sizes), eos, 3,
    )  # fmt: skip
    assert torch.equal(got, expected)
    assert bool(((got >= 0) & (got < sizes)).all())


def test_out(device: torch.device) -> None:
    batch = random_batch(random.Random(1))
    arguments = batch.arguments(device, INT64X3)
    out = torch.full((len(batch.input_ids), len(batch.plan[1])), -7, device=device)
    assert torch.ops.ngram_ple.ngram_ids.out(*arguments, out=out) is None
    assert torch.equal(out.cpu(), batch.expected())
