"""What a checkpoint folder holds for each PLE layer, whole or not: everything is looked at, nothing raised.

`ngram-ple inspect` prints it; `ngram_ple.checkpoint.verify` goes on from it to the tensors' contents.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ngram_ple.checkpoint import names
from ngram_ple.checkpoint.coverage import Coverage, Part
from ngram_ple.checkpoint.detect import FormatDecision, detect_format
from ngram_ple.checkpoint.layout import shard_rows
from ngram_ple.checkpoint.open import Checkpoint, open_checkpoint, read_buffer
from ngram_ple.checkpoint.safetensors_file import TensorSlice
from ngram_ple.config import NGramConfig
from ngram_ple.errors import NgramPleError, NgramPleWarning, shown
from ngram_ple.hash_plan import BUFFER_FIELDS, HashPlan
from ngram_ple.quantization import Resolution, explain_format

_MAX_MISSING = 1000  # missing shards that are named one by one


@dataclass
class LayerSurvey:
    """One PLE layer of a checkpoint.

    Attributes
    ----------
    config : NGramConfig
    derived, plan : HashPlan
        What the configuration gives, and what stored buffers make of it.
    prefix : str or None
        None when no place, or no single one, was found; then what follows is empty.
    tensors : mapping
        By relative name.
    decision : FormatDecision or None
        None when the tensors belong to no format.
    buffers : mapping
        The stored hash buffers.
    parts : mapping
        Accepted tensors and what each fills.
    missing : mapping
        Leaf -> its shards that are absent and should not be; None is the tensor of no shard.
    problems, notes : list of str
        What a load would refuse or the checkpoint contradicts itself in; what is only worth knowing.
    """

    config: NGramConfig
    derived: HashPlan
    plan: HashPlan
    prefix: str | None = None
    tensors: Mapping[str, TensorSlice] = field(default_factory=dict)
    decision: FormatDecision | None = None
    buffers: dict[str, list[int]] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    missing: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def absent_without_rows(self) -> int:
        """Count the weight's shards that are absent rightly: they have no rows."""
        parts = self.config.split_ngram_parts
        present = {parsed.shard for parsed in map(names.parse_table_tensor, self.parts) if parsed}
        if None in present:
            return 0
        rows = self.plan.padded_rows
        with_rows = -(-rows // max(1, shard_rows(0, rows, parts)[1]))
        return sum(shard not in present for shard in range(with_rows, parts))


@dataclass
class Survey:
    """A checkpoint folder and its PLE layers; `problems` and `notes` are those of no layer."""

    checkpoint: Checkpoint
    layers: list[LayerSurvey]
    problems: list[str]
    notes: list[str]


def survey_checkpoint(path: str | os.PathLike[str], layer: int | None = None) -> Survey:
    """Look at a checkpoint folder: config.json, headers and hash buffers, no rows.

    Parameters
    ----------
    path : path
    layer : int, optional
        The only PLE layer to look at; all by default.

    Raises
    ------
    CheckpointError
        `path` is no folder.
    ConfigError
        config.json is missing or wrong, or `layer` is no PLE layer of it.
    """
    problems: list[str] = []
    checkpoint = open_checkpoint(path, lambda error: problems.append(str(error)))
    first = checkpoint.ngram_config(layer or 0)
    numbers = range(len(first.ple_layer_ids)) if layer is None else [first.layer]
    layers = [_layer(checkpoint, number) for number in numbers]
    claimed = {found.prefix for found in layers}
    notes = [
        f"tensors under {shown(prefix)} belong to no PLE layer of config.json"
        for prefix in names.find_prefixes(checkpoint.tensors)
        if layer is None and prefix not in claimed
    ]
    return Survey(checkpoint, layers, problems, notes)


def _layer(checkpoint: Checkpoint, number: int) -> LayerSurvey:
    config = checkpoint.ngram_config(number)
    derived = HashPlan.from_config(config)
    found = LayerSurvey(config, derived, derived)
    steps: Iterable[Callable[[Checkpoint, LayerSurvey], None]] = (_place, _buffers, _format, _cover)
    for step in steps:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                step(checkpoint, found)
            except NgramPleError as error:
                found.problems.append(str(error))
        found.notes += [str(one.message) for one in caught if issubclass(one.category, NgramPleWarning)]
        if found.prefix is None:
            break
    return found


def _place(checkpoint: Checkpoint, found: LayerSurvey) -> None:
    found.prefix = checkpoint.select_prefix(found.config)
    found.tensors = checkpoint.under(found.prefix)


def _buffers(checkpoint: Checkpoint, found: LayerSurvey) -> None:
    for name, field_name in BUFFER_FIELDS.items():
        try:
            values = read_buffer(name, found.tensors, found.config, found.prefix or "")
        except NgramPleError as error:
            found.problems.append(str(error))
            continue
        if values is None:
            continue
        found.buffers[name] = values
        derived = getattr(found.derived, field_name)
        differing = [i for i, (stored, own) in enumerate(zip(values, derived, strict=True)) if stored != own]
        if differing:
            i = differing[0]
            found.problems.append(
                f"{found.prefix}{name}: {len(differing)} of {len(values)} values differ from those of "
                f"config.json, first [{i}]: {values[i]} stored, {derived[i]} derived; those stored are used. "
                "A wrong seed, vocab_size or ngram_vocab_size_base does this"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NgramPleWarning)  # told above
        found.plan = found.derived.with_buffers(found.buffers, str(checkpoint.folder))


def _format(checkpoint: Checkpoint, found: LayerSurvey) -> None:
    prefix, config = found.prefix or "", found.config
    try:
        configured = explain_format(config.quantization_config, prefix, config.ple_embedding_dtype)
    except NgramPleError as error:
        found.problems.append(str(error))
        configured = Resolution("unquantized", "which it does not say in a way that is understood")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NgramPleWarning)
        found.decision = detect_format(found.tensors, configured, prefix)
    if not found.decision.agrees:
        found.problems.append(f"{prefix}ngram_embedding is {found.decision.format}: {found.decision.rule}")


def _cover(checkpoint: Checkpoint, found: LayerSurvey) -> None:
    if found.decision is None:
        return
    prefix, config = found.prefix or "", found.config
    coverage = Coverage(
        found.decision.format,
        config.head_dim,
        found.plan.padded_rows,
        config.split_ngram_parts,
        prefix=prefix,
    )
    for name, tensor in found.tensors.items():
        if name in names.BUFFERS:
            continue
        try:
            part = coverage.accept(name, tensor.dtype, tensor.shape, str(tensor.file))
        except NgramPleError as error:
            found.problems.append(str(error))
            continue
        if part is not None:
            found.parts[name] = part
    for missing in coverage.missing():
        found.missing[missing.leaf] = missing.shards
        # One that is there and wrong has been told already.
        absent = [s for s in missing.shards if names.shard_name(s, missing.leaf) not in found.tensors]
        found.problems += [coverage.missing_message(missing.leaf, s) for s in absent[:_MAX_MISSING]]
        if len(absent) > _MAX_MISSING:
            found.problems.append(f"{prefix}{missing.leaf}: {len(absent) - _MAX_MISSING} more shards missing")
