"""One copy of a table for all processes of a host.

The memory is a memfd: a file without a name that lives exactly as long as a process holds it, so the kernel
frees it with the last one, however that one ends. Newcomers open it through ``/proc/PID/fd`` of a process
that a small locked note names (`ngram_ple.tables.node_note`). Whoever finds no live holder there fills a new
copy and keeps the lock meanwhile; the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import secrets
import time
import weakref
from collections.abc import Iterator, Mapping

from ngram_ple import _core
from ngram_ple.errors import PinnedMemoryError
from ngram_ple.tables.node_note import Note, NoteFile, this_process

_log = logging.getLogger("ngram_ple")
_live: weakref.WeakSet[NodeCopy] = weakref.WeakSet()
_MAX_SAID = 1000


class NodeCopy:
    """One process's hold of a shared table; `node_copy` gives it.

    Attributes
    ----------
    is_filled : bool
        Whether the rows are there. If not, this process must write them and then call `publish`; the other
        processes wait.
    facts : mapping of str to float
        What the process that filled it published beside the rows.
    """

    def __init__(self, key: str, note: NoteFile, said: Note, descriptor: int) -> None:
        self.is_filled = said.facts is not None
        self.facts: Mapping[str, float] = dict(said.facts or {})
        self._key = key
        self._note: NoteFile | None = note  # while it is locked
        self._said = said
        self._descriptor = descriptor
        self._me = this_process(descriptor)
        self._owned = False
        self._progress_at = 0.0
        _live.add(self)

    def region(
        self, nbytes: int, device: int | None, piece_bytes: int = 64 << 30, threads: int = 0
    ) -> _core.PinnedRegion:
        """Map the memory, once, and register it with a GPU where one is named.

        The hold on it lasts as long as what this returns.

        Raises
        ------
        PinnedMemoryError
            There is no room for it, it cannot be registered, or what is shared has another size.
        """
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if not self.is_filled:
            try:
                os.ftruncate(self._descriptor, size)
                # A file that became shorter would end the processes that read it.
                fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            except OSError as error:
                raise PinnedMemoryError(f"shared memory of {size} bytes could not be made: {error}") from None
        held = os.fstat(self._descriptor).st_size
        if held != size:
            raise PinnedMemoryError(f"the shared table must have {size} bytes, got one of {held}")
        region = _core.PinnedRegion(
            nbytes, device, piece_bytes, threads, file=self._descriptor, present=self.is_filled
        )
        self._owned = True
        weakref.finalize(region, self._leave)
        return region

    def show_progress(self) -> None:
        """Tell those who wait that the filling goes on."""
        now = time.monotonic()
        if self._note is not None and now > self._progress_at + 0.2:
            self._progress_at = now
            self._note.show_progress()

    def publish(self, **facts: float) -> None:
        """Let the other processes take the table as it is now; nobody may write to it afterwards."""
        if self._note is None:
            raise PinnedMemoryError("a shared table is published once, by the process that fills it")
        self._said.filler, self._said.facts = 0, facts
        self._said.users = [self._me]
        self._note.write(self._said)
        self.is_filled, self.facts = True, facts
        self._unlock()

    def end(self, error: BaseException | None) -> None:
        """Close what `node_copy` began."""
        if self._note is not None:
            said = f"{type(error).__name__}: {error}" if error else "it left the table unfilled"
            with contextlib.suppress(OSError):  # those who wait then fill it themselves
                self._note.write(Note(failed=said[:_MAX_SAID], failed_at=time.monotonic()))
            self._unlock()
        if not self._owned:
            self._leave()

    def _join(self) -> None:
        """Become one of the users and let the next one in."""
        assert self._note is not None
        self._said.users = [user for user in self._said.users if user.is_alive] + [self._me]
        self._note.write(self._said)
        self._unlock()

    def _leave(self) -> None:
        """Give the memory back; the last one removes the note."""
        if os.getpid() != self._me.pid or self._descriptor < 0:
            return
        if self._note is None:  # else nothing is published yet, and `end` tells of that
            self._leave_note()
        os.close(self._descriptor)
        self._descriptor = -1

    def _leave_note(self) -> None:
        try:
            note = NoteFile.lock(self._key, patience=1.0)
        except (OSError, PinnedMemoryError):
            return  # the note then names a process that has nothing to open
        said = note.read()
        if said.inode == self._said.inode and said.name == self._said.name:
            said.users = [user for user in said.users if user != self._me and user.is_alive]
            if said.users or said.filler:
                note.write(said)
            else:
                note.remove()
        note.close()

    def _unlock(self) -> None:
        if self._note is not None:
            self._note.close()
            self._note = None

    def _forget(self) -> None:
        """Close a forked child's files: they would keep memory and lock beyond its parent's end."""
        self._unlock()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def node_copy(identity: str) -> Iterator[NodeCopy | None]:
    """Hold the host's one copy of a table, made by the first process that asks for it.

    Parameters
    ----------
    identity : str
        Tells apart everything that tables may differ in. Processes of one user that can see each other share
        what has the same identity.

    Yields
    ------
    NodeCopy or None
        None, with a line in the log that tells why, where sharing is impossible: no memfd, no /proc, a holder
        whose memory may not be opened.

    Raises
    ------
    PinnedMemoryError
        The process that filled the table while this one waited failed, or makes no progress.
    """
    key = hashlib.sha256(identity.encode()).hexdigest()[:32]
    try:
        copy = _take(key)
    except OSError as error:
        _log.warning("the table is not shared: %s; this process takes a copy of its own", str(error))
        yield None
        return
    try:
        yield copy
    except BaseException as error:
        copy.end(error)
        raise
    copy.end(None)


def _take(key: str) -> NodeCopy:
    """Open the copy of a process that has it, else begin a new one."""
    asked = time.monotonic()
    note = NoteFile.lock(key)
    try:
        said = note.read()
        if said.failed and said.failed_at >= asked:
            raise PinnedMemoryError(f"the process that filled a table for this one too failed: {said.failed}")
        descriptor = _open(said)
        if descriptor is not None:
            try:
                copy = NodeCopy(key, note, said, descriptor)
                copy._join()
            except OSError:
                os.close(descriptor)
                raise
            return copy
        if said.filler or said.users:
            _log.info("the processes that had the shared table are gone: this one fills it")
        name = f"ngram_ple-{secrets.token_hex(8)}"
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            said = Note(os.getpid(), name, os.fstat(descriptor).st_ino)
            os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC))  # as others must
            note.write(said)
        except OSError:
            os.close(descriptor)
            raise
        return NodeCopy(key, note, said, descriptor)
    except BaseException:
        note.close()
        raise


def _open(said: Note) -> int | None:
    """Open the memory that the note tells of; None when nobody holds it any more."""
    if said.facts is None:
        return None
    barred: PermissionError | None = None
    for user in said.users:
        try:
            if said.name not in str(user.file.readlink()):
                continue
            descriptor = os.open(user.file, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError as error:
            barred = error if user.is_alive else barred
            continue
        except OSError:  # it has ended, or given the memory back
            continue
        if os.fstat(descriptor).st_ino == said.inode:
            return descriptor
        os.close(descriptor)
    if barred is not None:
        raise barred
    return None


def _forget_in_child() -> None:
    for copy in list(_live):
        copy._forget()


os.register_at_fork(after_in_child=_forget_in_child)
