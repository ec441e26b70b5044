"""Weight refresh: loads that succeed and fail, one after another, into the same memory."""

from __future__ import annotations

import random

import pytest
import torch
from modules import CONFIG, batch, construct, rows_of, tensors_of
from ngram_ple import CheckpointError, ConfigError, NgramPleError
from reference import assert_same
from seeds import for_seeds

pytestmark = pytest.mark.filterwarnings("ignore::ngram_ple.NgramPleWarning")

SHARD = "ngram_embedding.shard_2.weight"
CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]


def spoil(named: Tensors, how: str) -> list[tuple[str, torch.Tensor]]:
    """Return what an engine hands over; `how` says what is wrong with it."""
    if how == "missing":
        del named[SHARD]
    elif how == "short":
        named[SHARD] = named[SHARD][1:]
    elif how == "unknown":
        named["ngram_embedding.bias"] = torch.zeros(3)
    elif how == "buffer too long":
        named["layer_multipliers"] = torch.arange(1, CONFIG.ngram_size + 2)
    elif how == "heads outside":
        named["ngram_heads_offsets"] = torch.full((CONFIG.num_heads,), 10**6)
    items = list(named.items())
    return [*items, items[0]] if how == "doubled" else items


HOWS = ["missing", "short", "unknown", "buffer too long", "heads outside", "doubled"]


@for_seeds(40)
def test_any_sequence_of_loads(rng: random.Random) -> None:
    format = rng.choice(["bf16", "fp8", "fp8-rowwise", "nvfp4"])
    module = construct(CPU, format)
    held = [module.table.slots, module.table.global_scale, *module.buffers()]
    addresses = [tensor.data_ptr() for tensor in held if tensor is not None]
    derived = [buffer.tolist() for buffer in module.buffers()]
    for seed in range(rng.randint(2, 6)):
        how = rng.choice(["", "", *HOWS])
        items = spoil(tensors_of(rows_of(format, seed)), how)
        rng.shuffle(items)
        scale = None if module.table.global_scale is None else module.table.global_scale.clone()

        def load(items: list[tuple[str, torch.Tensor]] = items) -> None:
            for cut in sorted({0, rng.randint(0, len(items)), len(items)}):
                module.load_weights(items[cut : cut + 1])
                del items[cut : cut + 1]
            module.load_weights(iter(items))
            module.finish_loading()

        if how:
            with pytest.raises((CheckpointError, ConfigError)):
                load()
            with pytest.raises(NgramPleError, match="not loaded"):
                module(*batch(CPU))
            if scale is not None and module.table.global_scale is not None:  # set last, with everything there
                assert_same(module.table.global_scale, scale)
            if how == "missing":  # it may still come: an engine that starts over says so by a doubled one
                with pytest.raises(CheckpointError, match="expected once"):
                    module.load_weights(items[:1] or [next(iter(tensors_of(rows_of(format, seed)).items()))])
        else:
            load()
            ids = module.compute_ngram_ids(*batch(CPU))
            assert_same(module(*batch(CPU)), rows_of(format, seed).expected(ids, "bf16").flatten(1))
        assert [buffer.tolist() for buffer in module.buffers()] == derived
        held = [module.table.slots, module.table.global_scale, *module.buffers()]
        assert [tensor.data_ptr() for tensor in held if tensor is not None] == addresses


@pytest.mark.parametrize("how", ["buffer too long", "heads outside"])
def test_wrong_buffers_end_the_load(how: str) -> None:
    module = construct(CPU, "fp8")
    module.load_weights(tensors_of(rows_of("fp8")).items())
    module.finish_loading()
    assert module.table.global_scale is not None
    scale = module.table.global_scale.clone()
    named = tensors_of(rows_of("fp8", 1))
    named["ngram_embedding.weight_scale"] = torch.tensor([0.125])
    module.load_weights(spoil(named, how))
    with pytest.raises(CheckpointError, match=r"layer_multipliers|ngram_heads_offsets"):
        module.finish_loading()
    assert_same(module.table.global_scale, scale)
    with pytest.raises(NgramPleError, match="load_weights first"):
        module.finish_loading()
    module.load_weights(tensors_of(rows_of("fp8", 2)).items())
    module.finish_loading()


@pytest.mark.needs_gpu
@pytest.mark.parametrize("format", ["bf16", "fp8", "nvfp4"])
def test_refresh_under_a_captured_graph(format: str) -> None:
    device = torch.device("cuda", 0)
    module = construct(device, format)
    module.load_weights(tensors_of(rows_of(format)).items())
    module.finish_loading()
    inputs = batch(device)
    module(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = module(*inputs)
    for seed in (1, 2):
        module.load_weights(tensors_of(rows_of(format, seed)).items())
        module.finish_loading()
        graph.replay()
        ids = module.compute_ngram_ids(*inputs).cpu()
        assert_same(result.cpu(), rows_of(format, seed).expected(ids, "bf16").flatten(1))
