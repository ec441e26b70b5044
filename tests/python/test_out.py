"""The out forms: what they may not share, what autograd hears of them, and tensors that are none."""

from __future__ import annotations

import pytest
import torch
from ngram_ple import ops

HOW = {"format": "fp32", "out_dtype": "fp32", "head_dim": 4}


def test_a_write_counts_as_a_change(device: torch.device) -> None:
    ids, weight = torch.tensor([1, 2], device=device), torch.randn(5, 4, device=device)
    out = torch.zeros(2, 4, device=device)
    factor = torch.ones(2, 4, device=device, requires_grad=True)
    product = (factor * out).sum()
    version = out._version
    torch.ops.ngram_ple.lookup.out(ids, weight, None, None, out=out, **HOW)
    assert out._version == version + 1
    assert torch.equal(out, weight[1:3])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_out_may_not_require_grad(device: torch.device) -> None:
    out = torch.zeros(1, 4, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="out must not require grad"):
        torch.ops.ngram_ple.decode.out(torch.ones(1, 4, device=device), None, None, out=out, **HOW)
    assert torch.equal(out, torch.zeros(1, 4, device=device))


def test_inference_mode_needs_no_count(device: torch.device) -> None:
    with torch.inference_mode():
        out = torch.zeros(1, 4, device=device)
        torch.ops.ngram_ple.decode.out(torch.ones(1, 4, device=device), None, None, out=out, **HOW)
        assert torch.equal(out, torch.ones(1, 4, device=device))


def test_out_may_not_overlap_inputs(device: torch.device) -> None:
    memory = torch.randn(40, device=device)
    weight, ids = memory[:20].view(5, 4), torch.tensor([3, 1], device=device)
    torch.ops.ngram_ple.lookup.out(ids, weight, None, None, out=memory[20:28].view(2, 4), **HOW)
    before = memory.clone()
    for begin in (0, 12, 19):
        out = memory[begin : begin + 8].view(2, 4)
        with pytest.raises(RuntimeError, match="lookup: out must share no memory with weight"):
            torch.ops.ngram_ple.lookup.out(ids, weight, None, None, out=out, **HOW)
    assert torch.equal(memory, before)

    tokens = torch.arange(6, device=device)
    plan = [torch.tensor(values, device=device) for values in ([3, 5], [7], [0])]
    context = torch.zeros(1, 1, dtype=torch.int64, device=device)
    bounds = torch.tensor([0, 6], device=device)
    with pytest.raises(RuntimeError, match="ngram_ids: out must share no memory with input_ids"):
        torch.ops.ngram_ple.ngram_ids.out(tokens, bounds, context, *plan, 1, 1, out=tokens.view(6, 1))


def test_none_is_no_tensor(device: torch.device) -> None:
    weight = torch.randn(5, 4, device=device)
    with pytest.raises(RuntimeError, match="lookup: weight must be a tensor, got None"):
        ops.lookup(torch.tensor([1], device=device), None, **HOW)  # type: ignore[arg-type]
    tokens = torch.arange(6, device=device)
    plan = [torch.tensor(values, device=device) for values in ([3, 5], [7], [0])]
    with pytest.raises(RuntimeError, match="ngram_ids: ngram_context must be a tensor, got None"):
        ops.ngram_ids(tokens, torch.tensor([0, 6], device=device), None, *plan, 1, 1)  # type: ignore[arg-type]
    assert ops.lookup(torch.tensor([1], device=device), weight, **HOW).shape == (1, 4)


@pytest.mark.parametrize("on_meta", ["ids", "weight", "global_scale"])
def test_meta_tensors_do_not_mix_with_others(on_meta: str) -> None:
    tensors = {
        "ids": torch.tensor([1]),
        "weight": torch.zeros(5, 4, dtype=torch.uint8),
        "global_scale": torch.ones(1),
    }
    tensors[on_meta] = tensors[on_meta].to("meta")
    with pytest.raises(RuntimeError, match=f"on the meta device or none, got {on_meta} there alone"):
        ops.lookup(**tensors, format="fp8", out_dtype="fp32", head_dim=4)  # type: ignore[arg-type]


EMBED = {
    "input_ids": torch.arange(3),
    "query_start_loc": torch.tensor([0, 3]),
    "ngram_context": torch.zeros(1, 1, dtype=torch.int64),
    "layer_multipliers": torch.tensor([3, 5]),
    "ngram_heads_vocab_sizes": torch.tensor([5]),
    "ngram_heads_offsets": torch.tensor([0]),
    "weight": torch.zeros(5, 4, dtype=torch.uint8),
    "global_scale": torch.ones(1),
}


@pytest.mark.parametrize("on_meta", EMBED)
def test_no_tensor_of_embed_may_be_on_meta_alone(on_meta: str) -> None:
    how = {"eos_token_id": 1, "heads_per_ngram": 1, "format": "fp8", "out_dtype": "fp32", "head_dim": 4}
    assert ops.embed(**EMBED, **how).shape == (3, 4)  # type: ignore[arg-type]
    tensors = {**EMBED, on_meta: EMBED[on_meta].to("meta")}
    with pytest.raises(RuntimeError, match=f"on the meta device or none, got {on_meta} there alone"):
        ops.embed(**tensors, **how)  # type: ignore[arg-type]


def test_scales_have_the_shape_of_their_rows() -> None:
    rows = torch.zeros(4, 32, dtype=torch.uint8)
    how = {"format": "fp8-rowwise", "out_dtype": "fp32", "head_dim": 32}
    for shape in ((4,), (4, 1)):
        ops.decode(rows, torch.ones(shape), **how)
    for shape in ((1, 4), (2, 2), (4, 1, 1)):
        with pytest.raises(RuntimeError, match=r"decode: scale must be float32 or bfloat16 \[4, 1\]"):
            ops.decode(rows, torch.ones(shape), **how)
    with pytest.raises(RuntimeError, match=r"scale must be uint8 or float8_e4m3fn \[4, 2\]"):
        ops.decode(
            rows[:, :16].contiguous(), torch.ones(2, 4, dtype=torch.uint8), torch.ones(1),
            format="nvfp4", out_dtype="fp32", head_dim=32,
        )  # fmt: skip


def test_a_result_too_large_to_allocate_is_named() -> None:
    huge = torch.zeros(1, dtype=torch.int64).expand(2**50)
    with pytest.raises(RuntimeError, match="must be contiguous"):
        ops.lookup(huge, torch.zeros(1, 4), **HOW)
    ids = torch.empty(2**50, 0, dtype=torch.int64)
    assert ops.lookup(ids, torch.zeros(1, 4), **HOW).shape == (2**50, 0, 4)
