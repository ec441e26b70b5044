"""Which format a checkpoint's table has: the tensors on disk, held against the configuration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from ngram_ple.checkpoint import names
from ngram_ple.checkpoint.safetensors_file import TensorSlice
from ngram_ple.errors import CheckpointError, NgramPleWarning
from ngram_ple.quantization import Resolution

_UNQUANTIZED = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
_FAMILY = {"fp8": "fp8", "fp8-rowwise": "fp8", "nvfp4": "nvfp4"}


@dataclass(frozen=True)
class FormatDecision:
    """The format of a stored table and what decided it.

    Attributes
    ----------
    format : str
        One of bf16 fp16 fp32 fp8 fp8-rowwise nvfp4.
    evidence : str
        What the tensors show, in words.
    configured : Resolution
        What the configuration says, and by which rule.
    agrees : bool
        Whether both say the same; the tensors win where they do not.
    """

    format: str
    evidence: str
    configured: Resolution
    agrees: bool

    @property
    def rule(self) -> str:
        """What decided, in words."""
        says = f"the configuration says {self.configured.format}"
        says += " too" if self.agrees else ", the tensors win"
        return f"{self.evidence}; {says} ({self.configured.rule})"


def detect_format(
    tensors: Mapping[str, TensorSlice], configured: Resolution, prefix: str = ""
) -> FormatDecision:
    """Decide the format of a table.

    The tensors decide; where the configuration says otherwise a warning names both.

    Parameters
    ----------
    tensors : mapping
        By name relative to the prefix.
    configured : Resolution
        What the configuration says.
    prefix : str
        For messages.

    Raises
    ------
    CheckpointError
        No weight, weights of several dtypes, or dtypes that belong to no format; the tensors are named.
    """
    stored, evidence = _by_tensors(tensors, prefix)
    agrees = _FAMILY.get(stored, "unquantized") == configured.format
    decision = FormatDecision(stored, evidence, configured, agrees)
    if not agrees:
        warnings.warn(f"{prefix}ngram_embedding is {stored}: {decision.rule}", NgramPleWarning, stacklevel=3)
    return decision


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
