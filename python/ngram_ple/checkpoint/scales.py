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
    values = _values(block, dtype)
    bad = _bad_rows(values)
    if len(bad):
        raise CheckpointError(bad_scale_message(name, first_row + int(bad[0])))
    return values.view(torch.uint8)


def bad_rows(block: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return the rows of a block that hold a NaN or an infinite scale: int64 ``[n]``, ascending."""
    return _bad_rows(_values(block, dtype))


def _values(block: torch.Tensor, dtype: str) -> torch.Tensor:
    """Bytes of E4M3 scales as they are, others as fp32."""
    if dtype == "F8_E4M3":
        return block
    return block.view(torch.bfloat16 if dtype == "BF16" else torch.float32).to(torch.float32)


def _bad_rows(values: torch.Tensor) -> torch.Tensor:
    bad = (values & _E4M3_NAN) == _E4M3_NAN if values.dtype == torch.uint8 else ~torch.isfinite(values)
    return bad.any(dim=1).nonzero()[:, 0] if bool(bad.any()) else torch.empty(0, dtype=torch.int64)


def bad_scale_message(name: str, row: int, count: int = 1) -> str:
    """Say which scales of a tensor are not finite: how many rows, and the first one."""
    rows = f"row {row} has" if count == 1 else f"{count} rows from row {row} on have"
    return f"{name}: expected finite scales, {rows} a NaN or infinite one (never filled?)"


class GlobalScales:
    """The global scale, from one tensor or from one a shard, which must agree.

    Attributes
    ----------
    value : float or None
        None until one came.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self._name = ""

    def take(self, tensor: torch.Tensor, reciprocal: bool, name: str) -> None:
        """Take one; CheckpointError when it is not finite or differs from an earlier one."""
        scale = global_scale_value(tensor, reciprocal, name)
        if self.value is not None and self.value != scale:
            raise CheckpointError(
                f"{name}: expected the global scale {self.value} of {self._name}, got {scale}"
            )
        self.value, self._name = scale, name


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
