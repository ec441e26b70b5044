"""Which file of a checkpoint folder holds which PLE tensor, without trusting the index or the file system."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from ngram_ple.checkpoint.names import is_ignored, is_ple_name
from ngram_ple.checkpoint.safetensors_file import TensorSlice, read_header
from ngram_ple.errors import CheckpointError
from ngram_ple.json_file import object_entries, read_bounded

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_MAX_INDEX_BYTES = 32 << 20


def locate_tensors(folder: Path) -> dict[str, TensorSlice]:
    """Find the folder's PLE tensors by full name.

    Raises
    ------
    CheckpointError
        See `ngram_ple.checkpoint.open.open_checkpoint`.
    """
    if (folder / INDEX_FILE).exists() or (folder / INDEX_FILE).is_symlink():
        return _by_index(folder)
    files = (
        [SINGLE_FILE]
        if (folder / SINGLE_FILE).exists()
        else sorted(p.name for p in folder.glob("*.safetensors"))
    )
    if not files:
        raise CheckpointError(
            f"{folder}: expected {INDEX_FILE}, {SINGLE_FILE} or *.safetensors files, got none"
        )
    tensors: dict[str, TensorSlice] = {}
    for file in files:
        for name, tensor in read_header(_inside(folder, file), is_ple_name).items():
            if name in tensors:
                raise CheckpointError(
                    f"{tensor.file}: {name}: expected once, but {tensors[name].file} has it too"
                )
            tensors[name] = tensor
    return tensors


def _by_index(folder: Path) -> dict[str, TensorSlice]:
    index = _inside(folder, INDEX_FILE)
    try:
        placed = _read_weight_map(read_bounded(index, _MAX_INDEX_BYTES))
    except OSError as error:
        raise CheckpointError(f"{index}: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{index}: {error}") from None
    tensors: dict[str, TensorSlice] = {}
    for file in sorted(set(placed.values())):
        path = _inside(folder, file, f"{index} names {file!r}, but ")
        header = read_header(path, is_ple_name)
        for name, tensor in header.items():
            if placed.get(name) == file:
                tensors[name] = tensor
            elif not is_ignored(name):
                elsewhere = f"places in {placed[name]}" if name in placed else "does not list"
                raise CheckpointError(f"{path}: has {name}, which {index.name} {elsewhere}")
        for name, holder in placed.items():
            if holder == file and name not in header:
                raise CheckpointError(
                    f"{path}: expected {name} there, as {index.name} says, but it is missing"
                )
    return tensors


def _read_weight_map(data: bytes) -> dict[str, str]:
    """Tensor -> file, for PLE tensors; every file name is checked."""
    placed: dict[str, str] = {}
    checked: set[str] = set()
    found = False
    for key, begin, end in object_entries(data):
        if key != "weight_map":
            continue
        found = True
        for name, first, last in object_entries(data, begin, end):
            if last - first > 4096:
                raise ValueError(f"weight_map[{name!r}] must be a file name, got {last - first} bytes")
            file = json.loads(data[first:last])
            if not isinstance(file, str):
                raise ValueError(f"weight_map[{name!r}] must be a file name, got {file!r}")
            if file not in checked:
                _check_file_name(name, file)
                checked.add(file)
            if is_ple_name(name):
                placed[name] = file
    if not found:
        raise ValueError("must have a weight_map, got none")
    return placed


def _check_file_name(name: str, file: str) -> None:
    path = PurePosixPath(file)
    file.encode()  # a lone surrogate is a ValueError here, not where the file is opened
    if not file or "\0" in file or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"weight_map[{name!r}] must name a file inside the folder, got {file!r}")
    if path.suffix != ".safetensors":
        raise ValueError(f"weight_map[{name!r}] must name a *.safetensors file, got {file!r}")


def _inside(folder: Path, file: str, blame: str = "") -> Path:
    """Return the path of a file of the folder, unless links lead out of it.

    A Hugging Face cache is the one exception: its snapshots are links to the blobs beside them.
    """
    path = folder / file
    try:
        target, root = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{blame}{path}: {reason}") from None
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    if not any(target.is_relative_to(allowed) for allowed in roots):
        raise CheckpointError(f"{blame}{path} leads out of the folder, to {target}")
    return path
