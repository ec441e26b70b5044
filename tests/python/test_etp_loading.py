"""Loading over a group: each rank its rows, and a rank that fails fails all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import etp_tasks
import pytest
import torch
from checkpoints import FORMATS, make_source, small_config
from etp_tasks import make_batch
from etp_world import World
from modules import loaded
from ngram_ple import CheckpointError, ExchangeError, NGramEmbedding
from reference import assert_same


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(3)
    yield made
    made.stop()


def checkpoint(folder: Path, format: str = "bf16") -> Path:
    return make_source(format, rows=128).write(folder, small_config())


@pytest.mark.parametrize("format", FORMATS)
def test_each_rank_reads_its_rows(world: World, tmp_path: Path, format: str) -> None:
    folder = checkpoint(tmp_path / "c", format)  # shards of 26 rows, ranks of 43
    whole = NGramEmbedding.from_pretrained(folder, placement="cpu")
    answers = world.run(range(3), etp_tasks.from_pretrained, [str(folder)] * 3, "exchange")
    for rank, answer in enumerate(answers):
        start = answer["start"]
        assert start == 43 * rank
        assert torch.equal(answer["slots"], whole.table.slots[start : start + 43])
        assert_same(answer["rows"], whole(*make_batch(3, 20 + rank)))


@pytest.mark.parametrize("fault", ["truncated", "no config", "bad scale"])
def test_a_broken_file_of_one_rank_fails_all(world: World, tmp_path: Path, fault: str) -> None:
    good = checkpoint(tmp_path / "good", "fp8-rowwise")
    bad = tmp_path / "bad"
    shutil.copytree(good, bad)
    if fault == "truncated":
        file = sorted(bad.glob("*.safetensors"))[0]
        file.write_bytes(file.read_bytes()[:-1])
    elif fault == "no config":
        (bad / "config.json").unlink()
    else:  # found only while rows are read
        source = make_source("fp8-rowwise", rows=128)
        assert source.weight_scale is not None
        source.weight_scale[100] = float("nan")
        shutil.rmtree(bad)
        source.write(bad, small_config())
    errors = world.answers(range(3), etp_tasks.from_pretrained, [str(good), str(good), str(bad)], "reduce")
    assert not isinstance(errors[2], ExchangeError)
    for error in errors[:2]:
        assert isinstance(error, ExchangeError)
        assert f"failed on rank 2 of the ETP group: {type(errors[2]).__name__}: {errors[2]}" in str(error)
    # nobody waits for anybody: the next load works
    world.run(range(3), etp_tasks.from_pretrained, [str(good)] * 3, "reduce")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("unknown", "shard_0.wrong: unknown tensor"),
        ("missing", "shard_4.weight missing"),
        ("other scale", "must agree"),
    ],
)
def test_a_load_that_fails_on_one_rank_fails_on_all(world: World, fault: str, message: str) -> None:
    errors = world.answers(range(3), etp_tasks.load_with, fault, False)
    for rank, error in enumerate(errors):
        assert isinstance(error, CheckpointError if rank == 2 and fault != "other scale" else ExchangeError)
        assert message in str(error)
    expected = loaded(torch.device("cpu"), "fp8")(*make_batch(5, 9))
    for rows in world.run(range(3), etp_tasks.load_with, fault, True):
        assert_same(rows, expected)
