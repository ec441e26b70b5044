"""The note by which processes of a host find a table that one of them holds: a locked file of one page."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import tempfile
import time
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from ngram_ple.errors import PinnedMemoryError

_log = logging.getLogger("ngram_ple")
_PAGE = 4096
_POLL_SECONDS = 0.02
PATIENCE_SECONDS = 600.0
"""How long a process that fills a table may show no progress before those who wait for it give up."""


@dataclass(frozen=True)
class Process:
    """A process, and when it began (clock ticks since boot): numbers are given out again.

    `descriptor` is its open file of the shared memory.
    """

    pid: int
    began: int
    descriptor: int

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return _beginning(self.pid) == self.began

    @property
    def file(self) -> Path:
        """The path by which others open its memory file."""
        return Path(f"/proc/{self.pid}/fd/{self.descriptor}")


def this_process(descriptor: int) -> Process:
    """Return this process as others find it."""
    return Process(os.getpid(), _beginning(os.getpid()) or 0, descriptor)


@dataclass
class Note:
    """What the note says.

    Attributes
    ----------
    filler : int
        The process that fills the table while it holds the lock; 0 when none does.
    name, inode : str, int
        Of the memory file; the name is random.
    facts : dict
        What goes with the table, there once it is filled.
    users : list of Process
        Those that hold it.
    failed, failed_at : str, float
        Why the last filler gave up, and when (CLOCK_MONOTONIC, one for the host).
    """

    filler: int = 0
    name: str = ""
    inode: int = 0
    facts: dict[str, float] | None = None
    users: list[Process] = field(default_factory=list)
    failed: str = ""
    failed_at: float = 0.0


class NoteFile:
    """The note, locked by this process until `close`.

    The kernel drops the lock of a process that ends, however it ends.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def lock(cls, key: str, patience: float | None = None) -> NoteFile:
        """Wait for the lock, which a process that fills the table holds meanwhile.

        Raises
        ------
        PinnedMemoryError
            The holder has shown no progress for `patience` seconds, `PATIENCE_SECONDS` by default.
        OSError
            The file cannot be made or is another user's.
        """
        patience = PATIENCE_SECONDS if patience is None else patience
        path = note_path(key)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    raise PermissionError(f"{path} is another user's")
                note = cls(path, descriptor)
                note._wait(patience)
                if note._is_at_path():
                    return note
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the last user removed it meanwhile

    def read(self) -> Note:
        """Return what it says, nothing where it says nothing sensible."""
        try:
            stored: dict[str, Any] = json.loads(os.pread(self._descriptor, 64 * _PAGE, 0))
            users = [Process(*map(int, user)) for user in stored.pop("users")]
            return Note(**stored, users=users)
        except (ValueError, TypeError, KeyError, AttributeError):
            return Note()

    def write(self, note: Note) -> None:
        """Replace it by one write within a page, which no signal interrupts."""
        stored = {item.name: getattr(note, item.name) for item in fields(note)}
        stored["users"] = [astuple(user) for user in note.users]
        text = json.dumps(stored).encode()
        size = max(os.fstat(self._descriptor).st_size, -(-len(text) // _PAGE) * _PAGE)
        os.pwrite(self._descriptor, text.ljust(size), 0)

    def show_progress(self) -> None:
        """Let those who wait see that this process is at work."""
        os.utime(self._descriptor)

    def remove(self) -> None:
        """Delete the file."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        """Let go of the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _wait(self, patience: float) -> None:
        seen, since, told = 0, time.monotonic(), False
        while True:
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            changed = os.fstat(self._descriptor).st_mtime_ns
            if changed != seen:
                seen, since = changed, time.monotonic()
            filler = self.read().filler
            if filler and not told:
                _log.info("waiting for process %d, which fills a table that this one shares", filler)
                told = True
            if time.monotonic() - since > patience:
                raise PinnedMemoryError(
                    f"process {filler or 'unknown'}, which fills a table that this one shares, has shown no "
                    f"progress for {patience:g} seconds: end it, or load without share"
                )
            time.sleep(_POLL_SECONDS)

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat(follow_symlinks=False))
        except FileNotFoundError:
            return False


def note_folder() -> Path:
    """Return where notes lie: /dev/shm, or the folder of temporary files where there is none."""
    shared_memory = Path("/dev/shm")
    return shared_memory if os.access(shared_memory, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def note_path(key: str) -> Path:
    """Return the note of a key.

    Processes that cannot see each other (another container) have notes of their own.
    """
    sight = Path("/proc/self/ns/pid")
    seen = sight.stat().st_ino if sight.exists() else 0
    return note_folder() / f"ngram_ple-{os.geteuid()}-{seen}-{key}"


def _beginning(pid: int) -> int | None:
    """Return when a process began, None when it is gone or a zombie."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if told[0] in "ZX" else int(told[19])
