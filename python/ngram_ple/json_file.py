"""JSON that strangers wrote: bounded reads of regular files and a walk over an object's entries.

Nothing here allocates by a number that a file claims, only by the bytes that the file has.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from array import array
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ngram_ple.errors import shown

# Python objects take far more room than their text, so the number of values is bounded as well. A mixed
# precision configuration that names each of 75 000 expert matrices takes half of these.
_MAX_OBJECT_BYTES = 16 << 20
_MAX_TEXT_BYTES = 4 << 20  # of text that is not ASCII: a character may take four bytes
_MAX_CONTAINERS = 150_000
_MAX_VALUES = 300_000
_MAX_DEPTH = 64  # of values that are skipped, like the next
_MAX_SKIPPED = 50_000
_MAX_KEY_BYTES = 4096
_MAX_SLOW = 30_000  # entries that `plain` does not match

_SPACE = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]+")
_MARK = re.compile(rb'"[^"\\]*"|["\[\]{}]')  # a lone quote begins a string with escapes


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
    if len(data) > _MAX_TEXT_BYTES and not data.isascii():
        raise ValueError(f"JSON of {len(data)} bytes: more than {_MAX_TEXT_BYTES} must be ASCII alone")
    try:
        text = data.decode("utf-8-sig")
        del data
        value = json.loads(text)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
        raise ValueError(f"unreadable JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"must hold a JSON object, got {type(value).__name__}")
    return value


Text: TypeAlias = "bytes | bytearray"
Entry: TypeAlias = "tuple[str, int, int, re.Match[bytes] | None]"


def object_entries(
    data: Text, start: int = 0, end: int | None = None, plain: re.Pattern[bytes] | None = None
) -> Iterator[Entry]:
    """Walk the entries of the JSON object in ``data[start:end]`` without building its values.

    Yields the key, the begin and end of the value's text, and the match of `plain` where it matched. A value
    is only delimited, not checked: parse the ones that matter. A doubled key, and anything but blanks around
    the object, is a ValueError.

    `plain` is a shortcut for large objects: it matches an entry in its usual spelling, from the quote before
    the key to the comma and blanks after the value; its first group is the key, without escapes, the second
    the value. It must only match valid JSON.
    """
    end = len(data) if end is None else end
    pos = yield from _entries(data, start, end, plain, None)
    _nothing_after(data, pos, end)


def nested_entries(data: Text, key: str, plain: re.Pattern[bytes] | None = None) -> Iterator[Entry]:
    """Walk the entries of the object that is entry `key` of the object `data`; ValueError without one."""
    pos = yield from _entries(data, 0, len(data), plain, key)
    _nothing_after(data, pos, len(data))


def _entries(
    data: Text, start: int, end: int, plain: re.Pattern[bytes] | None, into: str | None
) -> Generator[Entry, None, int]:
    """Yield the entries, or those of entry `into` alone, and return where the object ends."""
    seen: set[str] = set()
    hashes = array("q")  # of all keys, 8 bytes each
    pos = _skip_space(data, _expect(data, _skip_space(data, start), end, b"{"))
    more = data[pos : pos + 1] != b"}"
    while more:
        match = plain.match(data, pos, end) if plain and into is None else None
        if match is not None:
            key = match[1].decode()
            hashes.append(hash(key))
            yield key, *match.span(2), match
            pos = match.end()
            continue
        key_end = _string_end(data, pos, end)
        if key_end - pos > _MAX_KEY_BYTES:
            raise ValueError(f"a JSON key of {key_end - pos} bytes at byte {pos}, at most {_MAX_KEY_BYTES}")
        key = json.loads(data[pos:key_end])
        if key in seen:
            raise ValueError(f"the key {shown(key)} occurs twice")
        seen.add(key)
        hashes.append(hash(key))
        if len(seen) > _MAX_SLOW:
            raise ValueError(f"JSON with more than {_MAX_SLOW} entries in an unusual spelling")
        begin = _skip_space(data, _expect(data, _skip_space(data, key_end), end, b":"))
        if into is not None and key == into:
            pos = yield from _entries(data, begin, end, plain, None)
        else:
            pos = _value_end(data, begin, end)
            if into is None:
                yield key, begin, pos, None
        pos = _skip_space(data, pos)
        more = data[pos : pos + 1] == b","
        if more:
            pos = _skip_space(data, pos + 1)
    doubled = _doubled(hashes)
    if doubled is not None:
        key = next(itertools.islice(_entries(data, start, end, plain, into), doubled, None))[0]
        raise ValueError(f"the key {shown(key)} occurs twice")
    if into is not None and into not in seen:
        raise ValueError(f"must have a {into}, got none")
    return _expect(data, _skip_space(data, pos), end, b"}")


def _doubled(hashes: array[int]) -> int | None:
    """Index of an entry whose key came before."""
    values = np.frombuffer(hashes, dtype=np.int64)
    order = np.argsort(values, kind="stable")
    same = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    return int(order[same[0] + 1]) if len(same) else None


def _nothing_after(data: Text, pos: int, end: int) -> None:
    pos = _skip_space(data, pos)
    if pos < end:
        raise ValueError(f"unexpected text after the JSON object, at byte {pos}")


def _skip_space(data: Text, pos: int) -> int:
    match = _SPACE.match(data, pos)
    return match.end() if match else pos


def _expect(data: Text, pos: int, end: int, what: bytes) -> int:
    if pos >= end or data[pos : pos + 1] != what:
        raise ValueError(f"unreadable JSON: expected {what.decode()!r} at byte {pos}")
    return pos + 1


def _string_end(data: Text, start: int, end: int) -> int:
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


def _value_end(data: Text, start: int, end: int) -> int:
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
    while match := _MARK.search(data, pos, end):
        mark = match[0]
        pos = match.end()
        if mark in (b"{", b"["):
            depth += 1
            containers += 1
            if depth > _MAX_DEPTH or containers > _MAX_SKIPPED:
                raise ValueError(f"JSON nested too deeply or too often at byte {start}")
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return pos
        elif mark == b'"':
            pos = _string_end(data, match.start(), end)
    raise ValueError(f"unreadable JSON: the value at byte {start} does not end")
