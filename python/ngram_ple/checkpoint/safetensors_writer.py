"""Checkpoint folders written block by block: safetensors files, config.json, the index.

Every file appears by a rename once it is whole; the index comes last.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ngram_ple.checkpoint.files import INDEX_FILE, check_index
from ngram_ple.checkpoint.safetensors_file import MAX_HEADER_BYTES, TORCH_DTYPES
from ngram_ple.errors import CheckpointError

PART = ".part"
"""How the name of a file that is being written ends; it begins with a dot."""

_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class TensorEntry:
    """A tensor as a file's header tells of it.

    Attributes
    ----------
    name, dtype, shape
        The full name, a safetensors dtype code, and the shape, of one dimension at least.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * TORCH_DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class TensorToWrite(TensorEntry):
    """A tensor of a checkpoint whose rows are fetched block by block when it is written.

    Attributes
    ----------
    rows : callable
        ``(first, last)`` -> rows [first, last), a tensor ``[last - first, *shape[1:]]`` of the dtype.
    block_rows : int, optional
        Rows fetched at a time; by default what 8 MiB hold.
    """

    rows: Callable[[int, int], torch.Tensor]
    block_rows: int | None = None


def write_folder(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Sequence[TensorToWrite],
    *,
    max_file_bytes: int = 5 << 30,
    progress: Callable[[int], object] | None = None,
) -> list[Path]:
    """Write a checkpoint folder and return its files.

    Parameters
    ----------
    folder : path
        Made when it does not exist.
    config : mapping
        Content of config.json.
    tensors : sequence of TensorToWrite
        Go, in this order, into as many files as `max_file_bytes` asks for.
    max_file_bytes : int
        Tensors of one file add up to at most this, unless a single one is larger.
    progress : callable, optional
        Called with the bytes of each block written.

    Raises
    ------
    CheckpointError
        Two tensors of one name or more than a reader takes, before anything is written; rows of another dtype
        or shape than announced.
    """
    target = Path(folder)
    groups = _grouped(tensors, max_file_bytes)
    files = {
        f"model-{number:05d}-of-{len(groups):05d}.safetensors": group
        for number, group in enumerate(groups, start=1)
    }
    index = index_of(files)
    target.mkdir(parents=True, exist_ok=True)
    for name, group in files.items():
        write_safetensors(target / name, group, progress)
    return [*(target / name for name in files), *write_config_and_index(target, config, index)]


def index_of(files: Mapping[str, Sequence[TensorEntry]]) -> dict[str, Any]:
    """Return the index of files with these tensors; parameters and errors as those of `write_folder`."""
    weight_map: dict[str, str] = {}
    for file, tensors in files.items():
        file_header(tensors)  # refuses one that no reader takes
        for tensor in tensors:
            if weight_map.setdefault(tensor.name, file) != file:
                raise CheckpointError(f"{tensor.name} must be written once, got it twice")
    total_size = sum(tensor.nbytes for tensors in files.values() for tensor in tensors)
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    try:
        check_index(_json(index))
    except ValueError as error:
        raise CheckpointError(f"{INDEX_FILE} must be one that can be read, got {error}") from None
    return index


def write_config_and_index(folder: Path, config: Mapping[str, Any], index: Mapping[str, Any]) -> list[Path]:
    """Write config.json, then the index: the files that make a folder of tensors a checkpoint."""
    contents = {folder / "config.json": config, folder / INDEX_FILE: index}
    for path, content in contents.items():
        write_json(path, content)
    return list(contents)


def write_json(path: Path, content: Mapping[str, Any], *, durable: bool = False) -> None:
    """Write a JSON object, whole or not at all; `durable` as in `new_file`."""
    with new_file(path, durable=durable) as file:
        file.write(_json(content))


def write_safetensors(
    path: Path, tensors: Sequence[TensorToWrite], progress: Callable[[int], object] | None = None
) -> None:
    """Write one safetensors file; parameters and errors as those of `write_folder`."""
    header, _ = file_header(tensors)
    with new_file(path) as file:
        file.write(header)
        for tensor in tensors:
            for block in _tensor_blocks(tensor):
                file.write(block)
                if progress is not None:
                    progress(block.nbytes)


def file_header(tensors: Sequence[TensorEntry]) -> tuple[bytes, list[int]]:
    """Return what a safetensors file of these tensors begins with, and where in it each of them lies."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins = [0]
    for tensor in tensors:
        if tensor.name in entries:
            raise CheckpointError(f"{tensor.name} must be written once, got it twice")
        end = begins[-1] + tensor.nbytes
        entries[tensor.name] = {
            "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begins[-1], end],
        }  # fmt: skip
        begins.append(end)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"the header of a file must have at most {MAX_HEADER_BYTES} bytes, got {len(text)} for "
            f"{len(tensors)} tensors"
        )
    header = len(text).to_bytes(8, "little") + text
    return header, [len(header) + begin for begin in begins[:-1]]


def pwrite_all(fd: int, data: memoryview, offset: int) -> None:
    """Write bytes at an offset of an open file."""
    while data:
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count


@contextmanager
def new_file(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a file that appears under its name when the block ends, and not at all where that raises.

    With `durable` its bytes are on the disk before it gets its name.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        opened = part.open("wb")
    except OSError as error:  # the hidden file is nothing that a user knows of
        raise OSError(error.errno, error.strerror, str(path.parent)) from None
    try:
        with opened as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _grouped(tensors: Sequence[TensorToWrite], max_file_bytes: int) -> list[list[TensorToWrite]]:
    groups: list[list[TensorToWrite]] = []
    room = 0
    for tensor in tensors:
        if not groups or tensor.nbytes > room:
            groups.append([])
            room = max_file_bytes
        groups[-1].append(tensor)
        room -= tensor.nbytes
    return groups


def _tensor_blocks(tensor: TensorToWrite) -> Iterator[memoryview]:
    rows = tensor.shape[0]
    step = tensor.block_rows or max(1, _BLOCK_BYTES // max(1, tensor.nbytes // max(1, rows)))
    for first in range(0, rows, step):
        last = min(rows, first + step)
        block = tensor.rows(first, last)
        shape = (last - first, *tensor.shape[1:])
        if block.dtype != TORCH_DTYPES[tensor.dtype] or block.shape != shape:
            raise CheckpointError(
                f"{tensor.name}: expected {tensor.dtype} {list(shape)} for rows {first}..{last - 1}, "
                f"got {block.dtype} {list(block.shape)}"
            )
        yield block.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
