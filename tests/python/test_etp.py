"""One table over the ranks of a gloo group, against the same table on one rank."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import etp_tasks
import pytest
import torch
from batches import FORMATS
from etp_tasks import make_batch
from etp_world import World
from modules import CONFIG, loaded, rows_of
from ngram_ple import ConfigError, ExchangeError, NGramEmbedding
from ngram_ple.formats import row_format
from ngram_ple.parallel import EtpGroup
from reference import assert_same
from seeds import for_seeds

CPU = torch.device("cpu")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(4)
    yield made
    made.stop()


_alone: dict[tuple[str, torch.dtype], NGramEmbedding] = {}


def alone(format: str, dtype: torch.dtype = torch.bfloat16) -> NGramEmbedding:
    """The module of one rank."""
    if (format, dtype) not in _alone:
        _alone[format, dtype] = loaded(CPU, format, dtype=dtype)
    return _alone[format, dtype]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("exchange", ["reduce", "exchange", "auto"])
@for_seeds(6)
def test_every_rank_gets_what_one_rank_gets(
    world: World, format: str, exchange: str, rng: random.Random
) -> None:
    size = rng.randint(2, 4)
    tp_size = rng.choice([tp for tp in (1, 1, 2, 3, 4) if size % tp == 0])
    dtype = rng.choice(DTYPES)
    most = rng.choice([1, 3, 9, 40])
    counts = [rng.choice([0, most, rng.randint(0, most)]) for _ in range(size // tp_size)]
    seeds = [rng.getrandbits(30) for _ in counts]
    slot = 40 if exchange != "exchange" and rng.random() < 0.3 else None
    how = {"format": format, "tp_size": tp_size, "exchange": exchange, "slot": slot, "dtype": dtype}
    ranks = sorted(rng.sample(range(4), size))
    answers = world.run(ranks, etp_tasks.step, how, seeds, counts, rng.random() < 0.5)
    module = alone(format, dtype)
    for rank, answer in enumerate(answers):
        dp = rank // tp_size
        batch = make_batch(seeds[dp], counts[dp])
        ids = module.compute_ngram_ids(*batch)
        assert torch.equal(answer["rows"], module(*batch).view(torch.uint8))  # every bit, NaN included
        padded = torch.where(torch.arange(ids.numel()).view(ids.shape) % 5 == 3, -1, ids)
        assert torch.equal(answer["lookup"], module.sync_lookup(padded).view(torch.uint8))
        if exchange != "auto":
            assert answer["exchange"] == exchange
    assert len({answer["exchange"] for answer in answers}) == 1
    starts, ends = zip(*(answer["range"] for answer in answers), strict=True)
    assert (starts[0], ends[-1], starts[1:]) == (0, module.table.row_end, ends[:-1])


@pytest.mark.parametrize("format", ["bf16", "fp8-rowwise", "nvfp4"])
def test_exchange_sends_each_id_and_each_row_once(world: World, format: str) -> None:
    how = {"format": format, "tp_size": 1, "exchange": "exchange", "slot": None, "dtype": torch.bfloat16}
    counts, seeds = [300, 7, 0], [1, 2, 3]
    answers = world.run([0, 1, 2], etp_tasks.step, how, seeds, counts, True)
    asked: dict[tuple[int, int], int] = {}
    for rank in range(3):
        ids = alone(format).compute_ngram_ids(*make_batch(seeds[rank], counts[rank])).unique()
        for owner, answer in enumerate(answers):
            start, end = answer["range"]
            asked[rank, owner] = int(((ids >= start) & (ids < end)).sum())
    stored = row_format(format, 32)
    row_bytes = stored.row_bytes + stored.scale_bytes
    for rank, answer in enumerate(answers):
        others = [other for other in range(3) if other != rank]
        ideal = sum(4 * asked[rank, other] + row_bytes * asked[other, rank] for other in others)
        assert answer["sent"] == ideal + 8 * len(others)


def test_auto_sums_few_rows_and_asks_for_many(world: World) -> None:
    how = {"format": "bf16", "tp_size": 1, "exchange": "auto", "slot": None, "dtype": torch.bfloat16}
    few = world.run([0, 1], etp_tasks.step, how, [1, 2], [2, 0], False)
    many = world.run([0, 1], etp_tasks.step, how, [1, 2], [0, 900], False)
    assert [answer["exchange"] for answer in few + many] == ["reduce", "reduce", "exchange", "exchange"]


def test_partial_results_are_the_rows_of_each_rank(world: World) -> None:
    how = {
        "format": "bf16", "tp_size": 3, "exchange": "auto", "slot": None, "dtype": torch.bfloat16,
        "reduce_results": False,
    }  # fmt: skip
    answers = world.run([0, 1, 3], etp_tasks.step, how, [8], [50], True)
    batch = make_batch(8, 50)
    ids = alone("bf16").compute_ngram_ids(*batch)
    whole = alone("bf16")(*batch).view(50, 4, 32)
    for answer in answers:
        start, end = answer["range"]
        mine = ((ids >= start) & (ids < end)).unsqueeze(-1)
        got = answer["rows"].view(torch.bfloat16).view(50, 4, 32)
        assert_same(got, torch.where(mine, whole, torch.zeros((), dtype=torch.bfloat16)))
        assert answer["sent"] == 0


def test_several_groups_inside_one_dp(world: World) -> None:
    for rank, rows in enumerate(world.run(range(4), etp_tasks.over_mesh)):
        assert_same(rows, alone("bf16")(*make_batch(rank, 3 * rank)))


def test_a_module_from_meta(world: World) -> None:
    for rows in world.run([1, 2], etp_tasks.on_meta):
        assert_same(rows, alone("bf16")(*make_batch(1, 6)))


def test_what_a_module_over_a_group_refuses(world: World) -> None:
    for told in world.run([0, 1], etp_tasks.refusals):
        counts, length, slot, save, load = told
        assert "token_counts must hold the tokens of the group's 2 data-parallel ranks, 3 for" in counts
        assert "got [3]" in length
        assert slot == "ExchangeError: a step may have slot_tokens=4 tokens, got 5"
        assert "a state dict holds whole tables" in save
        assert "a state dict holds whole tables" in load


def test_ranks_that_disagree_all_hear_it(world: World) -> None:
    options: list[dict[str, Any]] = [{"format": "bf16"}, {"format": "fp8"}]
    for error in world.answers([0, 1], etp_tasks.construct, options):
        assert isinstance(error, ExchangeError)
        assert "must agree" in str(error)
        assert "'fp8'" in str(error)


def test_a_rank_without_its_device_fails_all(world: World) -> None:
    options: list[dict[str, Any]] = [{}, {"device": "cuda:99"}]
    mine, other = world.answers([0, 1], etp_tasks.construct, options)
    assert "failed on rank 1 of the ETP group: ConfigError: device must be cpu or None" in str(mine)
    assert "device must be cpu or None" in str(other)


def test_peer_without_gpus_is_exchange(world: World) -> None:
    for text in world.run([0, 1], etp_tasks.construct, [{}, {}], exchange="peer"):
        assert "exchange=exchange" in text


def test_the_groups_own_mistakes(world: World) -> None:
    wrong = {
        "tp_size must divide the 3 ranks": {"tp_size": 2},
        "exchange must be one of auto, reduce, exchange, peer, got 'fast'": {"exchange": "fast"},
        "slot_tokens must be a positive int, got 0": {"slot_tokens": 0},
    }
    for message, options in wrong.items():
        for error in world.answers([0, 1, 2], etp_tasks.construct, [{}] * 3, **options):
            assert message in str(error)
    for error in world.answers([0, 1], etp_tasks.construct, [{"reduce_results": False}] * 2):
        assert "reduce_results=False needs ranks that embed the same tokens" in str(error)


def test_what_is_no_group() -> None:
    with pytest.raises(ExchangeError, match=r"needs torch\.distributed\.init_process_group first"):
        EtpGroup()
    with pytest.raises(ConfigError, match="etp must be an EtpGroup or None, got 2"):
        NGramEmbedding(CONFIG, placement="cpu", etp=2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reduce_results=False needs etp"):
        NGramEmbedding(CONFIG, placement="cpu", reduce_results=False)


def test_config_is_that_of_the_tests() -> None:
    """Rows that do not divide by three, and ids that all ranks own."""
    assert alone("bf16").table.row_end % 3 == 2
    assert CONFIG.num_heads == 4
    assert len(rows_of("bf16").weight) == 128
