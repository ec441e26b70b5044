"""A conversion from its beginning, or from where an earlier one was interrupted, to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ngram_ple.checkpoint.files import INDEX_FILE
from ngram_ple.checkpoint.open import open_checkpoint
from ngram_ple.checkpoint.read import reading_threads
from ngram_ple.checkpoint.safetensors_writer import index_of, new_file, write_config_and_index
from ngram_ple.config import LEGACY_QUANTIZATION_FILE
from ngram_ple.convert.blocks import Workers, find_amax
from ngram_ple.convert.checks import check_apart, check_copied_scales, check_options, check_room, check_shards
from ngram_ple.convert.config import converted_config
from ngram_ple.convert.head_errors import HeadErrors
from ngram_ple.convert.layer import Layer, OutFile
from ngram_ple.convert.record import Record, fingerprint, locked, open_record
from ngram_ple.errors import CheckpointError

TARGETS = ("bf16", "fp8", "fp8-rowwise", "nvfp4")
"""The formats that checkpoints are converted to."""

MAX_FILE_BYTES = 1 << 30  # what is done again after an interruption is less


@dataclass(frozen=True)
class Conversion:
    """What a conversion has written.

    Attributes
    ----------
    source_format, format : str
        Of the first table, and of those written.
    files : int
    nbytes : int
        Bytes of the tensors written, over all files.
    errors : list of list of HeadErrors
        By PLE layer and head: what encoding changed.
    """

    source_format: str
    format: str
    files: int
    nbytes: int
    errors: list[list[HeadErrors]]


def convert_checkpoint(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    to: str,
    *,
    shards: int | None = None,
    scale_dtype: str | None = None,
    saturate: bool = False,
    threads: int | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    begun: Callable[[int], object] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Conversion:
    """Convert the tables of all PLE layers of a checkpoint.

    The destination gets the PLE tensors under their canonical names, config.json and the index: the other
    tensors of the model are not copied. Every file appears under its name when it is whole and on the disk.
    An interrupted conversion is continued by the same call; what the interruption left half written is done
    again. A quantized table that already is in the format is copied as it is.

    Memory: a few blocks of 4 MiB a thread.

    Parameters
    ----------
    source : path
        A checkpoint folder of any layout that the reader takes.
    destination : path
        A folder that does not exist, that is empty, or that holds this conversion unfinished.
    to : str
        bf16, fp8, fp8-rowwise or nvfp4.
    shards : int, optional
        ``split_ngram_parts`` of the destination; the source's by default.
    scale_dtype : str, optional
        "bf16" (by default) or "fp32": what scales of fp8 and fp8-rowwise are stored as, and rounded to before
        use.
    saturate : bool
        Encode infinities as the largest code of their sign and NaN as zero. Rows that no head addresses (the
        tail that pads the table) are encoded so in any case, and count in no scale and no error. A
        conversion that was begun without it can go on with it.
    threads : int, optional
        The CPUs at hand, at most 16, by default.
    max_file_bytes : int
        Consecutive shards share a file up to this.
    begun : callable, optional
        Called once with the bytes of the source that will be read.
    progress : callable, optional
        Called with the bytes of each block read.

    Raises
    ------
    ConfigError
        A count below 1, more shards than a reader takes, a scale_dtype that is unknown or has no effect,
        another type.
    CheckpointError
        The source is wrong or changes meanwhile, a value is not finite, the destination holds something else,
        or its disk has no room. Before the first file is done nothing is left in the destination.
    OSError
        A file cannot be read or written, or is gone.
    """
    if to not in TARGETS:
        raise CheckpointError(f"the target must be one of {', '.join(TARGETS)}, got {to!r}")
    check_options(to, shards, scale_dtype, saturate, threads, max_file_bytes)
    if not os.fspath(destination):
        raise CheckpointError("the destination must be a folder, got ''")
    checkpoint = open_checkpoint(source)
    first = checkpoint.ngram_config()
    parts = first.split_ngram_parts if shards is None else shards
    layers = [
        Layer(checkpoint, number, to, parts, scale_dtype or "bf16", saturate)
        for number in range(len(first.ple_layer_ids))
    ]
    check_copied_scales(layers, scale_dtype)
    read = {checkpoint.folder / "config.json"}.union(*(layer.source_files for layer in layers))
    for name in (INDEX_FILE, LEGACY_QUANTIZATION_FILE):
        if (checkpoint.folder / name).exists():
            read.add(checkpoint.folder / name)
    options = {
        "to": to,
        "shards": parts,
        "scale_dtype": scale_dtype or "bf16",
        "saturate": saturate,
        "max_file_bytes": max_file_bytes,
    }
    target = Path(destination)
    check_apart(checkpoint.folder, target)
    check_shards(layers, parts)
    files = _plan_files(layers, max_file_bytes)
    index = index_of({file.name: layers[file.layer].tensors(file.shards, 1.0)[0] for file in files})
    began = fingerprint(checkpoint.folder, read)
    config = converted_config(checkpoint.config, to, parts, [layer.prefix for layer in layers])
    if not target.exists():
        check_room(target, files)
    made = [place for place in (target, *target.parents) if not place.exists()]
    target.mkdir(parents=True, exist_ok=True)

    def check_source() -> None:
        now = fingerprint(checkpoint.folder, read)
        changed = sorted(name for name in began if now[name] != began[name])
        if changed:
            raise CheckpointError(f"{checkpoint.folder / changed[0]} has changed while it was converted")

    with locked(target):
        record = open_record(target, options, began)
        try:
            todo = [file for file in files if not record.has(file.name)]
            check_room(target, todo)
            if begun is not None:
                begun(_bytes_to_read(layers, todo, record))
            with closing(Workers(threads or reading_threads())) as workers:
                told = progress or (lambda nbytes: None)
                _convert(layers, files, record, workers, told, check_source)
            check_source()
        except CheckpointError:
            record.withdraw(made)
            raise
        write_config_and_index(target, config, index)
        record.remove()
    errors = [_sum_errors(layer, files, record) for layer in layers]
    return Conversion(layers[0].source_format, to, len(files), index["metadata"]["total_size"], errors)


def _convert(
    layers: Sequence[Layer],
    files: Sequence[OutFile],
    record: Record,
    workers: Workers,
    progress: Callable[[int], object],
    check_source: Callable[[], None],
) -> None:
    """Write the files that are still to do."""
    for layer in layers:
        mine = [file for file in files if file.layer == layer.number]
        amax = record.amax.get(str(layer.number))
        if layer.needs_amax and amax is None:
            amax = find_amax(layer.source, layer.plan, workers, bool(record.options["saturate"]), progress)
            check_source()
            record.amax[str(layer.number)] = amax
            record.save()
        for file in mine:
            if record.has(file.name):
                continue
            with new_file(record.folder / file.name, durable=True) as out:
                errors = layer.write(out, file.shards, amax, workers, progress)
            check_source()
            record.finish_file(file.name, [one.to_list() for one in errors])


def _plan_files(layers: Sequence[Layer], max_file_bytes: int) -> list[OutFile]:
    groups = [(layer, *group) for layer in layers for group in layer.files(max_file_bytes)]
    files = []
    for number, (layer, shards, nbytes) in enumerate(groups, start=1):
        name = f"ngram-ple-{number:05d}-of-{len(groups):05d}.safetensors"  # apart from the model's own
        if shards.start == 0:
            nbytes += sum(tensor.nbytes for tensor in layer.tensors(range(0), 1.0)[1])
        files.append(OutFile(name, layer.number, shards, nbytes))
    return files


def _source_bytes(layer: Layer, file: OutFile) -> int:
    rows = layer.plan.padded_rows
    size = -(-rows // layer.shards)
    return (min(rows, file.shards.stop * size) - file.shards.start * size) * layer.source.row_bytes


def _bytes_to_read(layers: Sequence[Layer], todo: Sequence[OutFile], record: Record) -> int:
    total = 0
    for layer in layers:
        if layer.needs_amax and str(layer.number) not in record.amax:
            total += layer.source_bytes
        total += sum(_source_bytes(layer, file) for file in todo if file.layer == layer.number)
    return total


def _sum_errors(layer: Layer, files: Sequence[OutFile], record: Record) -> list[HeadErrors]:
    heads = [HeadErrors() for _ in layer.plan.head_sizes]
    for file in files:
        if file.layer == layer.number:
            for head, sums in zip(heads, record.files[file.name]["errors"], strict=True):
                head.add(HeadErrors(*sums))
    return heads
