"""Rows of numbers to a stored format: the scale of a whole table, and what is refused.

The arithmetic of rows and blocks is `ngram_ple.ops.encode`'s.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ngram_ple import ops
from ngram_ple.errors import ConfigError, NgramPleError, shown
from ngram_ple.formats import row_format

LEAST_SCALE = 2.0**-117
"""Global and row scales are at least this, so that their reciprocals and products stay normal numbers."""

_REACH = {"fp8": 448.0, "nvfp4": 448.0 * 6.0}  # what the codes reach, block scales included
SCALE_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class EncodedRows(NamedTuple):
    """What `ngram_ple.ops.decode` takes: rows, their scales and the table's, None where there are none."""

    weight: torch.Tensor
    scale: torch.Tensor | None
    global_scale: torch.Tensor | None


def global_scale(amax: torch.Tensor | float, format: str, scale_dtype: str = "bf16") -> torch.Tensor:
    """Choose the scale of a whole fp8 or nvfp4 table.

    Parameters
    ----------
    amax : Tensor or float
        The largest finite magnitude of the table; any shape, of which the maximum is taken.
    format : str
        "fp8": amax / 448; "nvfp4": amax / 2688.
    scale_dtype : str
        "bf16" or "fp32": fp8's scale is rounded to it (bf16 by default, since fp8 rows decode to bf16 with a
        scale rounded to that). nvfp4's is fp32.

    Returns
    -------
    Tensor
        float32 of one element, at least 2^-117; 1 where amax is 0.

    Raises
    ------
    ConfigError
        A format without such a scale, another scale_dtype, a number that is negative or not finite (of a
        tensor, which may be on a GPU, values are not looked at).
    """
    if format not in tuple(_REACH):
        raise ConfigError(f"format must be one of {', '.join(_REACH)}, got {shown(format)}")
    if scale_dtype not in tuple(SCALE_DTYPES):
        raise ConfigError(f"scale_dtype must be one of {', '.join(SCALE_DTYPES)}, got {shown(scale_dtype)}")
    if not isinstance(amax, torch.Tensor) and not 0 <= amax < math.inf:
        raise ConfigError(f"amax must be finite and not negative, got {shown(amax)}")
    most = torch.as_tensor(amax, dtype=torch.float32)
    most = most.max() if most.numel() else most.new_zeros(())
    scale = (most / _REACH[format]).clamp_min(LEAST_SCALE)
    if format == "fp8" and scale_dtype == "bf16":
        scale = scale.bfloat16().float()
    return torch.where(most > 0, scale, torch.ones_like(scale)).reshape(1)


def encode_rows(
    rows: torch.Tensor, format: str, *, scale_dtype: str = "bf16", saturate: bool = False
) -> EncodedRows:
    """Encode a whole table of rows, its global scale chosen from them.

    Parameters
    ----------
    rows : Tensor
        bfloat16, float16 or float32 ``[n, head_dim]``, contiguous, on any device.
    format : str
        bf16, fp16, fp32, fp8, fp8-rowwise or nvfp4.
    scale_dtype : str
        "bf16" or "fp32": what fp8's and fp8-rowwise's scales are rounded to.
    saturate : bool
        Encode infinities as the largest code of their sign, and NaN as zero, instead of refusing them.

    Returns
    -------
    EncodedRows
        `ops.decode(*encoded, format=format, out_dtype=…, head_dim=…)` gives the rows back, rounded.

    Raises
    ------
    NgramPleError
        A NaN or an infinity; the first row that has one is named (this waits for a GPU).
    """
    if not saturate:
        bad = ~ops.row_amax(rows).isfinite()
        if bool(bad.any()):
            row = int(bad.nonzero()[0, 0])
            raise NgramPleError(f"rows must be finite, but row {row} has a NaN or an infinity")
    geometry = row_format(format, rows.shape[-1])
    whole = None
    if geometry.has_global_scale:
        whole = global_scale(ops.row_amax(rows, finite_only=True), format, scale_dtype)
    weight, scale = ops.encode(rows, whole, format=format, scale_dtype=scale_dtype)
    return EncodedRows(weight, scale if geometry.scale_bytes else None, whole)
