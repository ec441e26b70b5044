"""What commands print: a small table for people, one JSON object for programs, errors that name a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def print_text(text: str) -> None:
    """Print a text on stdout; an OSError names it."""
    with naming("standard output"):
        print(text)


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on a line, ASCII only."""
    print_text(json.dumps(content))


def print_table(lines: Iterable[tuple[str, str]]) -> None:
    """Print labels and values in two columns."""
    lines = list(lines)
    width = max((len(label) for label, _ in lines), default=0)
    for label, value in lines:
        # A file name may hold bytes that are no text.
        print_text(f"{label:<{width}}  {value.encode(errors='backslashreplace').decode()}".rstrip())


def size(nbytes: int) -> str:
    """Write a number of bytes for people, in powers of 1024."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count(number: int, noun: str) -> str:
    """Write a number of things."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give an OSError that names no file, as that of a full disk, this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise
