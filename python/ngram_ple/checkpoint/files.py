"""Which file of a checkpoint folder holds which PLE tensor, without trusting the index or the file system."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from ngram_ple.checkpoint.names import is_ignored, is_ple_name
from ngram_ple.checkpoint.safetensors_file import MAX_TENSORS, TensorSlice, read_header
from ngram_ple.errors import CheckpointError, shown
from ngram_ple.json_file import nested_entries, read_bounded

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

# An index of 300 000 tensors, expert by expert, takes 36 MB.
_MAX_INDEX_BYTES = 48 << 20
_MAX_QUOTES = 4 * 350_000
_MAX_FILES = 10_000
_PLACED = re.compile(
    rb'"([^"\\\x00-\x1f]{1,4000})"[ \t\r\n]*:[ \t\r\n]*("[^"\\\x00-\x1f]{0,4000}")[ \t\r\n]*,[ \t\r\n]*'
)


Report: TypeAlias = Callable[[CheckpointError], object]
"""Takes what is wrong and lets the search go on."""


def locate_tensors(folder: Path, report: Report | None = None) -> dict[str, TensorSlice]:
    """Find the folder's PLE tensors by full name.

    Parameters
    ----------
    folder : Path
    report : callable, optional
        Called for each file or tensor in error, which is then left out; by default the first one is raised.

    Raises
    ------
    CheckpointError
        See `ngram_ple.checkpoint.open.open_checkpoint`.
    """
    finder = _Finder(folder, report)
    with finder.reported():
        finder.find()
    return finder.tensors


class _Finder:
    """One search: files of the folder one after another, each tensor's place checked."""

    def __init__(self, folder: Path, report: Report | None) -> None:
        self.tensors: dict[str, TensorSlice] = {}
        self._folder = folder
        self._report = report

    @contextmanager
    def reported(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            if self._report is None:
                raise
            self._report(error)

    def find(self) -> None:
        folder = self._folder
        if (folder / INDEX_FILE).exists() or (folder / INDEX_FILE).is_symlink():
            self._by_index()
            return
        files = (
            [SINGLE_FILE]
            if (folder / SINGLE_FILE).exists()
            else sorted(p.name for p in folder.glob("*.safetensors"))
        )
        if not files:
            raise CheckpointError(
                f"{folder}: expected {INDEX_FILE}, {SINGLE_FILE} or *.safetensors files, got none"
            )
        for file in files:
            with self.reported():
                self._take(read_header(inside_folder(folder, file), is_ple_name))

    def _by_index(self) -> None:
        index = inside_folder(self._folder, INDEX_FILE)
        try:
            placed = _read_weight_map(read_bounded(index, _MAX_INDEX_BYTES))
        except OSError as error:
            raise CheckpointError(f"{index}: {error.strerror or error}") from error
        except ValueError as error:
            raise CheckpointError(f"{index}: {error}") from None
        expected: dict[str, list[str]] = {}
        for name, file in placed.items():
            expected.setdefault(file, []).append(name)
        for file in sorted(expected):
            with self.reported():
                path = inside_folder(self._folder, file, f"{index} names {shown(file)}, but ")
                self._of_index(path, file, expected[file], placed)

    def _of_index(self, path: Path, file: str, expected: list[str], placed: dict[str, str]) -> None:
        header = read_header(path, is_ple_name)
        self._take({name: tensor for name, tensor in header.items() if placed.get(name) == file})
        for name in header:
            if placed.get(name) != file and not is_ignored(name):
                elsewhere = f"places in {placed[name]}" if name in placed else "does not list"
                with self.reported():
                    raise CheckpointError(f"{path}: has {name}, which {INDEX_FILE} {elsewhere}")
        for name in expected:
            if name not in header:
                with self.reported():
                    raise CheckpointError(
                        f"{path}: expected {name} there, as {INDEX_FILE} says, but it is missing"
                    )

    def _take(self, header: dict[str, TensorSlice]) -> None:
        for name, tensor in header.items():
            if name in self.tensors:
                with self.reported():
                    raise CheckpointError(
                        f"{tensor.file}: {name}: expected once, but {self.tensors[name].file} has it too"
                    )
                continue
            self.tensors[name] = tensor
        if len(self.tensors) > MAX_TENSORS:
            raise CheckpointError(
                f"{self._folder}: at most {MAX_TENSORS} tensors of n-gram tables expected, got more"
            )


def check_index(data: bytes) -> None:
    """Refuse an index that no reader here would take; ValueError says why."""
    if len(data) > _MAX_INDEX_BYTES:
        raise ValueError(f"{len(data)} bytes, more than the {_MAX_INDEX_BYTES} that such a file may have")
    _read_weight_map(data)


def _read_weight_map(data: bytes) -> dict[str, str]:
    """Tensor -> file, for PLE tensors; every file name is checked."""
    if data.count(b'"') > _MAX_QUOTES:
        raise ValueError(f"a weight_map of at most {_MAX_QUOTES // 4} tensors expected, got more")
    placed: dict[str, str] = {}
    checked: set[bytes] = set()
    for name, first, last, _ in nested_entries(data, "weight_map", _PLACED):
        text = data[first:last]
        if text not in checked:
            _check_file_name(name, _file_name(name, text))
            checked.add(text)
            if len(checked) > _MAX_FILES:
                raise ValueError(f"weight_map names more than {_MAX_FILES} files")
        if is_ple_name(name):
            placed[name] = _file_name(name, text)
            if len(placed) > MAX_TENSORS:
                raise ValueError(f"weight_map has more than {MAX_TENSORS} tensors of n-gram tables")
    return placed


def _file_name(name: str, text: bytes) -> str:
    if len(text) > 4096:
        raise ValueError(f"weight_map[{shown(name)}] must be a file name, got {len(text)} bytes")
    file = json.loads(text)
    if not isinstance(file, str):
        raise ValueError(f"weight_map[{shown(name)}] must be a file name, got {shown(file)}")
    return file


def _check_file_name(name: str, file: str) -> None:
    path = PurePosixPath(file)
    file.encode()  # a lone surrogate is a ValueError here, not where the file is opened
    if not file or "\0" in file or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"weight_map[{shown(name)}] must name a file inside the folder, got {shown(file)}")
    if path.suffix != ".safetensors":
        raise ValueError(f"weight_map[{shown(name)}] must name a *.safetensors file, got {shown(file)}")


def inside_folder(folder: Path, file: str, blame: str = "") -> Path:
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
