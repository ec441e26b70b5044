"""Contexts as an engine keeps them, against hashing each whole sequence at once."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from modules import CONFIG, construct
from ngram_ple import ConfigError, NGramConfig, NGramEmbedding, NGramHistory, padded_batch
from ngram_ple import history as history_module
from scheduler import EOS, VOCAB, Scheduler

SLOTS, BUDGET, PADDED = 6, 40, 8


def embedding_of(device: torch.device, ngram_size: int) -> NGramEmbedding:
    config = NGramConfig(
        vocab_size=VOCAB, ple_embed_dim=(ngram_size - 1) * 16, eos_token_id=EOS, ple_layer_ids=(2,),
        heads_per_ngram=1, ngram_size=ngram_size, ngram_vocab_size_base=10_000,
    )  # fmt: skip
    return NGramEmbedding(config, placement="cpu" if device.type == "cpu" else "device")


def run(embedding: NGramEmbedding, device: torch.device, steps: int, seed: int, captured: bool) -> int:
    """Drive a history through the scheduler's steps; every finished request is compared."""
    rng = random.Random(seed)
    scheduler = Scheduler(rng, SLOTS, BUDGET)
    history = NGramHistory(embedding.config.ngram_size, SLOTS, EOS, device=device)
    slots = torch.full((PADDED,), -1, device=device)
    bounds = torch.zeros(PADDED + 1, dtype=torch.int32, device=device)
    tokens = torch.zeros(BUDGET, dtype=torch.int32, device=device)
    accepted = torch.zeros(PADDED, dtype=torch.int32, device=device)
    ids = torch.empty((BUDGET, embedding.config.num_heads), dtype=torch.int64, device=device)

    def step() -> None:
        embedding.compute_ngram_ids(tokens, bounds, history.context(slots), out=ids)
        history.advance(slots, tokens, bounds, accepted)

    graph = torch.cuda.CUDAGraph() if captured else None
    if graph is not None:
        step()  # all of it padding
        with torch.cuda.graph(graph):
            step()
    compared = 0
    for _ in range(steps):
        if rng.random() < 0.4:
            scheduler.arrive()
        if rng.random() < 0.05:
            scheduler.preempt()
        admitted = scheduler.admit()
        history.assign(
            [request.slot for request in admitted],
            [request.tokens[: request.computed] for request in admitted],
        )
        chunks = scheduler.chunks()
        flat = [token for chunk in chunks for token in chunk.tokens]
        ends = [0]
        for chunk in chunks:
            ends.append(ends[-1] + len(chunk.tokens))
        padding = PADDED - len(chunks)
        slots.copy_(torch.tensor([chunk.request.slot for chunk in chunks] + [-1] * padding))
        bounds.copy_(torch.tensor(ends + ends[-1:] * padding))
        tokens.copy_(torch.tensor(flat + [rng.randrange(-1, VOCAB) for _ in range(BUDGET - len(flat))]))
        accepted.copy_(torch.tensor([chunk.accepted for chunk in chunks] + [rng.randint(0, 3)] * padding))
        if graph is None:
            step()
        else:
            graph.replay()
        rows = ids.tolist()
        for chunk, begin in zip(chunks, ends, strict=False):
            scheduler.done(chunk, rows[begin : begin + len(chunk.tokens)])
        while scheduler.finished:
            request = scheduler.finished.pop()
            whole = torch.tensor(request.tokens, device=device)
            end = torch.tensor([0, len(whole)], device=device)
            fresh = torch.full((1, embedding.config.ngram_size - 1), EOS, device=device)
            expected = embedding.compute_ngram_ids(whole, end, fresh).tolist()
            assert request.seen == {position: expected[position] for position in request.seen}
            compared += len(request.seen)
    return compared


def test_ten_thousand_random_steps() -> None:
    device = torch.device("cpu")
    assert run(embedding_of(device, 3), device, 10_000, seed=1, captured=False) > 50_000


@pytest.mark.parametrize("ngram_size", [2, 5])
def test_other_orders(ngram_size: int, device: torch.device) -> None:
    assert run(embedding_of(device, ngram_size), device, 800, seed=ngram_size, captured=False) > 3000


@pytest.mark.needs_gpu
def test_ten_thousand_random_steps_in_a_graph() -> None:
    device = torch.device("cuda", 0)
    assert run(embedding_of(device, 3), device, 10_000, seed=2, captured=True) > 50_000


def contexts(history: NGramHistory, *slots: int) -> list[list[int]]:
    return history.context(torch.tensor(slots, device=history.tokens.device)).tolist()


def test_placeholders_and_what_follows_them_stay_out(device: torch.device) -> None:
    history = NGramHistory(3, 4, EOS, device=device)
    history.assign([0, 1, 3], [[], [5], [1, 2, 3]])
    slots = torch.tensor([3, -1, 0, 1], device=device)
    chunk = torch.tensor([10, -1, 12, 99, 20, 21, 22, -1, 30], device=device)
    history.advance(slots, chunk, torch.tensor([0, 3, 4, 8, 9], device=device))
    assert contexts(history, 3, 0, 1, 2, -1) == [[3, 10], [21, 22], [5, 30], [EOS, EOS], [EOS, EOS]]
    more = torch.tensor([2, 5, 1, 0], device=device)
    history.advance(slots, chunk.int(), torch.tensor([0, 3, 4, 8, 9], device=device).int(), more)
    assert contexts(history, 3, 0, 1) == [[10, 10], [22, 20], [5, 30]]


def test_forks_read_before_they_write(device: torch.device) -> None:
    history = NGramHistory(3, 3, EOS, device=device, dtype=torch.int32)
    history.assign([0, 1, 2], [[1, 2], [3, 4], [5, 6]])
    history.copy(torch.tensor([1, 0, 0], device=device), torch.tensor([0, 1, 2], device=device))
    assert contexts(history, 0, 1, 2) == [[3, 4], [1, 2], [1, 2]]
    out = torch.empty((2, 2), dtype=torch.int32, device=device)
    assert history.context(torch.tensor([2, 0], device=device), out=out) is out
    assert out.tolist() == [[1, 2], [3, 4]]


@pytest.mark.needs_gpu
def test_nothing_waits_for_the_device() -> None:
    history = NGramHistory(3, 4, EOS, device="cuda")
    slots, bounds = torch.tensor([1, 2], device="cuda"), torch.tensor([0, 2, 5], device="cuda")
    chunk, accepted = torch.arange(5, device="cuda"), torch.tensor([2, 1], device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        history.assign([1, 2], [[3], [4, 5, 6]])
        got = history.context(slots)
        history.advance(slots, chunk, bounds, accepted)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert got.tolist() == [[EOS, 3], [5, 6]]
    assert contexts(history, 1, 2) == [[0, 1], [6, 2]]


def test_what_is_refused() -> None:
    for options, said in (
        ((1, 4, 0), "ngram_size must be an integer of at least 2, got 1"),
        ((3, 0, 0), "max_requests must be an integer of at least 1, got 0"),
        ((3, 4, -1), "eos_token_id must be an integer of at least 0, got -1"),
    ):
        with pytest.raises(ConfigError, match=said):
            NGramHistory(*options)
    with pytest.raises(ConfigError, match=r"dtype must be torch.int32 or torch.int64, got torch.float32"):
        NGramHistory(3, 4, 0, dtype=torch.float32)
    history = NGramHistory(3, 4, EOS)
    for slots, tokens, said in (
        ([4], [[]], r"slots must be within 0\.\.3, got 4"),
        ([-1], [[]], r"slots must be within 0\.\.3, got -1"),
        ([1, 1], [[], []], r"slots must not repeat, got \[1, 1\]"),
        ([1], [], "histories must be one for each of the 1 slots, got 0"),
        ([1], [[4, -1]], r"histories must hold accepted tokens only, got \[4, -1\] at the end of one"),
        (torch.tensor([1, 1]), [[], []], r"slots must not repeat, got \[1, 1\]"),
        ([1.5], [[]], r"slots must be integers, got \[1.5\]"),
        ([1], [[4.0, 5]], r"histories must be integers, got \[4.0, 5\]"),
        ([1], ["ab"], "histories must be integers, got 'ab'"),
    ):
        with pytest.raises(ConfigError, match=said):
            history.assign(slots, tokens)
    with pytest.raises(
        ConfigError, match="query_start_loc must have one element more than the 2 slots, got 2"
    ):
        history.advance(torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([0, 1]))
    two, bounds, chunk = torch.tensor([0, 1]), torch.tensor([0, 1, 2]), torch.tensor([1, 2])
    with pytest.raises(
        ConfigError, match="num_accepted must have one element for each of the 2 slots, got 1"
    ):
        history.advance(two, chunk, bounds, torch.tensor([1]))
    with pytest.raises(ConfigError, match="input_ids must be an int32 or int64 tensor"):
        history.advance(two, chunk.float(), bounds)
    with pytest.raises(ConfigError, match=r"slots must be an int32 or int64 tensor \[n\], got torch.float32"):
        history.context(two.float())
    with pytest.raises(ConfigError, match=r"slots must be an int32 or int64 tensor \[n\], got \[0\]"):
        history.context([0])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="target must have one slot for each of the 2 sources, got 1"):
        history.copy(two, torch.tensor([2]))
    for given in ([0, 4], [9, 1]):
        with pytest.raises(ConfigError, match=rf"slots must be within 0\.\.3, got {max(given)}"):
            history.context(torch.tensor(given))
    with pytest.raises(ConfigError, match=r"slots must not repeat, got \[1, 1\]"):
        history.advance(torch.tensor([1, 1]), chunk, bounds)
    with pytest.raises(ConfigError, match=r"slots must not repeat, got \[3, 3\]"):
        history.copy(two, torch.tensor([3, 3]))
    for given in ([0, 2, 1], [0, 1, 3], [-1, 1, 2]):
        with pytest.raises(ConfigError, match="query_start_loc must rise from 0 or more to 2"):
            history.advance(two, chunk, torch.tensor(given))
    assert history.tokens.eq(EOS).all()
    assert repr(history) == (
        "NGramHistory(ngram_size=3, max_requests=4, eos_token_id=248044, device='cpu', dtype=torch.int64)"
    ).replace("248044", str(EOS))


def test_a_gpu_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device 'cuda:1' needs a GPU that torch can use, got none"):
        NGramHistory(3, 4, EOS, device="cuda:1")


def test_what_only_a_gpu_sees_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "_is_readable", lambda tensor: False)
    history = NGramHistory(3, 4, EOS)
    history.assign([0, 1, 3], [[1, 2], [3, 4], [5, 6]])
    assert history.context(torch.tensor([4, 99, 1])).tolist() == [[EOS, EOS], [EOS, EOS], [3, 4]]
    history.advance(torch.tensor([0, 99, 1]), torch.tensor([7, 8]), torch.tensor([0, 1, 50, 20]))
    assert contexts(history, 0, 1, 3) == [[2, 7], [3, 4], [5, 6]]
    history.copy(torch.tensor([0, 1]), torch.tensor([4, 77]))
    assert contexts(history, -1) == [[EOS, EOS]]


def test_histories_of_any_integers() -> None:
    history = NGramHistory(3, 4, EOS)
    history.assign(torch.tensor([2, 0]), torch.tensor([[1, 2, 3], [4, 5, 6]]))  # type: ignore[arg-type]
    assert contexts(history, 2, 0) == [[2, 3], [5, 6]]


def test_padding_stays_eos_whatever_is_copied_to_it(device: torch.device) -> None:
    history = NGramHistory(3, 3, EOS, device=device)
    history.assign([0, 1], [[1, 2], [3, 4]])
    history.copy(torch.tensor([0, 1, 0], device=device), torch.tensor([2, -1, -1], device=device))
    assert contexts(history, 0, 1, 2, -1) == [[1, 2], [3, 4], [1, 2], [EOS, EOS]]


def test_padded_batches(device: torch.device) -> None:
    """Left and right padding, masks of any dtype, contexts: as each request alone."""
    module = construct(device)
    tokens = torch.tensor([[1, 2, 7, 4], [5, 6, 8, 9]], device=device)
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]], device=device)
    alone = [torch.tensor([2, 7, 4], device=device), torch.tensor([5, 6, 8], device=device)]
    for kind in (torch.bool, torch.int64, torch.float32):
        batch = padded_batch(tokens.int(), mask.to(kind), ngram_size=3, eos_token_id=CONFIG.eos_token_id)
        ids = module.compute_ngram_ids(*batch).view(2, 4, -1)
        for row, request, real in zip(ids, alone, mask.bool(), strict=True):
            end, fresh = torch.tensor([0, 3], device=device), torch.full((1, 2), 7, device=device)
            assert torch.equal(row[real], module.compute_ngram_ids(request, end, fresh))
    begun = torch.tensor([[1, 2], [3, 4]], device=device)
    flat, bounds, context = padded_batch(tokens, ngram_size=3, eos_token_id=7, ngram_context=begun)
    assert flat.tolist() == [1, 2, 7, 4, 5, 6, 8, 9]
    assert bounds.tolist() == [0, 4, 8]
    assert context is begun


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_ids": torch.ones(3).long()}, r"input_ids must be \[B, S\], got \[3\]"),
        ({"input_ids": torch.ones(2, 3)}, "input_ids must be int32 or int64, got torch.float32"),
        ({"ngram_size": 1}, "ngram_size must be at least 2, got 1"),
        (
            {"attention_mask": torch.ones(2, 4)},
            r"attention_mask must have the shape \[2, 3\] of input_ids, got",
        ),
        ({"ngram_context": torch.ones(2, 3)}, r"ngram_context must be \[2, 2\], got \[2, 3\]"),
    ],
)
def test_padded_batches_that_do_not_fit(change: dict[str, Any], said: str) -> None:
    options = {"input_ids": torch.ones(2, 3).long(), "ngram_size": 3, "eos_token_id": 7, **change}
    with pytest.raises(ConfigError, match=said):
        padded_batch(**options)  # type: ignore[arg-type]
