"""The same work the way public engines do it: Triton, one program a row, for ids 8 tokens a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TOKENS_A_PROGRAM = 8


@triton.jit
def _ngram_ids(
    input_ids, bounds, context, multipliers, sizes, offsets, out, num_tokens, num_requests, eos,
    STEPS: tl.constexpr, ORDER: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = token < num_tokens
    low = tl.zeros((BLOCK,), tl.int32)
    high = tl.zeros((BLOCK,), tl.int32) + num_requests
    for _ in range(STEPS):
        middle = (low + high) // 2
        begins = tl.load(bounds + middle, mask=valid, other=0) <= token
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle)
    position = token - tl.load(bounds + low, mask=valid, other=0)
    mixed = tl.load(input_ids + token, mask=valid, other=0) * tl.load(multipliers)
    ended = token < 0
    head = tl.arange(0, HEADS)
    for distance in tl.static_range(1, ORDER):
        inside = position >= distance
        here = tl.load(input_ids + token - distance, mask=valid & inside, other=0)
        column = ORDER - 1 - distance + position
        before = tl.load(context + low * (ORDER - 1) + column, mask=valid & (position < distance), other=0)
        previous = tl.where(ended, eos, tl.where(inside, here, before))
        ended = ended | (previous == eos)
        mixed = mixed ^ (previous * tl.load(multipliers + distance))
        first = (distance - 1) * HEADS + head
        size = tl.load(sizes + first)[None, :]
        left = mixed[:, None] % size
        left = tl.where(left < 0, left + size, left) + tl.load(offsets + first)[None, :]
        place = out + token[:, None].to(tl.int64) * ((ORDER - 1) * HEADS) + first[None, :]
        tl.store(place, left, mask=valid[:, None])


def ngram_ids(
    batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    plan: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    eos: int,
    heads: int,
    out: torch.Tensor,
) -> None:
    """Hash int64 tokens with int32 boundaries and a contiguous context."""
    input_ids, bounds, context = batch
    requests = bounds.shape[0] - 1
    steps = max(1, (requests - 1).bit_length())
    _ngram_ids[(triton.cdiv(input_ids.shape[0], TOKENS_A_PROGRAM),)](
        input_ids, bounds, context, *plan, out, input_ids.shape[0], requests, eos,
        STEPS=steps, ORDER=plan[0].shape[0], HEADS=heads, BLOCK=TOKENS_A_PROGRAM, num_warps=4,
    )  # fmt: skip


@triton.jit
def _copy_row(ids, table, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(table + tl.load(ids + row) * width + at, mask=inside, other=0)
    tl.store(out + row * width + at, value, mask=inside)


def lookup_bf16(ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """Copy rows of a bf16 ``[N, head_dim]`` table."""
    width = table.shape[1]
    _copy_row[(ids.numel(),)](ids, table, out, width, BLOCK=triton.next_power_of_2(width), num_warps=1)


@triton.jit
def _decode_nvfp4_row(ids, codes, scales, global_scale, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    source = tl.load(ids + row)
    packed = tl.load(codes + source * (width // 2) + at // 2, mask=inside, other=0)
    code = (packed >> ((at % 2) * 4).to(tl.uint8)) & 0xF
    magnitude = (code & 7).to(tl.int32)
    bits = tl.where(magnitude < 2, magnitude * 0x3F000000, (magnitude << 22) + (126 << 23))
    value = (bits | ((code & 8).to(tl.int32) << 28)).to(tl.float32, bitcast=True)
    scale = tl.load(scales + source * (width // 16) + at // 16, mask=inside, other=0.0).to(tl.float32)
    value = (value * scale) * tl.load(global_scale)
    tl.store(out + row * width + at, value.to(tl.bfloat16), mask=inside)


def lookup_nvfp4(
    ids: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    global_scale: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Decode rows of uint8 codes ``[N, head_dim / 2]`` and E4M3 scales ``[N, head_dim / 16]``."""
    width = codes.shape[1] * 2
    _decode_nvfp4_row[(ids.numel(),)](
        ids, codes, scales, global_scale, out, width, BLOCK=triton.next_power_of_2(width), num_warps=1
    )


@triton.jit
def _decode_fp8_row(ids, codes, global_scale, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(codes + tl.load(ids + row) * width + at, mask=inside, other=0.0).to(tl.bfloat16)
    scale = tl.load(global_scale).to(tl.bfloat16)
    tl.store(out + row * width + at, value * scale, mask=inside)


def lookup_fp8(ids: torch.Tensor, codes: torch.Tensor, global_scale: torch.Tensor, out: torch.Tensor) -> None:
    """Decode rows of E4M3 codes ``[N, head_dim]``."""
    width = codes.shape[1]
    _decode_fp8_row[(ids.numel(),)](
        ids, codes, global_scale, out, width, BLOCK=triton.next_power_of_2(width), num_warps=1
    )
