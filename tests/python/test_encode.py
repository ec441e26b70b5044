"""encode and row_amax: bit for bit what eager torch gives by the same steps, and what cannot be encoded."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import reference
import torch
from batches import FORMATS, allowed
from ngram_ple import ops
from ngram_ple.encoding import LEAST_SCALE, encode_rows, global_scale
from ngram_ple.errors import ConfigError, NgramPleError
from reference import TORCH_DTYPES, assert_same
from seeds import for_seeds, torch_generator

PLAIN = ("bf16", "fp16", "fp32")
ODD = [float("inf"), float("-inf"), float("nan"), 3e38, -65504.0, 1e-40, -1e-30, 0.0, -0.0]
INFINITY = float("inf")


def some_rows(rng: random.Random, dtype: str, rows: int, head_dim: int, device: torch.device) -> torch.Tensor:
    """Normal numbers of several sizes, many of them on ties of the codes; some rows of zeros."""
    generator = torch_generator(rng)
    values = torch.randn(rows, head_dim, generator=generator) * 0.02
    ties = torch.randint(-15, 16, (rows, head_dim), generator=generator) / 256
    values = torch.where(torch.rand(rows, head_dim, generator=generator) < 0.2, ties, values)
    values *= 2.0 ** torch.randint(-20, 20, (rows, 1), generator=generator)
    values[::5] = 0
    return values.to(TORCH_DTYPES[dtype]).to(device)


def all_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


def same_bytes(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert torch.equal(all_bytes(got), all_bytes(expected))


def encoded_by_torch(
    rows: torch.Tensor, whole: torch.Tensor | None, format: str, scale_dtype: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode on the CPU: on a GPU torch multiplies by reciprocals, and products lose the sign of a NaN."""
    return reference.encode(rows.cpu(), None if whole is None else whole.cpu(), format, scale_dtype)


def table_scale(rows: torch.Tensor, format: str) -> torch.Tensor | None:
    if format not in ("fp8", "nvfp4"):
        return None
    return global_scale(ops.row_amax(rows, finite_only=True), format)


@for_seeds(40)
def test_every_format_against_eager_torch(device: torch.device, rng: random.Random) -> None:
    dtype, format, head_dim = rng.choice(PLAIN), rng.choice(FORMATS), rng.choice([1, 7, 16, 48, 160, 1040])
    if not allowed(format, head_dim):
        head_dim = 32
    rows = some_rows(rng, dtype, rng.randint(1, 40), head_dim, device)
    scale_dtype = rng.choice(["fp32", "bf16"])
    whole = table_scale(rows, format)
    weight, scale = ops.encode(rows, whole, format=format, scale_dtype=scale_dtype)
    expected = encoded_by_torch(rows, whole, format, scale_dtype)
    same_bytes(weight, expected[0])
    same_bytes(scale, expected[1])


@for_seeds(30)
def test_what_is_not_finite(device: torch.device, rng: random.Random) -> None:
    """No code is NaN or infinite: infinities are the largest of their sign, NaN is zero."""
    format = rng.choice(FORMATS)
    rows = some_rows(rng, rng.choice(PLAIN), 20, 32, device)
    for _ in range(30):
        rows[rng.randrange(20), rng.randrange(32)] = rng.choice(ODD)
    whole = table_scale(rows, format)
    encoded = ops.encode(rows, whole, format=format)
    expected = encoded_by_torch(rows, whole, format, "fp32")
    same_bytes(encoded[0], expected[0])
    same_bytes(encoded[1], expected[1])
    scale = encoded[1] if encoded[1].numel() else None
    decoded = ops.decode(encoded[0], scale, whole, format=format, out_dtype="fp32", head_dim=32)
    assert bool(decoded.isfinite().all())
    assert bool((decoded[rows.isnan()] == 0).all())


@pytest.mark.parametrize(("format", "most"), [("fp8", 0.027), ("fp8-rowwise", 0.027), ("nvfp4", 0.097)])
def test_gaussian_rows(format: str, most: float, device: torch.device) -> None:
    for seed, size in enumerate([0.02, 1.0, 1e-5, 300.0]):
        generator = torch.Generator().manual_seed(seed)
        rows = (torch.randn(3000, 160, generator=generator) * size).bfloat16().to(device)
        encoded = encode_rows(rows, format)
        decoded = ops.decode(*encoded, format=format, out_dtype="bf16", head_dim=160).float()
        relative = float((decoded - rows.float()).norm() / rows.float().norm())
        assert most / 2 < relative < most, size


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_zeros(format: str, device: torch.device) -> None:
    rows = torch.zeros(5, 32, device=device)
    rows[2, 3] = -0.0
    encoded = encode_rows(rows, format)
    if encoded.global_scale is not None:
        assert float(encoded.global_scale) == 1.0
    if format == "fp8-rowwise":
        assert encoded.scale is not None
        assert bool((encoded.scale == 1).all())
    assert_same(ops.decode(*encoded, format=format, out_dtype="fp32", head_dim=32), rows)


@pytest.mark.parametrize("format", ["fp8", "fp8-rowwise", "nvfp4"])
def test_denormal_rows(format: str, device: torch.device) -> None:
    """The scale is the least there is; what it does not reach becomes zero."""
    rows = torch.tensor([[1e-40, -1e-45, 1e-30] + [0.0] * 13], device=device)
    decoded = ops.decode(
        *encode_rows(rows[:, :2].repeat(1, 8), format), format=format, out_dtype="fp32", head_dim=16
    )
    assert bool((decoded == 0).all())
    decoded = ops.decode(*encode_rows(rows, format), format=format, out_dtype="fp32", head_dim=16)
    assert float(decoded[0, 2]) == pytest.approx(1e-30, rel=0.07)
    assert float(decoded[0, 0]) == 0
    least = float(global_scale(1e-44, "fp8"))
    assert least == LEAST_SCALE


@pytest.mark.parametrize("format", ["fp8", "fp8-rowwise", "nvfp4"])
def test_one_huge_outlier(format: str, device: torch.device) -> None:
    """It comes back; under a shared scale what is far smaller than it does not, elsewhere all does."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(64, 32, generator=generator).to(device)
    rows[7, 5] = 1e30
    decoded = ops.decode(*encode_rows(rows, format), format=format, out_dtype="fp32", head_dim=32)
    assert float(decoded[7, 5]) == pytest.approx(1e30, rel=0.07)
    others = torch.arange(64, device=device) != 7
    relative = float((decoded - rows)[others].norm() / rows[others].norm())
    assert relative < 0.03 if format == "fp8-rowwise" else bool((decoded[others] == 0).all())
    assert bool(decoded.isfinite().all())


@pytest.mark.parametrize("bad", [float("nan"), INFINITY, -INFINITY])
def test_encode_rows_names_the_row(bad: float, device: torch.device) -> None:
    rows = torch.ones(9, 16, device=device)
    rows[6, 2] = rows[8, 1] = bad
    for format in FORMATS:
        with pytest.raises(NgramPleError, match="row 6 has a NaN or an infinity"):
            encode_rows(rows, format)
        encoded = encode_rows(rows, format, saturate=True)
        decoded = ops.decode(*encoded, format=format, out_dtype="fp32", head_dim=16)
        assert bool(decoded.isfinite().all())
        torch.testing.assert_close(decoded[:6], rows[:6], rtol=4e-3, atol=0)


def test_bf16_scales_are_rounded_before_use(device: torch.device) -> None:
    """Then decoding to bf16, which rounds scales, finds the very scale that was encoded for."""
    rows = (torch.randn(500, 160, generator=torch.Generator().manual_seed(3)) * 0.0123).to(device)
    error = {}
    for scale_dtype in ("bf16", "fp32"):
        encoded = encode_rows(rows, "fp8-rowwise", scale_dtype=scale_dtype)
        decoded = ops.decode(*encoded, format="fp8-rowwise", out_dtype="bf16", head_dim=160)
        error[scale_dtype] = float((decoded.float() - rows).norm())
    assert error["bf16"] < error["fp32"]
    whole = encode_rows(rows, "fp8").global_scale
    assert whole is not None
    assert float(whole) == float(whole.bfloat16())


@for_seeds(30)
def test_row_amax(device: torch.device, rng: random.Random) -> None:
    rows = some_rows(rng, rng.choice(PLAIN), rng.randint(0, 20), rng.choice([1, 9, 160, 700]), device)
    for _ in range(rng.randint(0, 6) if len(rows) else 0):
        rows[rng.randrange(len(rows)), rng.randrange(rows.shape[1])] = rng.choice(ODD)
    assert_same(ops.row_amax(rows), rows.abs().amax(dim=1).float())
    finite = torch.where(rows.isfinite(), rows, rows.new_zeros(()))
    assert_same(ops.row_amax(rows, finite_only=True), finite.abs().amax(dim=1).float())


@pytest.mark.parametrize("shape", [(16,), (0, 16), (2, 3, 16), (2, 0, 3, 16)])
@pytest.mark.parametrize("format", FORMATS)
def test_shapes_out_forms_and_opcheck(format: str, shape: tuple[int, ...], device: torch.device) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(device)
    whole = torch.tensor([0.01], device=device) if format in ("fp8", "nvfp4") else None
    options: dict[str, Any] = {"format": format, "scale_dtype": "bf16"}
    weight, scale = ops.encode(rows, whole, **options)
    flat = ops.encode(rows.view(-1, 16), whole, **options)
    same_bytes(weight, flat[0].view(*shape[:-1], flat[0].shape[1]))
    same_bytes(scale, flat[1].view(*shape[:-1], flat[1].shape[1]))

    def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor

    # uint8 for codes: torch compares no float8 tensors
    out = {"weight": as_bytes(torch.ones_like(weight)), "scale": as_bytes(torch.ones_like(scale))}
    torch.ops.ngram_ple.encode.out(rows, whole, **options, **out)
    same_bytes(out["weight"], as_bytes(weight))
    same_bytes(out["scale"], as_bytes(scale))
    torch.library.opcheck(torch.ops.ngram_ple.encode.default, (rows, whole), options)
    torch.library.opcheck(torch.ops.ngram_ple.encode.out, (rows, whole), {**options, **out})
    torch.library.opcheck(torch.ops.ngram_ple.row_amax.default, (rows,), {"finite_only": True})
    most = torch.ones(shape[:-1], device=device)
    torch.library.opcheck(torch.ops.ngram_ple.row_amax.out, (rows,), {"out": most})
    torch.ops.ngram_ple.row_amax.out(rows, out=most)
    assert_same(most, ops.row_amax(rows))


def test_unaligned_views(device: torch.device) -> None:
    held = torch.randn(1 + 20 * 32, generator=torch.Generator().manual_seed(6)).bfloat16().to(device)
    rows = held[1:].view(20, 32)
    for format in FORMATS:
        whole = table_scale(rows, format)
        expected = ops.encode(rows.clone(), whole, format=format)
        for got, wanted in zip(ops.encode(rows, whole, format=format), expected, strict=True):
            same_bytes(got, wanted)


WRONG: list[tuple[str, Any, str]] = [
    ("rows", lambda t: t.double(), "rows must be bfloat16, float16 or float32, got float64"),
    ("rows", lambda t: t.t(), "rows must be contiguous"),
    ("rows", lambda t: t[0, 0], "rows must be [..., head_dim]"),
    ("rows", lambda t: t[:, :0].contiguous(), "rows must be [..., head_dim]"),
    ("rows", lambda t: t[:, :8].contiguous(), "nvfp4 needs a head_dim divisible by 16, got 8"),
    ("global_scale", lambda t: None, "format nvfp4 needs global_scale"),
    ("global_scale", lambda t: t.double(), "global_scale must be a float32 tensor of one element"),
    ("global_scale", lambda t: t.repeat(2), "global_scale must be a float32 tensor of one element"),
    ("format", lambda t: "int4", "format must be one of bf16, fp16, fp32, fp8, fp8-rowwise, nvfp4, got int4"),
    ("format", lambda t: "fp8-rowwise", "format fp8-rowwise has no global_scale"),
    ("scale_dtype", lambda t: "fp16", "scale_dtype must be bf16 or fp32, got fp16"),
]


@pytest.mark.parametrize(("name", "change", "said"), WRONG)
def test_wrong_arguments(name: str, change: Any, said: str, device: torch.device) -> None:
    arguments: dict[str, Any] = {
        "rows": torch.ones(4, 32, device=device), "global_scale": torch.tensor([0.5], device=device),
        "format": "nvfp4", "scale_dtype": "fp32",
    }  # fmt: skip
    weight, scale = ops.encode(**arguments)
    arguments[name] = change(arguments[name])
    for call in (
        lambda: ops.encode(**arguments),
        lambda: torch.ops.ngram_ple.encode.out(**arguments, weight=weight, scale=scale),
    ):
        with pytest.raises(RuntimeError) as error:
            call()
        assert f"encode: {said}" in str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), INFINITY, 1e-40])
def test_global_scales_that_are_none(value: float) -> None:
    with pytest.raises(RuntimeError, match="encode: global_scale must be finite and at least 2\\^-117"):
        ops.encode(torch.ones(1, 16), torch.tensor([value]), format="nvfp4")


def test_arguments_of_a_global_scale() -> None:
    for arguments, said in (
        ((1.0, "bf16"), "format must be one of fp8, nvfp4, got 'bf16'"),
        ((1.0, "fp8", "fp16"), "scale_dtype must be one of bf16, fp32, got 'fp16'"),
        ((math.nan, "fp8"), "amax must be finite and not negative, got nan"),
        ((math.inf, "nvfp4"), "amax must be finite and not negative, got inf"),
        ((-1.0, "nvfp4"), "amax must be finite and not negative, got -1.0"),
    ):
        with pytest.raises(ConfigError, match=said):
            global_scale(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got None"):
        encode_rows(torch.ones(1, 16), None)  # type: ignore[arg-type]


def test_results_may_share_no_memory() -> None:
    rows, whole = torch.ones(4, 32, dtype=torch.bfloat16), torch.tensor([0.5])
    memory = torch.zeros(4, 32, dtype=torch.uint8)
    weight, scale = memory.view(-1)[:64].view(4, 16), memory.view(-1)[60:68].view(4, 2)
    with pytest.raises(RuntimeError, match="encode: out must share no memory with scale"):
        torch.ops.ngram_ple.encode.out(rows, whole, format="nvfp4", weight=weight, scale=scale)
    inside = rows.view(torch.uint8).view(-1)[:64].view(4, 16)
    with pytest.raises(RuntimeError, match="encode: out must share no memory with rows"):
        torch.ops.ngram_ple.encode.out(
            rows, whole, format="nvfp4", weight=inside, scale=torch.empty(4, 2, dtype=torch.uint8)
        )


def test_it_compiles(device: torch.device) -> None:
    rows = torch.randn(10, 32, generator=torch.Generator().manual_seed(7)).to(device)
    whole = torch.tensor([0.01], device=device)

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def compiled(rows: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        weight, scale = ops.encode(rows, whole, format="nvfp4")
        return ops.decode(weight, scale, whole, format="nvfp4", out_dtype="bf16", head_dim=32)

    weight, scale = ops.encode(rows, whole, format="nvfp4")
    expected = ops.decode(weight, scale, whole, format="nvfp4", out_dtype="bf16", head_dim=32)
    assert_same(compiled(rows, whole), expected)
