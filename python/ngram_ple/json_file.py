"""JSON that strangers wrote: bounded reads of regular files and a walk over an object's entries.

Nothing here allocates by a number that a file claims, only by the bytes that the file has.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Python objects take far more room than their text, so the number of values is bounded as well. A mixed
# precision configuration that names each of 75 000 expert matrices takes a third of these.
_MAX_OBJECT_BYTES = 16 << 20
_MAX_CONTAINERS = 250_000
_MAX_VALUES = 500_000
_MAX_DEPTH = 64  # of values that are skipped, like the next
_MAX_SKIPPED = 50_000
_MAX_KEY_BYTES = 4096

_SPACE = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]+")
_NESTING = re.compile(rb'["\[\]{}]')


def open_regular(path: Path) -> int:
    """Open a regular file for reading and return its descriptor.

    Raises
    ------
    OSError
        It is missing or unreadable.
    ValueError
        It is not a regular file (a FIFO, a device, a folder).
    """
    # O_NONBLOCK: opening a FIFO that nobody writes would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a whole regular file of at most `max_bytes`; ValueError when it is larger or not regular."""
    fd = open_regular(path)
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(fd).st_size
        if size > max_bytes:
            raise ValueError(f"{size} bytes, more than the {max_bytes} that such a file may have")
        return file.read(max_bytes)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; ValueError says what is wrong with it, OSError that the file cannot be read."""
    data = read_bounded(path, _MAX_OBJECT_BYTES)
    if data.count(b"{") + data.count(b"[") > _MAX_CONTAINERS or data.count(b",") > _MAX_VALUES:
        raise ValueError(f"JSON with more than {_MAX_CONTAINERS} containers or {_MAX_VALUES} values")
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
        raise ValueError(f"unreadable JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"must hold a JSON object, got {type(value).__name__}")
    return value


def object_entries(data: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Walk the entries of the JSON object in ``data[start:end]`` without building its values.

    Yields the key and the begin and end of the value's text. A value is only delimited, not checked: parse
    the ones that matter. A doubled key, and anything but blanks around the object, is a ValueError.
    """
    end = len(data) if end is None else end
    seen: set[str] = set()
    pos = _expect(data, _skip_space(data, start), end, b"{")
    pos = _skip_space(data, pos)
    more = data[pos : pos + 1] != b"}"
    while more:
        key_end = _string_end(data, pos, end)
        if key_end - pos > _MAX_KEY_BYTES:
            raise ValueError(f"a JSON key of {key_end - pos} bytes at byte {pos}, at most {_MAX_KEY_BYTES}")
        key: str = json.loads(data[pos:key_end])
        if key in seen:
            raise ValueError(f"the key {key!r} occurs twice")
        seen.add(key)
        begin = _skip_space(data, _expect(data, _skip_space(data, key_end), end, b":"))
        pos = _value_end(data, begin, end)
        yield key, begin, pos
        pos = _skip_space(data, pos)
        more = data[pos : pos + 1] == b","
        if more:
            pos = _skip_space(data, pos + 1)
    pos = _skip_space(data, _expect(data, pos, end, b"}"))
    if pos < end:
        raise ValueError(f"unexpected text after the JSON object, at byte {pos}")


def _skip_space(data: bytes, pos: int) -> int:
    match = _SPACE.match(data, pos)
    return match.end() if match else pos


def _expect(data: bytes, pos: int, end: int, what: bytes) -> int:
    if pos >= end or data[pos : pos + 1] != what:
        raise ValueError(f"unreadable JSON: expected {what.decode()!r} at byte {pos}")
    return pos + 1


def _string_end(data: bytes, start: int, end: int) -> int:
    quote = _expect(data, start, end, b'"') - 1
    while True:
        quote = data.find(b'"', quote + 1, end)
        if quote < 0:
            raise ValueError(f"unreadable JSON: the string at byte {start} does not end")
        slashes = quote
        while data[slashes - 1] == 0x5C:  # stops at the opening quote at the latest
            slashes -= 1
        if (quote - slashes) % 2 == 0:
            return quote + 1


def _value_end(data: bytes, start: int, end: int) -> int:
    first = data[start : start + 1]
    if first == b'"':
        return _string_end(data, start, end)
    if first not in (b"{", b"["):
        match = _SCALAR.match(data, start, end)
        if match is None:
            raise ValueError(f"unreadable JSON: expected a value at byte {start}")
        return match.end()
    depth = containers = 0
    pos = start
    while match := _NESTING.search(data, pos, end):
        mark = match.group()
        if mark == b'"':
            pos = _string_end(data, match.start(), end)
            continue
        pos = match.end()
        if mark in (b"{", b"["):
            depth += 1
            containers += 1
            if depth > _MAX_DEPTH or containers > _MAX_SKIPPED:
                raise ValueError(f"JSON nested too deeply or too often at byte {start}")
        else:
            depth -= 1
            if depth == 0:
                return pos
    raise ValueError(f"unreadable JSON: the value at byte {start} does not end")
