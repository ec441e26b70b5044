"""Which format a checkpoint's table has: the tensors on disk, held against the configuration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from ngram_ple.checkpoint import names
from ngram_ple.checkpoint.safetensors_file import TensorSlice
from ngram_ple.errors import CheckpointError, NgramPleWarning
from ngram_ple.quantization import ConfiguredFormat

_UNQUANTIZED = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
_FAMILY = {"fp8": "fp8", "fp8-rowwise": "fp8", "nvfp4": "nvfp4"}


@dataclass(frozen=True)
class FormatDecision:
    """The format of a stored table and, in words, the rule that decided it."""

    format: str
    rule: str


def detect_format(
    tensors: Mapping[str, TensorSlice], configured: ConfiguredFormat, prefix: str = ""
) -> FormatDecision:
    """Decide the format of a table.

    The tensors decide; where the configuration says otherwise a warning names both.

    Parameters
    ----------
    tensors : mapping
        By name relative to the prefix.
    configured : {"unquantized", "fp8", "nvfp4"}
        What `resolve_format` made of the configuration.
    prefix : str
        For messages.

    Raises
    ------
    CheckpointError
        No weight, weights of several dtypes, or dtypes that belong to no format; the tensors are named.
    """
    stored, evidence = _by_tensors(tensors, prefix)
    if _FAMILY.get(stored, "unquantized") == configured:
        return FormatDecision(stored, f"{evidence}; the configuration says {configured} too")
    rule = f"{evidence}; the configuration says {configured}, the tensors win"
    warnings.warn(f"{prefix}ngram_embedding is {stored}: {rule}", NgramPleWarning, stacklevel=3)
    return FormatDecision(stored, rule)


def _by_tensors(tensors: Mapping[str, TensorSlice], prefix: str) -> tuple[str, str]:
    leaves: dict[str, dict[str, str]] = {}  # leaf -> dtype -> a name that has it
    scale_shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in tensors.items():
        parsed = names.parse_table_tensor(name)
        if parsed is None:
            continue
        leaves.setdefault(parsed.leaf, {}).setdefault(tensor.dtype, name)
        if parsed.leaf == "weight_scale":
            scale_shapes[name] = tensor.shape
    weights = {**leaves.get("weight", {}), **leaves.get("weight_packed", {})}
    if not weights:
        raise CheckpointError(
            f"{prefix}ngram_embedding.weight missing: expected it whole or as shard_0.weight, …"
        )
    if len(weights) > 1:
        listed = ", ".join(f"{dtype} for {prefix}{name}" for dtype, name in sorted(weights.items()))
        raise CheckpointError(f"the shards of a table must have one dtype, got {listed}")
    dtype, name = next(iter(weights.items()))
    if dtype in _UNQUANTIZED:
        return _UNQUANTIZED[dtype], f"{name} is {dtype}"
    if dtype == "F8_E4M3":
        per_row = [scale for scale, shape in scale_shapes.items() if len(shape) == 2]
        if per_row:
            return "fp8-rowwise", f"{name} is {dtype} and {per_row[0]} has one scale a row"
        return "fp8", f"{name} is {dtype} without scales of its rows"
    if dtype == "U8":
        return "nvfp4", f"{name} is {dtype}, packed four-bit codes"
    raise CheckpointError(
        f"{prefix}{name}: expected BF16, F16, F32, F8_E4M3 or U8 (nvfp4 codes), "
        f"got {dtype}, which no supported format has"
    )
