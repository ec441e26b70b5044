"""HashPlan: known values, the definition in plain Python, and what stored buffers change."""

from __future__ import annotations

import random
import warnings

import pytest
import reference
from ngram_ple import (
    CheckpointError,
    ConfigError,
    HashPlan,
    NGramConfig,
    NgramPleWarning,
    _core,
)
from seeds import for_seeds

SIZES_OF_LAYER_0 = [
    20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
    20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171,
]  # fmt: skip


def published(**fields: object) -> NGramConfig:
    given = {"vocab_size": 248320, "ple_embed_dim": 2560, "eos_token_id": 248044, "ple_layer_ids": (2, 4)}
    return NGramConfig(**{**given, **fields})  # type: ignore[arg-type]


def small(**fields: object) -> NGramConfig:
    return published(
        **{
            "ple_embed_dim": 64,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 17,
            "vocab_size": 1000,
            **fields,
        }
    )


def test_published_layer_0() -> None:
    plan = HashPlan.from_config(published())
    assert plan.multipliers == [23703573157769, 20109073645365, 8052911324071]
    assert plan.head_sizes == SIZES_OF_LAYER_0
    assert plan.head_offsets == [sum(SIZES_OF_LAYER_0[:h]) for h in range(16)]
    assert (plan.num_rows, plan.padded_rows) == (320001446, 320001536)


def test_published_layer_1() -> None:
    plan = HashPlan.from_config(published(layer=1))
    assert plan.multipliers == [3352040966061, 19752442147475, 10742103100073]
    assert (plan.head_sizes[0], plan.head_sizes[-1]) == (20000213, 20000429)
    assert (plan.num_rows, plan.padded_rows) == (320005046, 320005120)


@for_seeds(60)
def test_agrees_with_the_definition(rng: random.Random) -> None:
    ngram_size, heads, layers = rng.randint(2, 6), rng.randint(1, 5), rng.randint(1, 4)
    base, divisor = rng.choice([1, 2, 10, 11, rng.randint(1, 100000)]), rng.choice([1, 7, 128])
    vocab = rng.choice([1, 2, 248320, 2**40, 2**62])
    seed = rng.choice([0, 1234, -1, -(2**63), 2**63, 2**64 - 1, rng.getrandbits(64)])
    layer = rng.randrange(layers)
    config = published(
        ngram_size=ngram_size, heads_per_ngram=heads, ple_embed_dim=(ngram_size - 1) * heads * 4,
        ngram_vocab_size_base=base, make_ngram_vocab_size_divisible_by=divisor, vocab_size=vocab, seed=seed,
        ple_layer_ids=tuple(range(1, layers + 1)), layer=layer,
    )  # fmt: skip
    plan = HashPlan.from_config(config)
    assert plan.multipliers == reference.multipliers(ngram_size, vocab, seed, layer)
    assert plan.head_sizes == reference.head_sizes(base, (ngram_size - 1) * heads, layer)
    assert plan.head_offsets == [sum(plan.head_sizes[:h]) for h in range(len(plan.head_sizes))]
    assert plan.num_rows == sum(plan.head_sizes)
    assert plan.padded_rows == -(-plan.num_rows // divisor) * divisor


def test_the_layer_counts_among_ple_layers_not_decoder_layers() -> None:
    assert HashPlan.from_config(published(ple_layer_ids=(7, 2))) == HashPlan.from_config(published())
    first, second = (HashPlan.from_config(small(layer=layer)) for layer in (0, 1))
    assert not set(first.head_sizes) & set(second.head_sizes)


def test_native_primes_and_mixer() -> None:
    assert [n for n in range(2000) if _core.is_prime(n)] == [n for n in range(2000) if reference.is_prime(n)]
    assert _core.next_prime(20000000) == 20000003
    assert not _core.is_prime(3825123056546413051)
    for x in (0, 1, 2**63, 2**64 - 1):
        assert _core.splitmix64(x) == reference.splitmix64(x)


def test_stored_buffers_that_agree_change_nothing() -> None:
    plan = HashPlan.from_config(small())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = plan.with_buffers(
            {
                "layer_multipliers": list(plan.multipliers),
                "ngram_heads_vocab_sizes": list(plan.head_sizes),
                "ngram_heads_offsets": list(plan.head_offsets),
            }
        )
    assert same == plan
    assert plan.with_buffers({}) == plan


def test_stored_buffers_win_with_a_warning_that_names_both() -> None:
    plan = HashPlan.from_config(small())
    with pytest.warns(NgramPleWarning) as caught:
        changed = plan.with_buffers({"layer_multipliers": [5, 7, 9]}, "model.safetensors")
    message = str(caught[0].message)
    for part in ("layer_multipliers", "model.safetensors", "[5, 7, 9]", str(plan.multipliers)):
        assert part in message
    assert changed.multipliers == [5, 7, 9]
    assert changed.head_sizes == plan.head_sizes


def test_rows_follow_from_the_winning_sizes() -> None:
    plan = HashPlan.from_config(small())
    with pytest.warns(NgramPleWarning):
        changed = plan.with_buffers(
            {"ngram_heads_vocab_sizes": [101, 103, 107, 109], "ngram_heads_offsets": [0, 101, 204, 311]}
        )
    assert changed.num_rows == 420
    assert changed.padded_rows == 512
    with pytest.warns(NgramPleWarning):
        smaller = plan.with_buffers({"ngram_heads_vocab_sizes": [3, 3, 3, 3], "ngram_heads_offsets": [0] * 4})
    assert (smaller.num_rows, smaller.padded_rows) == (12, 128)


@pytest.mark.filterwarnings("ignore::ngram_ple.NgramPleWarning")
@pytest.mark.parametrize(
    ("buffers", "said"),
    [
        ({"layer_multipliers": [1, 3]}, "layer_multipliers of the checkpoint must have 3 elements, got 2"),
        (
            {"ngram_heads_vocab_sizes": [2] * 5},
            "ngram_heads_vocab_sizes of the checkpoint must have 4 elements",
        ),
        ({"ngram_heads_vocab_sizes": [0, 2, 2, 2]}, "must be within 1..2^62"),
        ({"ngram_heads_vocab_sizes": [2, 2, 2, -2]}, "must be within 1..2^62"),
        ({"ngram_heads_offsets": [-1, 2, 2, 2]}, "got 17 and -1"),
        (
            {"ngram_heads_offsets": [0, 17, 36, 128]},
            "inside the 128 rows of the table, got one that ends at row 157",
        ),
    ],
)
def test_stored_buffers_that_cannot_be(buffers: dict[str, list[int]], said: str) -> None:
    with pytest.raises(CheckpointError) as error:
        HashPlan.from_config(small()).with_buffers(buffers)
    assert said in str(error.value)


def test_too_many_rows() -> None:
    """The largest configuration that passes the fields' own limits still has a plan."""
    config = published(ngram_vocab_size_base=2**40, make_ngram_vocab_size_divisible_by=2**40)
    plan = HashPlan.from_config(config)
    assert plan.padded_rows % 2**40 == 0
    with pytest.raises(OverflowError, match="more than 2\\^62 rows"):
        _core.hash_plan(2, 2, 10, 2**61, 1, 0, 0)
    with pytest.raises(ValueError, match="heads_per_ngram must be at least 1, got 0"):
        _core.hash_plan(2, 0, 10, 10, 1, 0, 0)
    assert issubclass(ConfigError, ValueError)
