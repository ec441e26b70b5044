"""Slow references in plain Python and eager torch. Nothing here calls ngram_ple."""

from __future__ import annotations

from collections.abc import Sequence

import torch

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def signed(x: int) -> int:
    """The signed 64-bit integer of these low 64 bits."""
    return (x + 2**63) % 2**64 - 2**63


def splitmix64(x: int) -> int:
    x = (x + GAMMA) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def is_prime(n: int) -> bool:
    """Trial division."""
    return n >= 2 and all(n % d for d in range(2, int(n**0.5) + 1))


def multipliers(ngram_size: int, vocab_size: int, seed: int, layer: int) -> list[int]:
    half = max(1, ((2**63 - 1) // vocab_size) // 2)
    states = [(seed + 10007 * layer + GAMMA * (i + 1)) & MASK for i in range(ngram_size)]
    return [2 * (splitmix64(state) % half) + 1 for state in states]


def head_sizes(base: int, heads: int, layer: int) -> list[int]:
    """Heads of this layer among the primes from `base` on."""
    found: list[int] = []
    n = base
    while len(found) < heads * (layer + 1):
        if is_prime(n):
            found.append(n)
        n += 1
    return found[heads * layer :]


def ngram_ids(
    input_ids: Sequence[int],
    query_start_loc: Sequence[int],
    contexts: Sequence[Sequence[int]],
    plan: tuple[Sequence[int], Sequence[int], Sequence[int]],
    eos: int,
    heads_per_ngram: int,
) -> list[list[int]]:
    """Ids [T][H] by walking back over context + chunk of each token's request."""
    factors, sizes, offsets = plan
    rows = []
    for t in range(len(input_ids)):
        request = max(r for r in range(len(query_start_loc) - 1) if query_start_loc[r] <= t)
        history = [*contexts[request], *input_ids[query_start_loc[request] : t + 1]][::-1]
        tokens = history[:1]
        for token in history[1 : len(factors)]:
            tokens.append(eos if eos in tokens[1:] else token)
        row: list[int] = []
        for order in range(2, len(factors) + 1):
            mixed = 0
            for token, factor in zip(tokens[:order], factors[:order], strict=True):
                mixed ^= token * factor & MASK
            for h in range((order - 2) * heads_per_ngram, (order - 1) * heads_per_ngram):
                row.append(signed(mixed) % sizes[h] + offsets[h])
        rows.append(row)
    return rows


def decode(
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    global_scale: torch.Tensor | None,
    format: str,
    out_dtype: str,
) -> torch.Tensor:
    """Rows as a checkpoint stores them, [n, …], decoded by eager torch."""
    out = TORCH_DTYPES[out_dtype]
    if format in TORCH_DTYPES:
        return weight.view(TORCH_DTYPES[format]).to(out)
    if format in ("fp8", "fp8-rowwise"):
        by = global_scale if format == "fp8" else scale
        assert by is not None
        factor = by.to(out)
        return weight.view(torch.float8_e4m3fn).to(out) * (factor if format == "fp8" else factor.view(-1, 1))
    assert scale is not None
    assert global_scale is not None
    codes = weight.view(torch.uint8)
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).long()
    values = torch.tensor(E2M1, device=weight.device)[nibbles]
    scales = scale.view(torch.float8_e4m3fn).float().repeat_interleave(16, dim=-1)
    return ((values * scales) * global_scale.float()).to(out)


def slots(weight: torch.Tensor, scale: torch.Tensor | None, format: str) -> torch.Tensor:
    """The memory layout of a table: uint8 [n, slot]."""
    rows = weight.contiguous().view(torch.uint8)
    if scale is None:
        return rows
    if format == "fp8-rowwise":
        scale_bytes = scale.float().view(-1).view(torch.uint8).view(len(rows), 4)
    else:
        scale_bytes = scale.view(torch.uint8)
    offset = -(-rows.shape[1] // 4) * 4 if format == "fp8-rowwise" else rows.shape[1]
    width = -(-(offset + scale_bytes.shape[1]) // 16) * 16
    result = torch.zeros((len(rows), width), dtype=torch.uint8, device=weight.device)
    result[:, : rows.shape[1]] = rows
    result[:, offset : offset + scale_bytes.shape[1]] = scale_bytes
    return result


def nearest_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Codes of the nearest magnitudes, the even one of two; beyond 6 the last; NaN as zero of its sign."""
    size = values.abs().nan_to_num(nan=0.0, posinf=6.0)
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for code in range(7):
        tie = (E2M1[code] + E2M1[code + 1]) / 2  # belongs to the even code
        codes += (size > tie) | ((size == tie) & (code % 2 == 1))
    return codes | torch.signbit(values).byte() << 3


def nearest_e4m3(values: torch.Tensor) -> torch.Tensor:
    known = torch.where(values.isnan(), torch.zeros_like(values).copysign(values), values)
    return known.clamp(-448.0, 448.0).to(torch.float8_e4m3fn)


def encode(
    rows: torch.Tensor, global_scale: torch.Tensor | None, format: str, scale_dtype: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and scale of rows [n, head_dim] by eager torch, step by step."""
    values = rows.float()
    nothing = values.new_empty((len(rows), 0))
    if format in TORCH_DTYPES:
        most = torch.finfo(TORCH_DTYPES[format]).max
        known = torch.where(values.isnan(), torch.zeros_like(values).copysign(values), values)
        return known.clamp(-most, most).to(TORCH_DTYPES[format]), nothing
    finite = torch.where(values.isfinite(), values, 0.0).abs()
    if format == "fp8":
        assert global_scale is not None
        return nearest_e4m3(values * (1 / global_scale)), nothing
    if format == "fp8-rowwise":
        amax = finite.amax(dim=1, keepdim=True)
        scale = torch.where(amax > 0, (amax / 448).clamp_min(2.0**-117), 1.0).to(TORCH_DTYPES[scale_dtype])
        return nearest_e4m3(values * (1 / scale.float())), scale
    assert global_scale is not None
    amax = finite.unflatten(1, (-1, 16)).amax(dim=2)
    scale = (amax * (1 / (6 * global_scale))).clamp(2.0**-9, 448.0).to(torch.float8_e4m3fn)
    factor = (1 / (scale.float() * global_scale)).repeat_interleave(16, dim=1)
    codes = nearest_e2m1(values * factor)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scale


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Same shape, dtype and bits; a NaN is as good as another."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if not got.is_floating_point():
        assert torch.equal(got, expected)
        return
    nan = expected.isnan()
    assert torch.equal(got.isnan(), nan)
    bits = torch.int16 if got.element_size() == 2 else torch.int32
    differ = (got.view(bits) != expected.view(bits)) & ~nan
    assert not bool(differ.any()), (
        f"{int(differ.sum())} values differ, first at {differ.nonzero()[0].tolist()}: "
        f"{got[differ][0].item()} instead of {expected[differ][0].item()}"
    )
