"""What ranks with a GPU each do in the tests of ETP."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from etp_tasks import make_batch
from modules import CONFIG, loaded, rows_of, tensors_of
from ngram_ple import NGramEmbedding
from ngram_ple.parallel import EtpGroup, ShardedTable

MOST = 300


def both(
    group: dist.ProcessGroup,
    format: str,
    exchange: str,
    placement: str,
    slot: int | None = None,
    **options: Any,
) -> tuple[NGramEmbedding, NGramEmbedding]:
    """The module over the group, and the same on this rank alone."""
    etp = EtpGroup(group, exchange=exchange, slot_tokens=slot)
    module = NGramEmbedding(CONFIG, format=format, placement=placement, etp=etp, **options)
    module.load_weights(tensors_of(rows_of(format)).items())
    module.finish_loading()
    return module, loaded(torch.device("cuda"), format)


def on_gpu(seed: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids, bounds, context = make_batch(seed, tokens)
    return ids.cuda(), bounds.cuda(), context.cuda()


def counts_of(step: int, ranks: int) -> list[int]:
    """Tokens of each rank in a step: uneven, often none."""
    rng = random.Random(step)
    return [rng.choice([0, 1, rng.randint(0, 20), rng.randint(0, MOST)]) for _ in range(ranks)]


def random_steps(
    group: dist.ProcessGroup, format: str, exchange: str, placement: str, steps: int, slot: int | None = None
) -> tuple[int, str]:
    """Steps that went wrong, and the exchange that was taken."""
    module, alone = both(group, format, exchange, placement, slot)
    rank, wrong = dist.get_rank(group), 0
    for step in range(steps):
        counts = counts_of(step, dist.get_world_size(group))
        batch = on_gpu(1000 * step + rank, counts[rank])
        rows = module(*batch, token_counts=counts if step % 2 else None)
        wrong += not torch.equal(rows.view(torch.uint8), alone(*batch).view(torch.uint8))
        ids = alone.compute_ngram_ids(*batch)
        looked_up = module.sync_lookup(ids, token_counts=counts)
        wrong += not torch.equal(looked_up.view(torch.uint8), alone.sync_lookup(ids).view(torch.uint8))
    assert isinstance(module._rows, ShardedTable)
    return wrong, module._rows.last_exchange


def replayed(group: dist.ProcessGroup, format: str, exchange: str) -> tuple[int, str]:
    """Steps of a captured graph that went wrong, and the exchange."""
    module, alone = both(group, format, exchange, "device", slot=MOST)
    rank = dist.get_rank(group)
    tokens = 40 + rank  # uneven, fixed by the graph
    held = on_gpu(0, tokens)
    module(*held)  # communicators connect at their first use
    graph = torch.cuda.CUDAGraph()
    bounds = torch.tensor([0, 7, tokens], device="cuda")
    context = torch.tensor([[7, 7], [1, 2]], device="cuda")
    with torch.cuda.graph(graph):
        rows = module(held[0], bounds, context)
    wrong = 0
    for seed in range(20):
        held[0].copy_(on_gpu(seed + 50 * rank, tokens)[0])
        graph.replay()
        expected = alone(held[0], bounds, context)
        wrong += not torch.equal(rows.view(torch.uint8), expected.view(torch.uint8))
    assert isinstance(module._rows, ShardedTable)
    return wrong, module._rows.last_exchange


def captured_exchange(group: dist.ProcessGroup) -> str:
    """What a capture of the exchange by sizes says."""
    module, _ = both(group, "bf16", "exchange", "device")
    batch = on_gpu(0, 10)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            module(*batch)
    except Exception as error:
        return str(error)
    return "no error"


def prefetched(group: dist.ProcessGroup, exchange: str, capture: bool) -> int:
    """Steps of a pinned table that went wrong, two prefetches under way and lookups between."""
    module, alone = both(group, "fp8", exchange, "pinned", slot=MOST, max_tokens=MOST, prefetch_depth=2)
    rank, wrong = dist.get_rank(group), 0

    def step(first: Any, second: Any) -> tuple[torch.Tensor, torch.Tensor]:
        module.start_prefetch(*first)
        module.start_prefetch(*second)
        module.sync_lookup(alone.compute_ngram_ids(*first))
        return module.finalize_prefetch(len(first[0])), module.finalize_prefetch(len(second[0]))

    if capture:
        first, second = on_gpu(rank, 30 + rank), on_gpu(rank + 2, 5)
        step(first, second)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows = step(first, second)
        for seed in range(10):
            first[0].copy_(on_gpu(seed + 9 * rank, 30 + rank)[0])
            graph.replay()
            pairs = zip(rows, (first, second), strict=True)
            wrong += sum(
                not torch.equal(got.view(torch.uint8), alone(*batch).view(torch.uint8))
                for got, batch in pairs
            )
        return wrong
    for number in range(30):
        counts = counts_of(number, dist.get_world_size(group))
        batches = on_gpu(number + 90 * rank, counts[rank]), on_gpu(number + 90 * rank + 45, 4 * rank)
        for rows, batch in zip(step(*batches), batches, strict=True):
            wrong += not torch.equal(rows.view(torch.uint8), alone(*batch).view(torch.uint8))
    return wrong


def loaded_again(group: dist.ProcessGroup) -> bool:
    """Whether a second load fills the same memory with what peers then read."""
    module, _ = both(group, "nvfp4", "peer", "device")
    address = module.table.slots.data_ptr()
    module.load_weights(tensors_of(rows_of("nvfp4", seed=5)).items())
    module.finish_loading()
    other = loaded(torch.device("cuda"), "nvfp4", seed=5)
    batch = on_gpu(dist.get_rank(group), 50)
    return torch.equal(module(*batch), other(*batch)) and module.table.slots.data_ptr() == address
