"""A `transformers` Qwen4Exp model gives the same logits, to the bit, over this library's tables."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ngram_ple import ConfigError, NgramPleError, NgramPleWarning, ops
from ngram_ple.encoding import encode_rows
from reference import assert_same

pytest.importorskip("transformers", minversion="5.17")
modeling = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
configuration = pytest.importorskip("transformers.models.qwen4_exp.configuration_qwen4_exp")
from ngram_ple.integrations.transformers import (  # noqa: E402  (needs transformers)
    AcceleratedNGramEmbedding,
    accelerate,
    restore,
)

EOS, VOCAB = 7, 300
NAMES = ["model.layers.0.ple.ple_embedding", "model.layers.1.ple.ple_embedding"]
CONFIG = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_num_key_heads": 1, "linear_num_value_heads": 1, "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8, "num_experts_per_tok": 1, "num_experts": 2, "hc_count": 2,
    "hc_lowrank": 8, "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "ple_layer_ids": [1, 2], "ple_embed_dim": 64, "heads_per_ngram": 4, "ngram_vocab_size_base": 200,
    "split_ngram_parts": 3, "eos_token_id": EOS, "bos_token_id": 1, "pad_token_id": 0,
    "indexer_n_heads": 1, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
    "indexer_compress_ratio": 2, "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                        "mrope_section": [2, 1, 1]},
}  # fmt: skip

PLACES = [
    "cpu",
    pytest.param("device", marks=pytest.mark.needs_gpu),
    pytest.param("pinned", marks=pytest.mark.needs_gpu),
]
DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Everything here is tiny: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def device_of(placement: str) -> torch.device:
    return torch.device("cpu" if placement == "cpu" else "cuda")


def tiny_model(dtype: torch.dtype, device: torch.device, **changes: Any) -> Any:
    torch.manual_seed(0)
    model = modeling.Qwen4ExpForCausalLM(configuration.Qwen4ExpTextConfig(**{**CONFIG, **changes}))
    for name, parameter in model.named_parameters():  # large enough to matter, no zero convolution
        if "ngram_embedding" in name or "conv1d" in name:
            torch.nn.init.normal_(parameter)
    return model.to(device=device, dtype=dtype).eval()


class Cached:
    """Calls of a model that go on with its cache, under the name that its version has for it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache: Any = None

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        name = "cache" if hasattr(modeling.MoeModelOutputWithPast(), "cache") else "past_key_values"
        given = {} if self.cache is None else {name: self.cache}
        result = self.model(input_ids=tokens, attention_mask=mask, use_cache=True, **given)
        self.cache = result[name]
        logits: torch.Tensor = result.logits
        return logits


def tokens_of(seed: int, *shape: int) -> torch.Tensor:
    """Few different tokens, so that n-grams repeat, and EOS inside."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 30, shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.15, EOS, tokens)


def prefill(model: Any, device: torch.device) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(tokens_of(n, n, 11).to(device), use_cache=False).logits for n in (1, 3)]


def cached_decoding(model: Any, device: torch.device) -> list[torch.Tensor]:
    call, tokens = Cached(model), tokens_of(1, 2, 14).to(device)
    return [call(tokens[:, :9]), *(call(tokens[:, at : at + 1]) for at in range(9, 14))]


def one_token_prompt(model: Any, device: torch.device) -> list[torch.Tensor]:
    """Shorter than the context that the cache keeps."""
    call, tokens = Cached(model), tokens_of(2, 2, 5).to(device)
    return [call(tokens[:, at : at + 1]) for at in range(5)]


def padded_on_the_left(model: Any, device: torch.device) -> list[torch.Tensor]:
    call, tokens = Cached(model), tokens_of(3, 3, 10).to(device)
    mask = (torch.arange(10) >= torch.tensor([[0], [4], [9]])).long().to(device)
    real = mask[:, :8].bool()
    first = call(tokens[:, :8], mask[:, :8])[real]
    return [first, call(tokens[:, 8:9], mask[:, :9]), call(tokens[:, 9:], mask)]


def padded_on_the_right(model: Any, device: torch.device) -> list[torch.Tensor]:
    tokens = tokens_of(4, 3, 9).to(device)
    mask = (torch.arange(9) < torch.tensor([[9], [5], [1]])).long().to(device)
    return [Cached(model)(tokens, mask)[mask.bool()]]


def chunked_prefill(model: Any, device: torch.device) -> list[torch.Tensor]:
    call, tokens = Cached(model), tokens_of(5, 2, 16).to(device)
    return [call(chunk) for chunk in tokens.split([7, 5, 4], dim=1)]


def beam_reordering(model: Any, device: torch.device) -> list[torch.Tensor]:
    call, tokens = Cached(model), tokens_of(6, 3, 9).to(device)
    results = [call(tokens[:, :6])]
    for at, beams in ((6, [2, 2, 0]), (7, [1, 0, 0])):
        call.cache.reorder_cache(torch.tensor(beams, device=device))
        results.append(call(tokens[:, at : at + 1]))
    return results


CASES = (
    prefill, cached_decoding, one_token_prompt, padded_on_the_left, padded_on_the_right, chunked_prefill,
    beam_reordering,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("placement", PLACES)
def test_logits_are_the_same(placement: str, dtype: torch.dtype) -> None:
    device = device_of(placement)
    model = tiny_model(dtype, device)
    expected = [case(model, device) for case in CASES]
    replaced = accelerate(model, placement=placement)
    assert [entry.name for entry in replaced] == NAMES
    assert [entry.prefetched for entry in replaced] == [
        False,
        placement == "pinned",
    ]  # the first has no layer before
    for case, before in zip(CASES, expected, strict=True):
        for got, wanted in zip(case(model, device), before, strict=True):
            assert_same(got, wanted)
    assert restore(model) == NAMES
    for got, wanted in zip(cached_decoding(model, device), expected[1], strict=True):
        assert_same(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("placement", PLACES)
def test_generate(placement: str, dtype: torch.dtype) -> None:
    device = device_of(placement)
    model = tiny_model(dtype, device)
    prompt = tokens_of(8, 2, 6).to(device)
    greedy = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False}
    beams = {"max_new_tokens": 5, "do_sample": False, "num_beams": 2}
    expected = [model.generate(prompt, **options) for options in (greedy, beams)]
    assert expected[0].shape == (2, 70)
    accelerate(model, placement=placement)
    assert torch.equal(model.generate(prompt, **greedy), expected[0])
    assert torch.equal(model.generate(prompt, **beams), expected[1])


def test_the_table_is_the_weight_s_memory(device: torch.device) -> None:
    model = tiny_model(torch.bfloat16, device)
    weights = [model.get_parameter(f"{name}.ngram_embedding.weight") for name in NAMES]
    addresses = [weight.data_ptr() for weight in weights]
    replaced = accelerate(model)
    assert [entry.placement for entry in replaced] == [("cpu" if device.type == "cpu" else "device")] * 2
    assert all(entry.shares_weight for entry in replaced)
    modules = [model.get_submodule(name) for name in NAMES]
    assert [module.embedding.table.slots.data_ptr() for module in modules] == addresses
    restore(model)
    assert model.get_parameter(f"{NAMES[0]}.ngram_embedding.weight") is weights[0]
    assert [weight.data_ptr() for weight in weights] == addresses


def test_another_format_replaces_the_weight() -> None:
    model = tiny_model(torch.float32, torch.device("cpu"))
    parameter = model.get_parameter(f"{NAMES[0]}.ngram_embedding.weight")
    before, storage = parameter.detach().clone(), weakref.ref(parameter.untyped_storage())
    replaced = accelerate(model, format="bf16")
    assert [(entry.format, entry.shares_weight) for entry in replaced] == [("bf16", False)] * 2
    gc.collect()
    assert storage() is None
    assert parameter.numel() == 0
    half = [case(model, torch.device("cpu")) for case in (prefill, cached_decoding)]
    restore(model)
    assert_same(parameter.detach(), before.bfloat16().float())
    full = [case(model, torch.device("cpu")) for case in (prefill, cached_decoding)]
    for got, wanted in zip(sum(half, []), sum(full, []), strict=True):  # noqa: RUF017
        assert_same(got, wanted)


@pytest.mark.parametrize("format", ["fp8", "fp8-rowwise", "nvfp4"])
def test_encoded_tables_are_the_model_with_rounded_weights(format: str, device: torch.device) -> None:
    rounded, model = (
        tiny_model(torch.bfloat16, device, heads_per_ngram=1, ple_embed_dim=32) for _ in range(2)
    )
    for name in NAMES:
        weight = rounded.get_parameter(f"{name}.ngram_embedding.weight").data
        encoded = encode_rows(weight, format, scale_dtype="fp32" if format == "fp8-rowwise" else "bf16")
        weight.copy_(ops.decode(*encoded, format=format, out_dtype="bf16", head_dim=16))
    plain = model.get_parameter(f"{NAMES[0]}.ngram_embedding.weight").detach().clone()
    replaced = accelerate(model, format=format)
    assert [(entry.format, entry.shares_weight) for entry in replaced] == [(format, False)] * 2
    for got, wanted in zip(cached_decoding(model, device), cached_decoding(rounded, device), strict=True):
        assert_same(got, wanted)
    for name, tensor in rounded.state_dict().items():
        assert_same(model.state_dict()[name], tensor)
    restore(model)
    back = model.get_parameter(f"{NAMES[0]}.ngram_embedding.weight").detach()
    assert_same(back, rounded.get_parameter(f"{NAMES[0]}.ngram_embedding.weight").detach())
    assert not torch.equal(back, plain)
    back[5, 3] = float("nan")
    with pytest.raises(NgramPleError, match=f"weight must be finite for format {format}, got a NaN"):
        accelerate(model, format=format)
    assert type(model.get_submodule(NAMES[0])) is modeling.Qwen4ExpTextNGramEmbedding


@pytest.mark.needs_gpu
@pytest.mark.parametrize("placement", ["device", "pinned"])
def test_a_weight_on_the_host_under_a_model_on_the_gpu(placement: str) -> None:
    """How transformers places a table that does not fit on the GPU."""
    model = tiny_model(torch.bfloat16, torch.device("cuda"))
    expected = [case(model, torch.device("cuda")) for case in CASES]
    for name in NAMES:
        model.get_submodule(name).ngram_embedding.to("cpu")
    accelerate(model, placement=placement)
    for case, before in zip(CASES, expected, strict=True):
        for got, wanted in zip(case(model, torch.device("cuda")), before, strict=True):
            assert_same(got, wanted)
    restore(model)
    assert model.get_parameter(f"{NAMES[0]}.ngram_embedding.weight").device.type == "cpu"


@pytest.mark.needs_gpu
def test_a_step_that_was_given_up_leaves_nothing_behind() -> None:
    model, device = tiny_model(torch.bfloat16, torch.device("cuda")), torch.device("cuda")
    expected = prefill(model, device)
    accelerate(model, placement="pinned")
    broken = model.model.layers[0].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prefill(model, device)
    broken.remove()
    for got, wanted in zip(prefill(model, device), expected, strict=True):
        assert_same(got, wanted)


def test_state_dict_and_checkpoints_are_the_model_s(tmp_path: Path) -> None:
    model = tiny_model(torch.bfloat16, torch.device("cpu"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    accelerate(model)
    after = model.state_dict()
    assert set(after) == set(before)
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor)
    model.save_pretrained(tmp_path / "saved")
    again = modeling.Qwen4ExpForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.bfloat16).eval()
    assert set(again.state_dict()) == set(before)
    for got, wanted in zip(
        prefill(again, torch.device("cpu")), prefill(model, torch.device("cpu")), strict=True
    ):
        assert_same(got, wanted)
    other = {
        name: torch.zeros_like(tensor) if "ngram_embedding" in name else tensor
        for name, tensor in before.items()
    }
    model.load_state_dict(other)
    assert not model.get_submodule(NAMES[1]).embedding.table.slots.any()
    del other[f"{NAMES[0]}.ngram_embedding.weight"], other[f"{NAMES[1]}.layer_multipliers"]
    with pytest.raises(
        RuntimeError, match=r"Missing key.*layers.0.*ngram_embedding.weight.*layer_multipliers"
    ):
        model.load_state_dict(other)


def test_moves_and_casts_leave_the_table() -> None:
    model = tiny_model(torch.bfloat16, torch.device("cpu"))
    accelerate(model)
    slots = model.get_submodule(NAMES[0]).embedding.table.slots
    with pytest.warns(NgramPleWarning, match="stays on cpu with dtype torch.bfloat16, got a move or cast"):
        model.float()
    assert model.get_submodule(NAMES[0]).embedding.table.slots is slots
    assert model.lm_head.weight.dtype == torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.bfloat16()


def test_what_cannot_be_replaced_leaves_the_model_as_it_was() -> None:
    with pytest.raises(ConfigError, match="must have a Qwen4ExpTextNGramEmbedding, got a Linear with none"):
        accelerate(torch.nn.Linear(2, 2))
    assert restore(torch.nn.Linear(2, 2)) == []
    model = tiny_model(torch.bfloat16, torch.device("cpu"))
    for options, said in (
        ({"format": "fp9"}, "format must be one of bf16, fp16, fp32, fp8, fp8-rowwise, nvfp4, got fp9"),
        ({"format": "nvfp4"}, "nvfp4"),  # head_dim 8
        ({"placement": "disk"}, "placement must be one of device, pinned, cpu, got 'disk'"),
    ):
        with pytest.raises(ConfigError, match=said):
            accelerate(model, **options)
        assert all(type(model.get_submodule(name)) is modeling.Qwen4ExpTextNGramEmbedding for name in NAMES)
    second = model.get_submodule(NAMES[1])
    second.ngram_embedding.weight = torch.nn.Parameter(torch.empty(3, 8, dtype=torch.bfloat16, device="meta"))
    with pytest.raises(ConfigError, match=r"weight must be \[2304, 8\] in memory, got \[3, 8\] on meta"):
        accelerate(model, format="fp32")
    assert type(model.get_submodule(NAMES[0])) is modeling.Qwen4ExpTextNGramEmbedding
    assert model.get_parameter(f"{NAMES[0]}.ngram_embedding.weight").numel() > 0


def test_a_layer_that_cannot_be_encoded_leaves_the_others_unrounded() -> None:
    model = tiny_model(torch.bfloat16, torch.device("cpu"), ple_embed_dim=128)
    weights = [model.get_parameter(f"{name}.ngram_embedding.weight") for name in NAMES]
    weights[1].data[5, 3] = float("nan")
    before = [weight.detach().clone() for weight in weights]
    with pytest.raises(NgramPleError, match="weight must be finite for format nvfp4"):
        accelerate(model, format="nvfp4")
    for name, weight in zip(NAMES, before, strict=True):
        after = model.get_parameter(f"{name}.ngram_embedding.weight")
        assert torch.equal(after.view(torch.int16), weight.view(torch.int16))


def test_parts_of_a_model_have_no_config() -> None:
    model = tiny_model(torch.bfloat16, torch.device("cpu"))
    with pytest.raises(ConfigError, match="model must be a transformers model with its config, got a part"):
        accelerate(model.model.layers[0])


@pytest.mark.parametrize("format", [None, "nvfp4"])
def test_state_dicts_that_do_not_fit(format: str | None) -> None:
    model = tiny_model(torch.bfloat16, torch.device("cpu"), ple_embed_dim=128)
    accelerate(model, format=format)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    key = f"{NAMES[0]}.ngram_embedding.weight"
    zeros = torch.zeros_like(state[key])
    for wrong in (zeros[:1], zeros[:-1], zeros[:, :8], zeros.long(), zeros.double(), zeros.to("meta")):
        with pytest.raises(RuntimeError, match=rf"{key} must be \[1920, 16\] of torch.bfloat16"):
            model.load_state_dict({**state, key: wrong})
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: .*ple_embedding.more"):
        model.load_state_dict({**state, f"{NAMES[0]}.more": zeros})
    del state[key]
    with pytest.raises(RuntimeError, match=f"Missing key.*{key}"):
        model.load_state_dict(state)
    for name, tensor in model.state_dict().items():
        assert name == key or torch.equal(tensor, state[name])
    assert torch.count_nonzero(model.state_dict()[key]) > 0


def test_once_is_enough() -> None:
    model = tiny_model(torch.bfloat16, torch.device("cpu"))
    accelerate(model)
    with pytest.raises(ConfigError, match="got a Qwen4ExpForCausalLM with one that is accelerated already"):
        accelerate(model)
    assert isinstance(model.get_submodule(NAMES[0]), AcceleratedNGramEmbedding)
    with pytest.raises(NgramPleError, match="cannot be copied"):
        copy.deepcopy(model)
