"""A survey as plain numbers and lists: what ``ngram-ple inspect --json`` prints."""

from __future__ import annotations

from typing import Any

from ngram_ple.checkpoint.layout import table_layout
from ngram_ple.checkpoint.loader import small_tensor
from ngram_ple.checkpoint.scales import GlobalScales
from ngram_ple.checkpoint.survey import LayerSurvey, Survey
from ngram_ple.errors import NgramPleError
from ngram_ple.formats import row_format
from ngram_ple.hash_plan import BUFFER_FIELDS


def survey_facts(survey: Survey) -> dict[str, Any]:
    """Return the facts of a checkpoint and its layers."""
    files: dict[str, dict[str, Any]] = {}
    for tensor in survey.checkpoint.tensors.values():
        name = str(tensor.file.relative_to(survey.checkpoint.folder))
        entry = files.setdefault(name, {"file": name, "bytes": tensor.file.stat().st_size, "tensors": 0})
        entry["tensors"] += 1
    return {
        "checkpoint": str(survey.checkpoint.folder),
        "files": [files[name] for name in sorted(files)],
        "layers": [_layer_facts(layer) for layer in survey.layers],
        "problems": survey.problems,
        "notes": survey.notes,
    }


def _layer_facts(layer: LayerSurvey) -> dict[str, Any]:
    config, plan, decision = layer.config, layer.plan, layer.decision
    facts: dict[str, Any] = {
        "layer": config.layer,
        "decoder_layer": config.decoder_layer,
        "prefix": layer.prefix,
        "ngram_size": config.ngram_size,
        "heads_per_ngram": config.heads_per_ngram,
        "head_dim": config.head_dim,
        "split_ngram_parts": config.split_ngram_parts,
        "plan": {
            "heads": config.num_heads,
            "multipliers": plan.multipliers,
            "head_sizes": plan.head_sizes,
            "head_offsets": plan.head_offsets,
            "num_rows": plan.num_rows,
            "padded_rows": plan.padded_rows,
        },
        "buffers": {name: _buffer_facts(layer, name) for name in BUFFER_FIELDS},
        "format": decision and decision.format,
        "configured_format": decision and decision.configured.format,
        "configured_by": decision and decision.configured.rule,
        "rule": decision and decision.rule,
        "tensors": _tensor_facts(layer),
        "disk_bytes": sum(layer.tensors[name].nbytes for name in layer.parts),
        "memory_bytes": None,
        "slot_bytes": None,
        "problems": layer.problems,
        "notes": layer.notes,
    }
    try:
        slot_bytes = row_format(decision.format, config.head_dim).slot_bytes if decision else None
    except NgramPleError:  # told among the problems
        slot_bytes = None
    if slot_bytes is not None:
        facts |= {"slot_bytes": slot_bytes, "memory_bytes": slot_bytes * plan.padded_rows}
    return facts


def _buffer_facts(layer: LayerSurvey, name: str) -> dict[str, Any]:
    stored, derived = layer.buffers.get(name), getattr(layer.derived, BUFFER_FIELDS[name])
    if stored is None:
        return {"stored": name in layer.tensors, "agrees": None, "differences": []}
    pairs = enumerate(zip(stored, derived, strict=True))
    differences = [{"index": i, "stored": one, "derived": other} for i, (one, other) in pairs if one != other]
    return {"stored": True, "agrees": not differences, "differences": differences}


def _tensor_facts(layer: LayerSurvey) -> dict[str, Any]:
    if layer.decision is None:
        return {}
    layout = table_layout(layer.decision.format, layer.config.head_dim)
    facts = {leaf.name: _leaf_facts(layer, leaf.name) for leaf in layout.rows}
    if layout.global_scale:
        facts[layout.global_scale.name] = _scale_facts(layer, layout.global_scale.name)
    return facts


def _leaf_facts(layer: LayerSurvey, leaf: str) -> dict[str, Any]:
    parts = {name: part for name, part in layer.parts.items() if part.kind == "rows" and part.leaf == leaf}
    tensors = [layer.tensors[name] for name in parts]
    absent = [shard for shard in layer.missing.get(leaf, ()) if shard is not None]
    whole = any(".shard_" not in name for name in parts)
    return {
        "dtypes": sorted({tensor.dtype for tensor in tensors}),
        "names": sorted({name.rpartition(".")[2] for name in parts}),
        "whole": whole,
        "shards": len(parts),
        "expected_shards": 1 if whole else len(parts) + len(absent),
        "absent": absent,
        "shards_without_rows": 0 if whole or absent else layer.absent_without_rows(),
        "rows": sum(part.num_rows for part in parts.values()),
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "files": sorted({tensor.file.name for tensor in tensors}),
    }


def _scale_facts(layer: LayerSurvey, leaf: str) -> dict[str, Any]:
    scales = GlobalScales()
    parts = {name: part for name, part in layer.parts.items() if part.kind == "global_scale"}
    tensors = [layer.tensors[name] for name in parts]
    value: float | str
    try:
        for name, part in parts.items():
            scales.take(small_tensor(layer.tensors[name]), part.reciprocal, name)
        value = "absent" if scales.value is None else scales.value
    except NgramPleError as error:
        value = str(error)
    return {
        "dtypes": sorted({tensor.dtype for tensor in tensors}),
        "names": sorted({name.rpartition(".")[2] for name in parts}),
        "reciprocal": any(part.reciprocal for part in parts.values()),
        "value": value,
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "files": sorted({tensor.file.name for tensor in tensors}),
    }
