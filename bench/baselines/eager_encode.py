"""Encoding in eager torch: the arithmetic of `ngram_ple.ops.encode`, a tensor operation a step."""

from __future__ import annotations

import torch


def amax(rows: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of all rows, fp32 ``[]``."""
    return rows.abs().max().float()


def fp8(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return E4M3 codes under one scale, or a scale a row ``[n, 1]``."""
    return (rows.float() * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn)


def fp8_rowwise(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return E4M3 codes and bf16 scales ``[n, 1]``."""
    most = rows.abs().amax(dim=1, keepdim=True).float()
    # by a tensor: on a GPU torch multiplies by the reciprocal of a Python number
    scale = torch.where(most > 0, most / most.new_full((), 448), 1.0).bfloat16()
    return fp8(rows, scale.float()), scale


def nvfp4(rows: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return packed E2M1 codes ``[n, head_dim / 2]`` and E4M3 block scales ``[n, head_dim / 16]``."""
    blocks = rows.float().unflatten(1, (-1, 16))
    most = blocks.abs().amax(dim=2)
    scale = (most * (1 / (6 * global_scale))).clamp(2**-9, 448).to(torch.float8_e4m3fn)
    scaled = (blocks * (1 / (scale.float() * global_scale)).unsqueeze(2)).flatten(1)
    size = scaled.abs()
    # ties go to the even code, so every second boundary belongs to the code below
    codes = (size > 0.25).byte() + (size >= 0.75).byte() + (size > 1.25).byte() + (size >= 1.75).byte()
    codes += (size > 2.5).byte() + (size >= 3.5).byte() + (size > 5).byte()
    codes |= torch.signbit(scaled).byte() << 3
    return codes[:, 0::2] | codes[:, 1::2] << 4, scale
