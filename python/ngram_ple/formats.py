"""How a table stores its rows: names and byte geometry of the formats."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ngram_ple import _core
from ngram_ple.errors import ConfigError, shown

FORMATS = ("bf16", "fp16", "fp32", "fp8", "fp8-rowwise", "nvfp4")
"""Every row format: three plain ones, E4M3 with one scale or a scale a row, and E2M1 with block scales."""

OUT_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""What rows decode to, with the names that operators use."""


@dataclass(frozen=True)
class RowFormat:
    """Byte geometry of one row.

    A table is uint8 ``[rows, slot_bytes]``. A slot is the row as checkpoints store it, then, for formats with
    scales of a row's own, those scales at `scale_offset`, zero-padded to a multiple of 16 bytes so that one
    aligned access brings both. Formats without scales have ``slot_bytes == row_bytes``.

    Attributes
    ----------
    name : str
        One of `FORMATS`.
    head_dim : int
        Elements of a row.
    row_bytes : int
        Bytes of its values or codes.
    scale_bytes : int
        Bytes of the scales it carries (fp8-rowwise: one fp32; nvfp4: head_dim / 16 E4M3), 0 when none.
    scale_offset : int
        Where they start in the slot.
    slot_bytes : int
        Bytes from one row to the next.
    has_global_scale : bool
        Whether one fp32 scale applies to the whole table.
    """

    name: str
    head_dim: int
    row_bytes: int
    scale_bytes: int
    scale_offset: int
    slot_bytes: int
    has_global_scale: bool


def row_format(name: str, head_dim: int) -> RowFormat:
    """Return the geometry of format `name` for rows of `head_dim` elements.

    Raises
    ------
    ConfigError
        An unknown name, head_dim outside 1..2^24, or one that the format does not allow (nvfp4 needs a
        multiple of 16).
    """
    if not isinstance(name, str):
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {shown(name)}")
    try:
        native = _core.row_format(name, head_dim)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return RowFormat(
        name=name,
        head_dim=native.head_dim,
        row_bytes=native.row_bytes,
        scale_bytes=native.scale_bytes,
        scale_offset=native.scale_offset,
        slot_bytes=native.slot_bytes,
        has_global_scale=native.has_global_scale,
    )


def out_dtype_name(dtype: torch.dtype) -> str:
    """Return the operators' name of an output dtype.

    Raises
    ------
    ConfigError
        Anything but bfloat16, float16 and float32.
    """
    try:
        return OUT_DTYPES[dtype]
    except (KeyError, TypeError):
        raise ConfigError(f"dtype must be one of {', '.join(map(str, OUT_DTYPES))}, got {dtype}") from None
