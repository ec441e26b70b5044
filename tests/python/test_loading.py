"""NGramEmbedding takes its table: any order, again, incomplete, with buffers of its own."""

from __future__ import annotations

import random
from pathlib import Path

import checkpoints
import pytest
import torch
from batches import FORMATS
from modules import CONFIG, batch, construct, loaded, rows_of, tensors_of
from ngram_ple import CheckpointError, ConfigError, HashPlan, NGramEmbedding, NgramPleError, NgramPleWarning
from reference import assert_same


@pytest.mark.parametrize("format", FORMATS)
def test_tensors_come_in_any_order_and_number_of_calls(format: str, device: torch.device) -> None:
    names = tensors_of(rows_of(format))
    module = construct(device, format)
    items = random.Random(1).sample(sorted(names.items()), len(names))
    filled = set()
    for item in items:
        filled |= module.load_weights(iter([item]))
    module.finish_loading()
    kinds = {"fp8": {"weight", "weight_scale"}, "fp8-rowwise": {"weight", "weight_scale"}}
    kinds["nvfp4"] = {"weight", "weight_scale", "weight_scale_2"}
    assert filled == {f"ngram_embedding.{leaf}" for leaf in kinds.get(format, {"weight"})}
    assert_same(module.table.slots.cpu(), rows_of(format).slots)


@pytest.mark.parametrize("format", FORMATS)
def test_loading_again_fills_the_same_memory(format: str, device: torch.device) -> None:
    module = loaded(device, format)
    tensors = [module.table.slots, module.table.global_scale, *module.buffers()]
    addresses = [tensor.data_ptr() for tensor in tensors if tensor is not None]
    module.load_weights(tensors_of(rows_of(format, 1)).items())
    module.finish_loading()
    tensors = [module.table.slots, module.table.global_scale, *module.buffers()]
    assert [tensor.data_ptr() for tensor in tensors if tensor is not None] == addresses
    ids = module.compute_ngram_ids(*batch(device)).cpu()
    expected = rows_of(format, 1).expected(ids, "bf16")
    assert_same(module(*batch(device)).cpu(), expected.flatten(1))


def test_a_missing_shard_is_named_and_can_follow(device: torch.device) -> None:
    module = construct(device)
    named = tensors_of(rows_of("bf16"))
    late = named.pop("ngram_embedding.shard_3.weight")
    module.load_weights(named.items())
    with pytest.raises(CheckpointError, match=r"ngram_embedding\.shard_3\.weight missing"):
        module.finish_loading()
    with pytest.raises(NgramPleError, match="not loaded"):
        module(*batch(device))
    module.load_weights([("ngram_embedding.shard_3.weight", late)])
    module.finish_loading()
    assert_same(module.table.slots.cpu(), rows_of("bf16").slots)


def test_nothing_is_served_before_it_is_loaded(device: torch.device) -> None:
    module = construct(device)
    ids = module.compute_ngram_ids(*batch(device))  # hashing needs no table
    for call in (lambda: module(*batch(device)), lambda: module.sync_lookup(ids)):
        with pytest.raises(NgramPleError, match="the table is not loaded"):
            call()
    with pytest.raises(NgramPleError, match="finish_loading needs load_weights first"):
        module.finish_loading()
    assert module.load_weights([]) == set()
    with pytest.raises(NgramPleError, match="finish_loading needs load_weights first"):
        module.finish_loading()


def test_a_load_of_nothing_gives_nothing_up(device: torch.device) -> None:
    module = loaded(device)
    assert module.load_weights(iter([])) == set()
    module(*batch(device))


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_was_never_filled(scale: float, device: torch.device) -> None:
    module = construct(device, "fp8")
    named = tensors_of(rows_of("fp8"))
    named["ngram_embedding.weight_scale"] = torch.tensor([scale])
    with pytest.raises(CheckpointError, match="finite"):
        module.load_weights(named.items())


def test_stored_buffers_win(device: torch.device) -> None:
    module = construct(device)
    named = tensors_of(rows_of("bf16"))
    named["layer_multipliers"] = torch.tensor([5, 7, 9])
    filled = module.load_weights(named.items())
    with pytest.warns(NgramPleWarning, match=r"layer_multipliers .*\[5, 7, 9\], but the configuration gives"):
        module.finish_loading()
    assert "layer_multipliers" in filled
    assert module.layer_multipliers.tolist() == [5, 7, 9]
    ids, bounds, contexts = batch(device)
    mixed = (ids[0] * 5) ^ (contexts[0, 1] * 7)
    got = module.compute_ngram_ids(ids, bounds, contexts)[0, 0]
    assert got == torch.remainder(mixed, module.ngram_heads_vocab_sizes[0])


def test_stored_sizes_that_need_another_table(device: torch.device) -> None:
    stored = {"ngram_heads_vocab_sizes": [101, 103, 107, 109], "ngram_heads_offsets": [0, 101, 204, 311]}
    module = construct(device)
    named = tensors_of(rows_of("bf16"))
    named |= {name: torch.tensor(values) for name, values in stored.items()}
    module.load_weights(named.items())
    with (
        pytest.warns(NgramPleWarning),
        pytest.raises(ConfigError, match="need a table of 512 rows, got one of 128"),
    ):
        module.finish_loading()
    with pytest.raises(NgramPleError, match="not loaded"):
        module(*batch(device))
    with pytest.warns(NgramPleWarning):
        plan = HashPlan.from_config(CONFIG).with_buffers(stored)
    assert construct(device, plan=plan).table.slots.shape[0] == 512


def test_from_pretrained_takes_the_table_that_stored_sizes_need(tmp_path: Path, device: torch.device) -> None:
    weight = torch.randn(512, 32).bfloat16()
    tensors = {
        "ngram_embedding.weight": weight,
        "ngram_heads_vocab_sizes": torch.tensor([101, 103, 107, 109]),
        "ngram_heads_offsets": torch.tensor([0, 101, 204, 311]),
    }
    folder = checkpoints.save_tensors(tmp_path / "model", tensors, CONFIG.to_dict())
    with pytest.warns(NgramPleWarning, match="the stored values are used"):
        module = NGramEmbedding.from_pretrained(folder, placement="cpu" if device.type == "cpu" else "device")
    ids = module.compute_ngram_ids(*batch(device)).cpu()
    assert int(ids.max()) >= 311
    assert_same(module(*batch(device)).cpu(), weight[ids].flatten(1))


def test_a_load_that_failed_can_be_started_over(device: torch.device) -> None:
    module = construct(device)
    named = tensors_of(rows_of("bf16"))
    shard = named["ngram_embedding.shard_0.weight"]
    with pytest.raises(CheckpointError, match="shard_0"):
        module.load_weights([("ngram_embedding.shard_0.weight", shard)] * 2)
    with pytest.raises(NgramPleError, match="load_weights first"):
        module.finish_loading()
    module.load_weights(named.items())
    module.finish_loading()
    assert_same(module.table.slots.cpu(), rows_of("bf16").slots)


def test_a_load_without_buffers_forgets_those_of_the_last_one(device: torch.device) -> None:
    module = construct(device)
    derived = module.layer_multipliers.tolist()
    other = torch.tensor([value + 2 for value in derived])
    module.load_weights([("layer_multipliers", other), *tensors_of(rows_of("bf16")).items()])
    with pytest.warns(NgramPleWarning, match="layer_multipliers"):
        module.finish_loading()
    assert module.layer_multipliers.tolist() == other.tolist()
    module.load_weights(tensors_of(rows_of("bf16")).items())
    module.finish_loading()
    assert module.layer_multipliers.tolist() == derived


def test_export_refuses_to_bake_the_table_in(device: torch.device) -> None:
    module = loaded(device, "bf16")
    with pytest.raises(NgramPleError, match=r"torch\.export would copy the table"):
        torch.export.export(module, batch(device), strict=False)
