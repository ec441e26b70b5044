"""The process around a command: standard streams that may be closed or full, signals that end it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asks the process to end; raised where the command is, so that it cleans up as after Ctrl-C.

    Parameters
    ----------
    number : int
        The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ending_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `Stopped`, unless they are ignored or handled otherwise already."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    taken = []
    if threading.current_thread() is threading.main_thread():  # others may not set handlers
        taken = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def open_missing_streams() -> None:
    """Stand in for a standard stream that the caller has closed: what goes there is dropped.

    Its descriptor is taken too, or the next file opened would get what some library prints.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        stream = open(os.devnull, "r" if name == "stdin" else "w")  # noqa: PTH123, SIM115 (stays open)
        try:
            os.fstat(number)
        except OSError:
            os.dup2(stream.fileno(), number)
        setattr(sys, name, stream)


def complain(sentence: str) -> None:
    """Print a line on stderr, if that can be written to."""
    with suppress(OSError, ValueError):
        print(sentence, file=sys.stderr, flush=True)


def flush_stdout() -> None:
    """Write what stdout still holds; an OSError names it, and drops what is left.

    Python would flush once more at its end, and complain.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        error.filename = "standard output"
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
