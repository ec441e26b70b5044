"""How each format lies in a checkpoint: tensors, dtypes and widths, and how a table is split into shards.

The layout in memory is `ngram_ple.formats`' matter; this is the one on disk, of published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from ngram_ple.checkpoint.safetensors_file import MAX_TENSORS
from ngram_ple.errors import CheckpointError

FORMATS = ("bf16", "fp16", "fp32", "fp8", "fp8-rowwise", "nvfp4")

_NVFP4_BLOCK = 16
_WEIGHT_DTYPES = {
    "bf16": "BF16",
    "fp16": "F16",
    "fp32": "F32",
    "fp8": "F8_E4M3",
    "fp8-rowwise": "F8_E4M3",
    "nvfp4": "U8",
}


@dataclass(frozen=True)
class RowLeaf:
    """A tensor with a row for each row of the table: canonical name, allowed dtypes, elements a row."""

    name: str
    dtypes: tuple[str, ...]
    width: int


@dataclass(frozen=True)
class GlobalScale:
    """A one-element scale of the whole table: its canonical name and allowed dtypes."""

    name: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class TableLayout:
    """What a table of one format consists of in a checkpoint.

    Attributes
    ----------
    rows : tuple of RowLeaf
        ``weight``, and ``weight_scale`` where rows have scales of their own.
    global_scale : GlobalScale or None
    aliases : dict
        Other names that checkpoints use (compressed-tensors) -> the canonical name.
    reciprocal : frozenset
        Names whose value is one over the global scale.
    """

    format: str
    rows: tuple[RowLeaf, ...]
    global_scale: GlobalScale | None
    aliases: dict[str, str]
    reciprocal: frozenset[str]


def table_layout(format: str, head_dim: int) -> TableLayout:
    """Return the layout of `format` ("bf16", …, "nvfp4") for rows of `head_dim` elements.

    Raises
    ------
    CheckpointError
        An unknown format, or nvfp4 with a head_dim that is no multiple of 16.
    """
    if format not in FORMATS:
        raise CheckpointError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    width = head_dim // 2 if format == "nvfp4" else head_dim
    weight = RowLeaf("weight", (_WEIGHT_DTYPES[format],), width)
    if format == "fp8":
        return TableLayout(format, (weight,), GlobalScale("weight_scale", ("BF16", "F32")), {}, frozenset())
    if format == "fp8-rowwise":
        scale = RowLeaf("weight_scale", ("BF16", "F32"), 1)
        return TableLayout(format, (weight, scale), None, {}, frozenset())
    if format == "nvfp4":
        if head_dim % _NVFP4_BLOCK:
            raise CheckpointError(f"nvfp4 needs a head_dim divisible by {_NVFP4_BLOCK}, got {head_dim}")
        return TableLayout(
            format,
            (weight, RowLeaf("weight_scale", ("F8_E4M3",), head_dim // _NVFP4_BLOCK)),
            GlobalScale("weight_scale_2", ("F32",)),
            {"weight_packed": "weight", "weight_global_scale": "weight_scale_2"},
            frozenset({"weight_global_scale"}),
        )
    return TableLayout(format, (weight,), None, {}, frozenset())


def shard_size(padded_rows: int, split_ngram_parts: int) -> int:
    """Rows of every shard but the last ones: ceil(padded_rows / split_ngram_parts)."""
    return -(-padded_rows // split_ngram_parts)


def filled_shards(padded_rows: int, split_ngram_parts: int) -> int:
    """Shards that have rows."""
    return -(-padded_rows // shard_size(padded_rows, split_ngram_parts))


def most_shards(shard_tensors: int, others: int) -> int:
    """Shards with rows that a folder may have, with so many tensors a shard and others beside them."""
    return (MAX_TENSORS - others) // shard_tensors


def shard_rows(shard: int, padded_rows: int, split_ngram_parts: int) -> tuple[int, int]:
    """Return the global rows [first, last) of a shard; the last shards may be shorter or empty."""
    size = shard_size(padded_rows, split_ngram_parts)
    return min(shard * size, padded_rows), min((shard + 1) * size, padded_rows)
