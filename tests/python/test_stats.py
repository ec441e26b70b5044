"""What an embedding counts, and what counting costs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from modules import batch, construct, loaded
from ngram_ple import LookupStats, NGramEmbedding, stats
from ngram_ple.tables import TableCounters

needs_gpu = pytest.mark.needs_gpu
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
TOKENS = 7  # of the batch
HEADS = 4


def distinct_share(module: NGramEmbedding, inputs: Any) -> float:
    ids = module.compute_ngram_ids(*inputs)
    return ids.unique().numel() / ids.numel()


def test_calls_tokens_and_rows(device: torch.device) -> None:
    module, inputs = loaded(device), batch(device)
    assert module.stats() == LookupStats()
    for _ in range(3):
        module(*inputs)
    module.sync_lookup(module.compute_ngram_ids(*inputs)[:5])
    module.start_prefetch(*inputs)  # nothing here
    assert module.stats() == LookupStats(
        calls=4, tokens=26, rows=104, ways={"cpu" if device == CPU else "device": 4}
    )
    module.reset_stats()
    assert module.stats() == LookupStats()


def test_in_detail(device: torch.device) -> None:
    module, inputs = loaded(device), batch(device)
    module(*inputs)
    module.set_detailed_stats(True)
    for _ in range(100):
        module(*inputs)
    module.set_detailed_stats(True)  # changes nothing
    found = module.stats()
    assert (found.calls, found.tokens, found.rows) == (100, 700, 2800)
    assert found.distinct_share == pytest.approx(distinct_share(module, inputs))
    assert list(found.seconds) == ["embed"]
    assert 0 < found.seconds["embed"] < 60
    module.sync_lookup(torch.zeros((0, HEADS), dtype=torch.int64, device=device))
    module.sync_lookup(torch.zeros((5, HEADS), dtype=torch.int64, device=device))
    assert module.stats().distinct_share == pytest.approx((100 * 28 * found.distinct_share + 1) / 2820)
    assert set(module.stats().seconds) == {"embed", "lookup"}
    module.reset_stats()
    module(*inputs)
    assert module.stats().rows == 28
    module.set_detailed_stats(False)
    module(*inputs)
    assert module.stats() == LookupStats(1, 0, 7, 28, ways=module.stats().ways)


def test_failed_calls_leave_it_usable(device: torch.device) -> None:
    module, inputs = loaded(device), batch(device)
    module.set_detailed_stats(True)
    with pytest.raises(RuntimeError, match="query_start_loc"):
        module(inputs[0], inputs[1].float(), inputs[2])
    module(*inputs)
    assert module.stats().tokens == TOKENS


def test_tables_may_tell_more() -> None:
    module, inputs = loaded(CPU), batch(CPU)
    told = TableCounters({"staged": 3, "ordered": 1}, 500, {"gather": 2.0})
    module.table.counters = lambda: told  # type: ignore[method-assign]
    module.reset_stats()
    module(*inputs)
    told = TableCounters({"staged": 5, "ordered": 1}, 700, {"gather": 2.5})
    found = module.stats()
    assert (found.ways, found.bus_bytes, found.seconds) == ({"staged": 2}, 200, {"gather": 0.5})
    assert found.rows == 28


def test_compiled_programs_count_when_they_run() -> None:
    module, inputs = loaded(CPU), batch(CPU)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for _ in range(3):
        compiled(*inputs)
    assert module.stats().calls == 3


def test_modules_on_meta_count_nothing() -> None:
    with torch.device("meta"):
        module = construct(CPU)
    assert module.stats() == LookupStats()


def test_it_costs_little() -> None:
    """Not a time but the work: a few calls of Python a batch, none of them to torch."""
    module, calls = loaded(CPU), []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        with module._watch.batch("embed", 3, lambda: torch.empty(0)):
            pass
    finally:
        sys.setprofile(None)
    assert len(calls) <= 4, calls


def test_ranges_show_in_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_RANGES", True)
    module, inputs = loaded(CPU), batch(CPU)
    with torch.profiler.profile() as profile:
        module(*inputs)
    named = {event.key for event in profile.key_averages()}
    assert torch.cuda.is_available() or "ngram_ple.embed" in named
    assert module.stats().calls == 1


@needs_gpu
def test_pinned_tables_and_prefetches() -> None:
    module, inputs = loaded(CUDA, "nvfp4", placement="pinned", max_tokens=64), batch(CUDA)
    module.reset_stats()
    module(*inputs)
    module.start_prefetch(*inputs)
    module(*inputs)  # takes the prefetch
    found = module.stats()
    assert (found.calls, found.tokens, found.rows) == (2, 14, 56)
    assert sum(found.ways.values()) == 2
    if found.ways == {"zero-copy": 2}:
        assert found.bus_bytes == 56 * (16 + 2)
    module.set_detailed_stats(True)
    module.start_prefetch(*inputs)
    module.finalize_prefetch(TOKENS)
    assert {"start", "wait"} <= set(module.stats().seconds)


@needs_gpu
@pytest.mark.parametrize("placement", ["device", "pinned"])
def test_captures_and_replays(placement: str) -> None:
    module, inputs = loaded(CUDA, placement=placement, max_tokens=64), batch(CUDA)
    share = distinct_share(module, inputs)

    def captured(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph

    graph = captured(lambda: module(*inputs))
    graph.replay()
    found = module.stats()
    assert (found.calls, found.captured_calls, found.rows) == (0, 1, 0)
    module.set_detailed_stats(True)
    graph = captured(lambda: module(*inputs))
    module(*inputs)
    for _ in range(5):
        graph.replay()
    found = module.stats()
    assert (found.calls, found.captured_calls, found.rows) == (6, 1, 168)
    assert found.distinct_share == pytest.approx(share)


@needs_gpu
def test_nothing_waits_for_the_gpu() -> None:
    module, inputs = loaded(CUDA), batch(CUDA)
    module.set_detailed_stats(True)
    module(*inputs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(200):
            module(*inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert module.stats().calls == 201
