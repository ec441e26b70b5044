"""Scales on their way into a table: widened to what the table holds, and refused when they are not finite.

A NaN is what readers initialise scales with, so one that arrives was never filled.
"""

from __future__ import annotations

import torch

from ngram_ple.errors import CheckpointError

_E4M3_NAN = 0x7F  # with either sign; E4M3fn has no infinities


def row_scale_bytes(block: torch.Tensor, dtype: str, name: str, first_row: int) -> torch.Tensor:
    """Turn scales as stored into scales as the table holds them.

    Parameters
    ----------
    block : torch.Tensor
        uint8 [n, bytes a row], little-endian as in the file.
    dtype : str
        "BF16" or "F32" (fp8-rowwise: widened to fp32, exactly) or "F8_E4M3" (nvfp4: as they are).
    name, first_row
        For messages; the row is global.

    Returns
    -------
    torch.Tensor
        uint8 [n, bytes a row].

    Raises
    ------
    CheckpointError
        A scale that is NaN or infinite; the tensor, row and value are named.
    """
    if dtype == "F8_E4M3":
        bad = (block & _E4M3_NAN) == _E4M3_NAN
        result = block
    else:
        values = block.view(torch.bfloat16 if dtype == "BF16" else torch.float32).to(torch.float32)
        bad = ~torch.isfinite(values)
        result = values.view(torch.uint8)
    if bool(bad.any()):
        row = int(bad.any(dim=1).nonzero()[0, 0])
        raise CheckpointError(
            f"{name}: expected finite scales, row {first_row + row} has a NaN or infinite one (never filled?)"
        )
    return result


def global_scale_value(tensor: torch.Tensor, reciprocal: bool, name: str) -> float:
    """Return the global scale that a one-element tensor stands for.

    With `reciprocal` the tensor holds one over it (compressed-tensors), which is inverted once, in fp32.

    Raises
    ------
    CheckpointError
        The scale is NaN, infinite, or the reciprocal of zero.
    """
    value = tensor.detach().reshape(()).to(device="cpu", dtype=torch.float32)
    scale = value.reciprocal() if reciprocal else value
    if not bool(torch.isfinite(scale)) or not bool(torch.isfinite(value)):
        raise CheckpointError(f"{name}: expected a finite scale, got {value.item()} (never filled?)")
    return float(scale.item())
