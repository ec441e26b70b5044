"""What a conversion refuses before anything is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ngram_ple.checkpoint.layout import filled_shards, most_shards
from ngram_ple.checkpoint.safetensors_file import MAX_TENSORS
from ngram_ple.config import MAX_SHARDS
from ngram_ple.convert.layer import Layer, OutFile
from ngram_ple.encoding import SCALE_DTYPES
from ngram_ple.errors import CheckpointError, ConfigError, shown

_WITH_SCALE_DTYPE = ("fp8", "fp8-rowwise")


def check_options(
    to: str, shards: object, scale_dtype: object, saturate: object, threads: object, max_file_bytes: object
) -> None:
    """Refuse arguments that are none, or that would have no effect."""
    counts = {"shards": shards, "threads": threads, "max_file_bytes": max_file_bytes}
    for name, value in counts.items():
        if value is None and name != "max_file_bytes":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be an integer of at least 1, got {shown(value)}")
    if scale_dtype is not None:
        if scale_dtype not in tuple(SCALE_DTYPES):
            listed = ", ".join(SCALE_DTYPES)
            raise ConfigError(f"scale_dtype must be one of {listed}, got {shown(scale_dtype)}")
        if to not in _WITH_SCALE_DTYPE:
            raise ConfigError(
                f"scale_dtype (--scale-dtype) is for {' and '.join(_WITH_SCALE_DTYPE)} alone, "
                f"got {scale_dtype} with {to}"
            )
    if not isinstance(saturate, bool):
        raise ConfigError(f"saturate must be a bool, got {shown(saturate)}")


def check_copied_scales(layers: Sequence[Layer], scale_dtype: str | None) -> None:
    """Refuse a dtype that copied scales do not have."""
    if scale_dtype is None:
        return
    names = {dtype: name for name, dtype in SCALE_DTYPES.items()}
    for layer in layers:
        copied = layer.copied_scale_dtype
        if copied is not None and copied != SCALE_DTYPES[scale_dtype]:
            raise ConfigError(
                f"scale_dtype (--scale-dtype) must be {names[copied]} or not given, as {layer.source.title} "
                f"is {layer.source_format} already and copied with its scales, got {scale_dtype}"
            )


def check_shards(layers: Sequence[Layer], shards: int) -> None:
    """Refuse shards that no reader here would take."""
    others = sum(layer.small_tensors for layer in layers)
    most = most_shards(sum(layer.shard_tensors for layer in layers), others)
    filled = [filled_shards(layer.plan.padded_rows, shards) for layer in layers]
    tensors = sum(count * layer.shard_tensors for count, layer in zip(filled, layers, strict=True)) + others
    if tensors > MAX_TENSORS:
        raise ConfigError(
            f"shards (--shards) must be at most {most}, as the tables of a folder may have {MAX_TENSORS} "
            f"tensors, got {shards} ({tensors} tensors)"
        )
    if shards > MAX_SHARDS:
        raise ConfigError(f"shards (--shards) must be at most {MAX_SHARDS}, got {shards}")


def check_apart(source: Path, target: Path) -> None:
    """Refuse a destination that is no folder of its own."""
    read, written = source.resolve(), Path(os.path.realpath(target))
    if read == written or read in written.parents or written in read.parents:
        raise CheckpointError(f"the destination must lie apart from the source {source}, got {target}")
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"the destination must be a folder, got the file {target}")


def check_room(target: Path, files: Sequence[OutFile]) -> None:
    """Refuse files that the disk has no room for."""
    needed = sum(file.nbytes for file in files)
    place = Path(os.path.realpath(target))
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise CheckpointError(
            f"{target} needs {needed / 2**30:.2f} GiB more, but its disk has {free / 2**30:.2f} GiB left"
        )
