"""One table over the GPUs of a host, by NCCL and by reading peers' memory: needs two GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import etp_gpu_tasks
import pytest
import torch
from batches import FORMATS
from etp_world import World

pytestmark = [
    pytest.mark.needs_gpu,
    pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="one GPU"),
]
RANKS = [0, 1]
STEPS = 200


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(2, backend="nccl")
    yield made
    made.stop()


@pytest.mark.parametrize("exchange", ["peer", "reduce", "exchange"])
@pytest.mark.parametrize("format", FORMATS)
def test_device_tables(world: World, format: str, exchange: str) -> None:
    answers = world.run(RANKS, etp_gpu_tasks.random_steps, format, exchange, "device", STEPS)
    assert answers == [(0, exchange)] * 2


def test_auto_on_one_host_is_peer(world: World) -> None:
    assert world.run(RANKS, etp_gpu_tasks.random_steps, "bf16", "auto", "device", 5) == [(0, "peer")] * 2


@pytest.mark.parametrize("exchange", ["reduce", "exchange"])
@pytest.mark.parametrize("format", ["bf16", "nvfp4"])
def test_pinned_tables(world: World, format: str, exchange: str) -> None:
    answers = world.run(RANKS, etp_gpu_tasks.random_steps, format, exchange, "pinned", 40)
    assert answers == [(0, exchange)] * 2


@pytest.mark.parametrize("exchange", ["peer", "reduce"])
@pytest.mark.parametrize("format", ["bf16", "nvfp4"])
def test_replayed_graphs(world: World, format: str, exchange: str) -> None:
    assert world.run(RANKS, etp_gpu_tasks.replayed, format, exchange) == [(0, exchange)] * 2


def test_sizes_cannot_be_captured(world: World) -> None:
    for text in world.run(RANKS, etp_gpu_tasks.captured_exchange):
        assert "which a graph capture cannot" in text


@pytest.mark.parametrize(("exchange", "capture"), [("reduce", False), ("exchange", False), ("reduce", True)])
def test_prefetches(world: World, exchange: str, capture: bool) -> None:
    assert world.run(RANKS, etp_gpu_tasks.prefetched, exchange, capture) == [0, 0]


def test_a_table_that_peers_read_is_loaded_again(world: World) -> None:
    assert world.run(RANKS, etp_gpu_tasks.loaded_again) == [True, True]
