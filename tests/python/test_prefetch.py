"""Prefetches from pinned tables: what comes out, what is refused, what may happen meanwhile."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from batches import FORMATS
from modules import construct, loaded, rows_of
from ngram_ple import ConfigError, NGramEmbedding, NgramPleError, PrefetchError
from reference import assert_same

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
CUDA = torch.device("cuda", 0)
needs_gpu = pytest.mark.needs_gpu


def pinned(format: str = "bf16", **options: Any) -> NGramEmbedding:
    options.setdefault("max_tokens", 64)
    return loaded(CUDA, format, placement="pinned", **options)


def inputs(seed: int, tokens: int = 12) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 1000, (tokens,), generator=generator)
    context = torch.randint(0, 1000, (2, 2), generator=generator)
    return ids.to(CUDA), torch.tensor([0, tokens // 3, tokens], device=CUDA), context.to(CUDA)


def expected(module: NGramEmbedding, batch: Inputs) -> torch.Tensor:
    ids = module.compute_ngram_ids(*batch).cpu()
    return rows_of(module.table.format.name).expected(ids, "bf16").flatten(1).to(CUDA)


@contextmanager
def late_side_stream() -> Iterator[None]:
    """What is prefetched begins some 50 ms late."""
    from ngram_ple.side_stream import side_streams

    with torch.cuda.stream(side_streams(CUDA).running):
        torch.cuda._sleep(100_000_000)
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_tokens": 0}, "max_tokens must be a positive int, got 0"),
        ({"max_tokens": 1.5}, "max_tokens must be a positive int, got 1.5"),
        ({"max_tokens": True}, "max_tokens must be a positive int, got True"),
        ({"prefetch_depth": 0}, "prefetch_depth must be a positive int, got 0"),
        ({"prefetch_depth": None}, "prefetch_depth must be a positive int, got None"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        construct(torch.device("cpu"), **options)


def test_other_placements_have_no_prefetch(device: torch.device) -> None:
    module = loaded(device, max_tokens=4, prefetch_depth=2)
    assert not module.supports_prefetch
    batch = tuple(
        tensor.to(device) for tensor in (torch.arange(3), torch.tensor([0, 3]), torch.ones(1, 2).long())
    )
    module.start_prefetch(*batch)
    module.drop_prefetch()
    with pytest.raises(PrefetchError, match="needs a placement with prefetch"):
        module.finalize_prefetch(3)


@needs_gpu
@pytest.mark.parametrize("format", FORMATS)
def test_a_prefetch_is_the_table_at_the_ids(format: str) -> None:
    module = pinned(format)
    assert module.supports_prefetch
    for seed, tokens in enumerate((12, 64, 1, 0, 33)):
        batch = inputs(seed, tokens)
        module.start_prefetch(*batch)
        assert_same(module.finalize_prefetch(tokens), expected(module, batch))


@needs_gpu
def test_inputs_may_be_overwritten_at_once() -> None:
    module, batch = pinned(), inputs(0)
    rows = expected(module, batch)
    with late_side_stream():
        module.start_prefetch(*batch)
        for tensor, other in zip(batch, inputs(1), strict=True):
            tensor.copy_(other)
        got = module.finalize_prefetch(12)
        assert_same(got, rows)


@needs_gpu
def test_results_are_memory_of_their_own() -> None:
    module, results, wanted = pinned(prefetch_depth=2), [], []
    for seed in range(6):
        batch = inputs(seed)
        wanted.append(expected(module, batch))
        with late_side_stream():
            module.start_prefetch(*batch)
            results.append(module.finalize_prefetch(12))
    for got, rows in zip(results, wanted, strict=True):
        assert_same(got, rows)
        assert got.untyped_storage().nbytes() == got.numel() * 2


@needs_gpu
def test_forward_consumes_what_was_started() -> None:
    module, batch, other = pinned(), inputs(0), inputs(1)
    module.start_prefetch(*batch)
    assert_same(module(*other), expected(module, batch))
    assert_same(module(*other), expected(module, other))
    module.start_prefetch(*batch)
    with pytest.raises(PrefetchError, match="must get the 12 tokens that were started, got 5"):
        module(*inputs(2, 5))
    assert_same(module(*inputs(2, 5)), expected(module, inputs(2, 5)))


@needs_gpu
def test_a_depth_of_prefetches_come_in_order() -> None:
    module, batches = pinned(prefetch_depth=3), [inputs(seed, 10 + seed) for seed in range(3)]
    for batch in batches:
        module.start_prefetch(*batch)
    with pytest.raises(
        PrefetchError, match="needs a free buffer, got 3 prefetches that were started and not"
    ):
        module.start_prefetch(*batches[0])
    for batch in batches:
        assert_same(module.finalize_prefetch(len(batch[0])), expected(module, batch))


@needs_gpu
def test_what_is_out_of_order_is_refused() -> None:
    module, batch = pinned(), inputs(0)
    with pytest.raises(PrefetchError, match="needs start_prefetch first, by the same thread, got none"):
        module.finalize_prefetch(12)
    module.start_prefetch(*batch)
    with pytest.raises(PrefetchError, match="needs a free buffer, got 1 prefetches"):
        module.start_prefetch(*batch)
    with pytest.raises(PrefetchError, match="must get the 12 tokens that were started, got 11; what this"):
        module.finalize_prefetch(11)
    with pytest.raises(PrefetchError, match="got none"):
        module.finalize_prefetch(12)
    module.start_prefetch(*batch)
    module.drop_prefetch()
    module.start_prefetch(*inputs(1))
    assert_same(module.finalize_prefetch(12), expected(module, inputs(1)))
    with pytest.raises(PrefetchError, match="takes max_tokens=64 tokens, got 65"):
        module.start_prefetch(*inputs(0, 65))
    with pytest.raises(RuntimeError, match="query_start_loc must be int32 or int64"):
        module.start_prefetch(batch[0], batch[1].float(), batch[2])
    module.start_prefetch(*batch)
    assert_same(module.finalize_prefetch(12), expected(module, batch))
    with pytest.raises(NgramPleError, match="not loaded"):
        construct(CUDA, placement="pinned").start_prefetch(*batch)


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    return graph, out


def step_of(module: NGramEmbedding, batch: Inputs) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        module.start_prefetch(*batch)
        torch.ones(1000, device=CUDA).cumsum(0)  # what the step computes meanwhile
        return module.finalize_prefetch(len(batch[0]))

    return step


@needs_gpu
@pytest.mark.parametrize("format", ["bf16", "nvfp4"])
def test_a_whole_step_in_a_graph(format: str) -> None:
    module, batch = pinned(format, prefetch_depth=2), inputs(0)
    graph, out = captured(step_of(module, batch))
    second, _ = captured(step_of(module, inputs(9, 7)))  # another capture of the same buffers
    for seed in range(200):
        for tensor, other in zip(batch, inputs(seed), strict=True):
            tensor.copy_(other)
        graph.replay()
        assert_same(out, expected(module, batch))
        second.replay()
    module.start_prefetch(*batch)  # outside, after and between
    graph.replay()
    assert_same(module.finalize_prefetch(12), expected(module, batch))


@needs_gpu
def test_prefetches_outside_are_safe_from_replays() -> None:
    module, inside, outside = pinned(), inputs(0), inputs(1)
    graph, _ = captured(step_of(module, inside))
    with late_side_stream():
        module.start_prefetch(*outside)
        graph.replay()
        rows = module.finalize_prefetch(12)
    assert_same(rows, expected(module, outside))


@needs_gpu
def test_prefetches_between_captured_pieces() -> None:
    module, batch = pinned(), inputs(0)
    state = torch.zeros(1000, device=CUDA)
    first, _ = captured(lambda: batch[0].add_(1).remainder_(1000))
    second, _ = captured(lambda: state.add_(1))
    for _ in range(5):
        first.replay()
        module.start_prefetch(*batch)
        second.replay()
        assert_same(module.finalize_prefetch(12), expected(module, batch))
    assert state[0] == 5


@needs_gpu
def test_buffers_must_exist_before_a_capture() -> None:
    module, batch = pinned(max_tokens=None, prefetch_depth=2), inputs(0)

    def refused(said: str, step: Callable[[], Any]) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            with pytest.raises(PrefetchError, match=said):
                step()
            return torch.zeros(1, device=CUDA)

        return run

    said = "inside a graph capture needs a buffer of 12 tokens, got one of 0: construct with max_tokens"
    captured(refused(said, lambda: module.start_prefetch(*batch)))
    module.start_prefetch(*batch)
    assert_same(module.finalize_prefetch(12), expected(module, batch))
    graph, out = captured(step_of(module, batch))
    graph.replay()
    assert_same(out, expected(module, batch))
    larger = inputs(3, 40)
    module.start_prefetch(*larger)  # grows outside, the graph keeps what it has
    captured(
        refused("both be inside one graph capture or both outside", lambda: module.finalize_prefetch(40))
    )
    module.start_prefetch(*larger)
    assert_same(module.finalize_prefetch(40), expected(module, larger))
    out.zero_()
    graph.replay()
    assert_same(out, expected(module, batch))


@needs_gpu
def test_threads_do_not_mix() -> None:
    module, failures = pinned(prefetch_depth=6), []
    wanted = {seed: expected(module, inputs(seed)) for seed in range(60)}
    torch.cuda.synchronize()

    def work(first: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for seed in range(first, first + 10):
                batch = inputs(seed)
                module.start_prefetch(*batch)
                got = module.finalize_prefetch(12)
                torch.cuda.current_stream().synchronize()
                if not torch.equal(got.view(torch.int16), wanted[seed].view(torch.int16)):
                    failures.append(seed)

    threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@needs_gpu
def test_a_thread_that_ends_gives_its_buffer_back() -> None:
    module = pinned()
    thread = threading.Thread(target=lambda: module.start_prefetch(*inputs(0)))
    thread.start()
    thread.join()
    with pytest.raises(PrefetchError, match="by the same thread, got none"):
        module.finalize_prefetch(12)
    module.start_prefetch(*inputs(1))
    assert_same(module.finalize_prefetch(12), expected(module, inputs(1)))


@needs_gpu
def test_layers_share_a_side_stream() -> None:
    layers = [pinned("bf16"), pinned("fp8")]
    batch = inputs(0)
    with late_side_stream():
        for layer in layers:
            layer.start_prefetch(*batch)
        for layer in layers:
            assert_same(layer.finalize_prefetch(12), expected(layer, batch))


@needs_gpu
def test_a_table_may_go_with_a_prefetch_in_flight() -> None:
    for _ in range(3):
        module = pinned(max_tokens=4096)
        batch = inputs(0, 4096)
        torch.cuda.synchronize()
        with late_side_stream():
            module.start_prefetch(*batch)
            del module
            gc.collect()
            others = [torch.full((4096, n), 7, dtype=torch.int32, device=CUDA) for n in (64, 8, 16)]
        assert all(bool((other == 7).all()) for other in others)
