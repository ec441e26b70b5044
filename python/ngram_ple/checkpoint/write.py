"""A table as a checkpoint in the canonical layout: its tensors, its config.json, the whole folder.

Rows may come from a callable, so that a table larger than memory streams through a few blocks.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ngram_ple.checkpoint import names
from ngram_ple.checkpoint.layout import RowLeaf, filled_shards, most_shards, shard_rows, table_layout
from ngram_ple.checkpoint.safetensors_file import DTYPE_CODES, MAX_TENSORS
from ngram_ple.checkpoint.safetensors_writer import TensorToWrite, write_folder
from ngram_ple.config import NGramConfig
from ngram_ple.errors import CheckpointError

Rows: TypeAlias = torch.Tensor | Callable[[int, int], torch.Tensor]
"""A tensor ``[padded_rows, width]``, or a callable ``(first, last)`` that returns its rows [first, last)."""

CONFIG_DTYPES = {"fp8": "float8_e4m3fn", "fp8-rowwise": "float8_e4m3fn", "nvfp4": "nvfp4"}
"""``ple_embedding_dtype`` of the quantized formats."""


def write_checkpoint(
    folder: str | os.PathLike[str],
    config: NGramConfig,
    *,
    format: str,
    padded_rows: int,
    weight: Rows,
    weight_scale: Rows | None = None,
    global_scale: torch.Tensor | float | None = None,
    buffers: Mapping[str, Sequence[int]] | None = None,
    base_config: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    max_file_bytes: int = 5 << 30,
    progress: Callable[[int], object] | None = None,
) -> list[Path]:
    """Write one PLE layer's table as a checkpoint folder.

    Parameters
    ----------
    folder : path
        Made when it does not exist.
    config : NGramConfig
        Its `split_ngram_parts` says how many shards; `layer` and `ple_layer_ids` where the table belongs.
    format : str
        bf16, fp16, fp32, fp8, fp8-rowwise or nvfp4.
    padded_rows : int
    weight : tensor or callable
        ``[padded_rows, head_dim]`` in the format's dtype; for nvfp4 uint8 ``[padded_rows, head_dim / 2]``.
    weight_scale : tensor or callable, optional
        fp8-rowwise: bf16 or fp32 ``[padded_rows, 1]``; nvfp4: float8_e4m3fn ``[padded_rows, head_dim / 16]``.
    global_scale : tensor or float, optional
        fp8: one bf16 or fp32 value; nvfp4: one fp32 value. A float is written as fp32.
    buffers : mapping, optional
        Hash buffers to store: ``layer_multipliers``, ``ngram_heads_vocab_sizes``, ``ngram_heads_offsets``.
    base_config : mapping, optional
        config.json to start from, instead of the fields of `config` alone; its quantization is left out.
    prefix : str, optional
        ``model.language_model.layers.{i}.ple.ple_embedding.`` by default.
    max_file_bytes : int
        Tensors of one file add up to at most this, unless a single one is larger.
    progress : callable, optional
        Called with the bytes of each block written.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    CheckpointError
        A wrong dtype or shape, a scale that the format lacks or needs, more shards than a reader takes.
    """
    tensors = table_tensors(
        config,
        format=format,
        padded_rows=padded_rows,
        weight=weight,
        weight_scale=weight_scale,
        global_scale=global_scale,
        buffers=buffers,
        prefix=prefix,
    )
    json_config = stored_config(config, format, base_config)
    return write_folder(folder, json_config, tensors, max_file_bytes=max_file_bytes, progress=progress)


def stored_config(
    config: NGramConfig, format: str, base_config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the config.json of a checkpoint whose tables are written in `format`."""
    stored: dict[str, Any] = copy.deepcopy(dict(base_config)) if base_config is not None else config.to_dict()
    text = stored.setdefault("text_config", {}) if base_config is None else stored.get("text_config", stored)
    for section in (stored, text):
        section.pop("quantization_config", None)
        section.pop("ple_embedding_dtype", None)
    if format in CONFIG_DTYPES:
        text["ple_embedding_dtype"] = CONFIG_DTYPES[format]
    text["split_ngram_parts"] = config.split_ngram_parts
    return stored


def table_tensors(
    config: NGramConfig,
    *,
    format: str,
    padded_rows: int,
    weight: Rows,
    weight_scale: Rows | None = None,
    global_scale: torch.Tensor | float | None = None,
    buffers: Mapping[str, Sequence[int]] | None = None,
    prefix: str | None = None,
) -> list[TensorToWrite]:
    """Return the tensors of one table for `write_folder`; the parameters are those of `write_checkpoint`."""
    layout = table_layout(format, config.head_dim)
    most = most_shards(len(layout.rows), len(buffers or {}) + (layout.global_scale is not None))
    if filled_shards(padded_rows, config.split_ngram_parts) > most:
        raise CheckpointError(
            f"split_ngram_parts must be at most {most} for {format}, as the tables of a folder may have "
            f"{MAX_TENSORS} tensors, got {config.split_ngram_parts}"
        )
    if prefix is None:
        prefix = default_prefix(config)
    tensors = []
    for name, values in (buffers or {}).items():
        if name not in names.BUFFERS:
            raise CheckpointError(f"buffers must be among {', '.join(names.BUFFERS)}, got {name!r}")
        tensors.append(_small(f"{prefix}{name}", torch.tensor(list(values), dtype=torch.int64)))
    given = {"weight": weight, "weight_scale": weight_scale}
    for leaf in layout.rows:
        rows = given.pop(leaf.name)
        if rows is None:
            raise CheckpointError(f"{leaf.name} must be given for {format}, got nothing")
        tensors += _shards(leaf, rows, padded_rows, config.split_ngram_parts, prefix)
    for name, extra in given.items():
        if extra is not None:
            raise CheckpointError(f"{name} must not be given for {format}: it has no scales of its rows")
    if (layout.global_scale is None) != (global_scale is None):
        must = "must not" if layout.global_scale is None else "must"
        raise CheckpointError(f"global_scale {must} be given for {format}, got {global_scale}")
    if layout.global_scale is not None:
        scale = global_scale if isinstance(global_scale, torch.Tensor) else torch.tensor(global_scale)
        if DTYPE_CODES.get(scale.dtype) not in layout.global_scale.dtypes or scale.numel() != 1:
            raise CheckpointError(
                f"global_scale must be one {' or '.join(layout.global_scale.dtypes)} value for {format}, "
                f"got {scale.dtype} {list(scale.shape)}"
            )
        name = names.shard_name(None, layout.global_scale.name)
        tensors.append(_small(f"{prefix}{name}", scale.detach().reshape(1).cpu()))
    return tensors


def default_prefix(config: NGramConfig) -> str:
    """Where published models have the configured layer's table."""
    return f"model.language_model.layers.{config.decoder_layer}.ple.ple_embedding."


def _small(name: str, tensor: torch.Tensor) -> TensorToWrite:
    return TensorToWrite(name, DTYPE_CODES[tensor.dtype], tuple(tensor.shape), _slicer(tensor))


def _shards(leaf: RowLeaf, rows: Rows, padded_rows: int, parts: int, prefix: str) -> list[TensorToWrite]:
    if isinstance(rows, torch.Tensor):
        if rows.shape != (padded_rows, leaf.width):
            raise CheckpointError(
                f"{leaf.name} must be [{padded_rows}, {leaf.width}], got {list(rows.shape)}"
            )
        dtype, fetch = rows.dtype, _slicer(rows)
    else:
        dtype, fetch = rows(0, 1).dtype, rows
    code = DTYPE_CODES.get(dtype)
    if code not in leaf.dtypes:
        raise CheckpointError(f"{leaf.name} must be {' or '.join(leaf.dtypes)}, got {dtype}")
    tensors = []
    for shard in range(parts):
        first, last = shard_rows(shard, padded_rows, parts)
        if first == last:
            break  # a shard without rows is left out
        name = f"{prefix}{names.shard_name(shard, leaf.name)}"
        tensors.append(TensorToWrite(name, code, (last - first, leaf.width), _shifted(fetch, first)))
    return tensors


def _slicer(tensor: torch.Tensor) -> Callable[[int, int], torch.Tensor]:
    return lambda first, last: tensor[first:last]


def _shifted(fetch: Callable[[int, int], torch.Tensor], shift: int) -> Callable[[int, int], torch.Tensor]:
    return lambda first, last: fetch(shift + first, shift + last)
