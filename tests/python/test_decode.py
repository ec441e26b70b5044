"""decode: every code with every kind of scale, bit for bit what eager torch gives."""

from __future__ import annotations

import random

import pytest
import reference
import torch
from batches import FORMATS, OUT_DTYPES, allowed, random_rows
from ngram_ple import ops
from reference import assert_same
from seeds import for_seeds

EDGE_SCALES = [
    0.0, -0.0, 1.0, -1.0, 0.3, -0.7, 1.99e-4, 6e-5, 1e-7, 6e-8, 2.9e-8, 1e-38, 3e-39, 1.4e-45, -1e-41,
    146.2, 300.0, 65504.0, 65520.0, 1e30, 3.3895e38, -3e38, float("inf"), float("-inf"), float("nan"),
]  # fmt: skip


def every_exponent() -> list[float]:
    """Powers of two from fp32's smallest to its largest, and numbers that round up in bf16 and fp16."""
    return [m * 2.0**e for e in range(-149, 128) for m in (1.0, -1.0, 1.99853515625)]


@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
@pytest.mark.parametrize("head_dim", [256, 128, 17, 8])
def test_every_fp8_code_with_every_kind_of_scale(out_dtype: str, head_dim: int, device: torch.device) -> None:
    rows = -(-256 // head_dim)
    codes = torch.arange(rows * head_dim, device=device).to(torch.uint8).view(rows, head_dim)
    weight = codes.view(torch.float8_e4m3fn)
    scales = torch.tensor(EDGE_SCALES + (every_exponent() if head_dim == 256 else []), device=device)
    for i in range(len(scales)):
        scale = scales[i : i + 1]
        got = ops.decode(weight, None, scale, format="fp8", out_dtype=out_dtype, head_dim=head_dim)
        assert_same(got, reference.decode(weight, None, scale, "fp8", out_dtype))


@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_rowwise_scales(out_dtype: str, scale_dtype: torch.dtype, device: torch.device) -> None:
    """Every fp8 code beside every scale, and every bf16 pattern as a scale."""
    scales = torch.tensor(EDGE_SCALES + every_exponent(), device=device).to(scale_dtype).view(-1, 1)
    if scale_dtype == torch.bfloat16:
        patterns = torch.arange(65536, dtype=torch.int32, device=device).to(torch.int16).view(torch.bfloat16)
        scales = torch.cat((scales, patterns[::7].view(-1, 1)))
    codes = torch.arange(256, device=device).to(torch.uint8).expand(len(scales), -1).contiguous()
    expected = reference.decode(codes, scales, None, "fp8-rowwise", out_dtype)
    options = {"format": "fp8-rowwise", "out_dtype": out_dtype, "head_dim": 256}
    assert_same(ops.decode(codes.view(torch.float8_e4m3fn), scales, None, **options), expected)
    assert_same(ops.decode(reference.slots(codes, scales, "fp8-rowwise"), None, None, **options), expected)


@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
def test_every_nvfp4_code_with_every_block_scale(out_dtype: str, device: torch.device) -> None:
    nibbles = torch.arange(16, device=device).repeat(256, 1)
    codes = (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).to(torch.uint8)
    block_scales = torch.arange(256, device=device).to(torch.uint8).view(256, 1)
    options = {"format": "nvfp4", "out_dtype": out_dtype, "head_dim": 16}
    for value in EDGE_SCALES:
        scale = torch.tensor([value], device=device)
        expected = reference.decode(codes, block_scales, scale, "nvfp4", out_dtype)
        assert_same(ops.decode(codes, block_scales, scale, **options), expected)
        assert_same(
            ops.decode(reference.slots(codes, block_scales, "nvfp4"), None, scale, **options), expected
        )


def test_nvfp4_multiplies_code_and_block_scale_first(device: torch.device) -> None:
    """code·(scale·global) rounds otherwise: a value where the two orders differ."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (64, 8), dtype=torch.uint8, generator=generator).to(device)
    scales = (torch.randint(0, 0x7F, (64, 1), dtype=torch.uint8, generator=generator)).to(device)
    global_scale = torch.tensor([1.2345678e-3], device=device)
    got = ops.decode(codes, scales, global_scale, format="nvfp4", out_dtype="fp32", head_dim=16)
    nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()
    values = torch.tensor(reference.E2M1, device=device)[nibbles]
    block = scales.view(torch.float8_e4m3fn).float()
    assert_same(got, (values * block) * global_scale)
    assert not torch.equal(got, values * (block * global_scale))


def test_fp8_rounds_the_scale_first(device: torch.device) -> None:
    """Scaling in fp32 and rounding once differs in many bf16 values."""
    codes = torch.arange(256, device=device).to(torch.uint8).view(1, 256)
    scale = torch.tensor([1.99e-4], device=device)
    got = ops.decode(codes, None, scale, format="fp8", out_dtype="bf16", head_dim=256)
    values = codes.view(torch.float8_e4m3fn)
    assert_same(got, values.bfloat16() * scale.bfloat16())
    assert int((got != (values.float() * scale).bfloat16()).sum()) > 20


@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
@pytest.mark.parametrize("format", ["bf16", "fp16"])
def test_every_half_precision_value(format: str, out_dtype: str, device: torch.device) -> None:
    bits = torch.arange(65536, dtype=torch.int32, device=device).to(torch.int16).view(256, 256)
    weight = bits.view(reference.TORCH_DTYPES[format])
    got = ops.decode(weight, format=format, out_dtype=out_dtype, head_dim=256)
    assert_same(got, weight.to(reference.TORCH_DTYPES[out_dtype]))


@for_seeds(30)
def test_fp32_rounds_as_torch_does(device: torch.device, rng: random.Random) -> None:
    weight = random_rows(rng, "fp32", 100, 100, device).weight
    weight[0] = (
        (torch.arange(100, device=device) * 2**13 + 0x38800000 + 2**12).to(torch.int32).view(torch.float32)
    )
    for out_dtype in OUT_DTYPES:
        got = ops.decode(weight, format="fp32", out_dtype=out_dtype, head_dim=100)
        assert_same(got, weight.to(reference.TORCH_DTYPES[out_dtype]))


@for_seeds(40)
def test_decode_is_lookup_of_every_row(device: torch.device, rng: random.Random) -> None:
    format, head_dim = rng.choice(FORMATS), rng.choice([1, 5, 16, 32, 48, 100, 160])
    if not allowed(format, head_dim):
        head_dim = 64
    table = random_rows(rng, format, head_dim, rng.randint(0, 20), device, torch.bfloat16)
    ids = torch.arange(len(table.weight), device=device)
    for out_dtype in (*OUT_DTYPES, "bytes"):
        arguments = {"out_dtype": out_dtype, **table.options}
        expected = ops.lookup(ids, table.weight, table.scale, table.global_scale, **arguments)
        assert_same(ops.decode(table.weight, table.scale, table.global_scale, **arguments), expected)
        assert_same(ops.decode(table.slots, None, table.global_scale, **arguments), expected)
        assert_same(expected, table.decoded(out_dtype))


@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3), (2, 0, 3)])
@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_any_shape(format: str, shape: tuple[int, ...], device: torch.device) -> None:
    count = torch.Size(shape).numel()
    table = random_rows(random.Random(1), format, 32, count, device)
    slots = table.slots.view(*shape, -1) if count else table.slots.new_empty((*shape, table.slots.shape[1]))
    for out_dtype in (*OUT_DTYPES, "bytes"):
        got = ops.decode(slots, None, table.global_scale, out_dtype=out_dtype, **table.options)
        expected = table.decoded(out_dtype)
        assert_same(got, expected.view(*shape, expected.shape[1]) if count else got.new_empty(got.shape))
        assert got.shape[:-1] == shape
        out = torch.full_like(got, 1)
        torch.ops.ngram_ple.decode.out(
            slots, None, table.global_scale, out_dtype=out_dtype, out=out, **table.options
        )
        assert_same(out, got)
