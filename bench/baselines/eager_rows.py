"""Lookup and dequantisation in eager torch: a preallocated `index_select`, then torch's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import torch

_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def select_and_decode(
    format: str, weight: torch.Tensor, rows: int, global_scale: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return ``f(ids) -> bf16 [n, head_dim]`` over `weight`, whose rows are stored as a checkpoint has them.

    bf16: ``[N, head_dim]``; fp8: float8_e4m3fn ``[N, head_dim]``; nvfp4: uint8 ``[N, head_dim / 2 +
    head_dim / 16]``, codes then scales (one gather, which favours this baseline).
    """
    picked = torch.empty((rows, weight.shape[1]), dtype=weight.dtype)

    def bf16(ids: torch.Tensor) -> torch.Tensor:
        return torch.index_select(weight, 0, ids, out=picked)

    raw, raw_picked = weight.view(torch.uint8), picked.view(torch.uint8)

    def fp8(ids: torch.Tensor) -> torch.Tensor:
        torch.index_select(raw, 0, ids, out=raw_picked)
        return picked.to(torch.bfloat16) * global_scale.to(torch.bfloat16)

    def nvfp4(ids: torch.Tensor) -> torch.Tensor:
        torch.index_select(raw, 0, ids, out=raw_picked)
        codes = raw_picked.shape[1] * 8 // 9
        packed = raw_picked[:, :codes]
        nibbles = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(1)
        values = _E2M1[nibbles.int()].unflatten(1, (-1, 16))
        scales = raw_picked[:, codes:].view(torch.float8_e4m3fn).float()
        return (values * scales.unsqueeze(-1) * global_scale).to(torch.bfloat16).flatten(1)

    return {"bf16": bf16, "fp8": fp8, "nvfp4": nvfp4}[format]
