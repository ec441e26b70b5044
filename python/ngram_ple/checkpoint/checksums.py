"""Checksum files as ``sha256sum`` writes them, and the comparison with a folder."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from ngram_ple.checkpoint.files import inside_folder
from ngram_ple.checkpoint.safetensors_file import open_checked
from ngram_ple.errors import CheckpointError, shown
from ngram_ple.json_file import read_bounded

_MAX_BYTES = 4 << 20
_BLOCK_BYTES = 1 << 20
_LINE = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)")


class Checksums:
    """SHA-256 sums of a folder's files.

    A line is 64 hexadecimal digits, a blank, a blank or ``*``, and a name relative to the folder; a leading
    backslash says that backslashes in the name begin escapes.

    Parameters
    ----------
    path : Path
        The checksum file.
    folder : Path
        What its names are relative to.

    Attributes
    ----------
    files : dict
        Name -> sum, of the listed files that are there.
    absent : list of str
        Listed files that are not.

    Raises
    ------
    CheckpointError
        The file is unreadable, a line is no such line, or names a file twice or one outside the folder.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self._folder = folder
        self.files: dict[str, str] = {}
        self.absent: list[str] = []
        try:
            text = read_bounded(path, _MAX_BYTES).decode()
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None
        listed: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                name, digest = _parse(line, f"{path}:{number}")
                if listed.setdefault(name, digest) != digest:
                    raise CheckpointError(f"{path}:{number}: {shown(name)} is listed twice, with other sums")
        if not listed:
            raise CheckpointError(f"{path}: expected lines as sha256sum writes them, got none")
        for name, digest in listed.items():
            if os.path.lexists(folder / name):
                self.files[name] = digest
            else:
                self.absent.append(name)

    def bytes_to_read(self) -> int:
        """Bytes of the listed files that are there."""
        paths = (self._folder / name for name in self.files)
        return sum(path.stat().st_size for path in paths if path.is_file())

    def compare(
        self,
        each: Callable[..., Iterable[Any]],
        progress: Callable[[int], object],
        holders: Collection[str],
    ) -> tuple[list[str], list[str]]:
        """Read the listed files and return problems and notes.

        Parameters
        ----------
        each : callable
            `map`, or that of an executor: a job a file.
        progress : callable
            Called with the bytes of each block read.
        holders : collection of str
            Names of the files that hold the tables; one that is not listed is a problem.
        """
        problems = []
        digests = each(lambda name: self._digest(name, progress), self.files)
        for name, got in zip(self.files, digests, strict=True):
            if isinstance(got, CheckpointError):
                problems.append(str(got))
            elif got != self.files[name]:
                problems.append(f"{self._folder / name}: expected sha256 {self.files[name]}, got {got}")
        problems += [
            f"{self._folder / name}: holds a table, but the checksums do not list it"
            for name in sorted(set(holders) - set(self.files))
        ]
        some = ", ".join(map(shown, self.absent[:4])) + (", …" if len(self.absent) > 4 else "")
        notes = [f"listed by the checksums, but not there: {len(self.absent)}, {some}"] if some else []
        return problems, notes

    def _digest(self, name: str, progress: Callable[[int], object]) -> str | CheckpointError:
        path = self._folder / name
        digest = hashlib.sha256()
        block = bytearray(_BLOCK_BYTES)
        offset = 0
        try:
            with open_checked(inside_folder(self._folder, name)) as file:
                while count := os.preadv(file.fileno(), [block], offset):
                    digest.update(memoryview(block)[:count])
                    offset += count
                    progress(count)
        except CheckpointError as error:
            return error
        except OSError as error:
            return CheckpointError(f"{path}: {error.strerror or error} at byte {offset}")
        return digest.hexdigest()


def _parse(line: str, where: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise CheckpointError(f"{where}: expected '<64 hexadecimal digits>  <file>', got {shown(line)}")
    name = match[3]
    if match[1]:
        name = re.sub(r"\\(n|\\)", lambda found: "\n" if found[1] == "n" else "\\", name)
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise CheckpointError(f"{where}: expected a file inside the checkpoint folder, got {shown(name)}")
    return str(path), match[2].lower()
