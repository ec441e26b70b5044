"""The record of a conversion that is not finished: what it is of, and which files are done.

It lies in the destination and is replaced by rename after each file; it goes when all is done. A destination
with the record of another source or of other options is not continued, and one without a record that is not
empty is not touched.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ngram_ple.checkpoint.safetensors_writer import PART, write_json
from ngram_ple.errors import CheckpointError
from ngram_ple.json_file import read_object

RECORD = ".ngram-ple-convert.json"
_VERSION = 1


def fingerprint(folder: Path, files: Iterable[Path]) -> dict[str, list[int]]:
    """Size and time of change (ns) of files, by name relative to the folder; OSError when one is gone."""
    found = {}
    for file in sorted(files):
        facts = file.stat()
        found[str(file.relative_to(folder))] = [facts.st_size, facts.st_mtime_ns]
    return found


@dataclass
class Record:
    """What a conversion has done so far.

    Attributes
    ----------
    folder : Path
        The destination.
    options : dict
        What it was asked for.
    source : dict
        The source's fingerprint when it began.
    amax : dict
        PLE layer (as text) -> the table's largest magnitude, where that has been found.
    files : dict
        Name of a finished file -> its size, time, and the error sums of its rows by head.
    """

    folder: Path
    options: dict[str, Any]
    source: dict[str, list[int]]
    amax: dict[str, float] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def save(self) -> None:
        """Write it in the place of the last one."""
        content = {"version": _VERSION, "options": self.options, "source": self.source}
        write_json(self.folder / RECORD, {**content, "amax": self.amax, "files": self.files}, durable=True)

    def finish_file(self, name: str, errors: list[list[float | int]]) -> None:
        """Note that a file is done."""
        facts = (self.folder / name).stat()
        self.files[name] = {"bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns, "errors": errors}
        self.save()

    def has(self, name: str) -> bool:
        """Whether a file is done and as it was then."""
        noted = self.files.get(name)
        if noted is None:
            return False
        try:
            facts = (self.folder / name).stat()
        except FileNotFoundError:
            return False
        return (facts.st_size, facts.st_mtime_ns) == (noted["bytes"], noted["mtime_ns"])

    def remove(self) -> None:
        """Remove it: the conversion is finished."""
        (self.folder / RECORD).unlink()

    def withdraw(self, made: Iterable[Path]) -> None:
        """Leave nothing where no file is done: not the record, nor the folders that were made for it."""
        if not self.files:
            self.remove()
            with suppress(OSError):  # someone else has put something there
                for folder in made:
                    folder.rmdir()


def open_record(folder: Path, options: dict[str, Any], source: dict[str, list[int]]) -> Record:
    """Continue the conversion that the folder holds, or begin one in an empty folder.

    One without `saturate` goes on with it: what is done had nothing to saturate, and is the same with it.

    Raises
    ------
    CheckpointError
        The folder holds something else, or a conversion of another source or with other options.
    """
    entries = {entry.name for entry in folder.iterdir()}
    if RECORD not in entries:
        if any(not _is_part(name) for name in entries):
            raise CheckpointError(
                f"{folder}: expected a new or empty folder, got one with {len(entries)} entries"
            )
        _remove_parts(folder)
        record = Record(folder, options, source)
        record.save()
        return record
    stored = _read(folder / RECORD)
    theirs = stored["options"]
    differing = {name for name in options if theirs.get(name) != options[name]}
    if options["saturate"]:
        differing.discard("saturate")
    if differing:
        raise CheckpointError(
            f"{folder} holds an unfinished conversion {_described(theirs, differing)}: "
            "finish that with the same options, or remove the folder"
        )
    if stored["source"] != source:
        changed = {
            name for name in {*source, *stored["source"]} if source.get(name) != stored["source"].get(name)
        }
        raise CheckpointError(
            f"{folder} holds an unfinished conversion, but {sorted(changed)[0]} of the source has changed "
            "since it began: remove the folder and begin anew"
        )
    _remove_parts(folder)
    return Record(folder, options, source, stored["amax"], stored["files"])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let nobody else convert into the folder meanwhile; a killed process leaves no lock behind."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{folder}: another conversion is writing there") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def _read(file: Path) -> dict[str, Any]:
    try:
        stored = read_object(file)
        if stored.get("version") != _VERSION:
            raise ValueError(f"version must be {_VERSION}, got {stored.get('version')}")
        for name in ("options", "source", "amax", "files"):
            if not isinstance(stored.get(name), dict):
                raise ValueError(f"{name} must be an object")
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}: remove the folder and begin anew") from error
    return stored


def _described(options: Mapping[str, Any], differing: Container[str]) -> str:
    shards = options.get("shards")
    more = {
        "scale_dtype": f" with {options.get('scale_dtype')} scales",
        "saturate": " with saturate (--saturate)",
        "max_file_bytes": f" in files of at most {options.get('max_file_bytes')} bytes",
    }
    text = f"to {options.get('to')} in {shards} shard{'' if shards == 1 else 's'}"
    return text + "".join(said for name, said in more.items() if name in differing)


def _is_part(name: str) -> bool:
    return name.startswith(".") and name.endswith(PART)


def _remove_parts(folder: Path) -> None:
    """Remove what killed processes were writing."""
    for entry in folder.iterdir():
        if _is_part(entry.name):
            entry.unlink()
