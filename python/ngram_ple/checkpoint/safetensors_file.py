"""Where tensors lie in a safetensors file, read from its header with every bound checked first.

Layout (the safetensors format): 8 bytes little-endian header length, a JSON object that gives each tensor's
dtype, shape and data_offsets relative to the end of the header, then the bytes.
"""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ngram_ple.errors import CheckpointError, shown
from ngram_ple.json_file import object_entries, open_regular

TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Safetensors dtype codes that torch has, with their torch dtypes."""

DTYPE_CODES = {dtype: code for code, dtype in TORCH_DTYPES.items()}

MAX_TENSORS = 1 << 16
"""Tensors that are kept of a file, or of a folder."""

MAX_HEADER_BYTES = 24 << 20
"""A published shard's header is far below 1 MiB, that of 150 000 expert matrices in one file 20 MB.

The format itself allows 100 MB.
"""

_MAX_ENTRIES = 200_000
_MAX_QUOTES = 12 * _MAX_ENTRIES
_MAX_ENTRY_BYTES = 4096
_ENTRY = re.compile(
    rb'"([^"\\\x00-\x1f]{1,4000})": ?'
    rb'(\{"dtype": ?"([A-Z0-9_]{1,16})", ?"shape": ?\[([0-9, ]{0,200})\], ?'
    rb'"data_offsets": ?\[([1-9][0-9]{0,18}|0), ?([1-9][0-9]{0,18}|0)\]\}), ?'
)


@dataclass(frozen=True)
class TensorSlice:
    """Where a tensor's bytes lie.

    Attributes
    ----------
    file : Path
    offset : int
        Bytes from the beginning of the file.
    dtype : str
        Safetensors code, such as "BF16" or "F8_E4M3".
    shape : tuple of int
    """

    file: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; its dtype must be one that torch has."""
        return math.prod(self.shape) * TORCH_DTYPES[self.dtype].itemsize

    def read_bytes(self, max_bytes: int) -> bytearray:
        """Read a small tensor whole; CheckpointError above `max_bytes` or when the file ends early."""
        if self.nbytes > max_bytes:
            raise CheckpointError(
                f"{self.file}: a tensor of {self.nbytes} bytes, at most {max_bytes} expected"
            )
        data = bytearray(self.nbytes)
        with open_checked(self.file) as file:
            pread_into(file.fileno(), memoryview(data), self.offset, self.file)
        return data


class open_checked:  # noqa: N801 - a context manager, used like open()
    """Open a regular file for preads; what the system or the file's kind forbids is a CheckpointError."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = open_regular(path)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from error

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor, once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> open_checked:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def pread_into(fd: int, view: memoryview, offset: int, path: Path) -> None:
    """Fill `view` from byte `offset`; a file that ends before is a CheckpointError that names it."""
    while view.nbytes:
        try:
            count = os.preadv(fd, [view], offset)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error} at byte {offset}") from error
        if count == 0:
            raise CheckpointError(f"{path}: truncated: {view.nbytes} more bytes expected at byte {offset}")
        view = view[count:]
        offset += count


def read_header(path: Path, keep: Callable[[str], bool] | None = None) -> dict[str, TensorSlice]:
    """Read the header of a safetensors file.

    Parameters
    ----------
    path : Path
    keep : callable, optional
        Names to return; all are checked.

    Raises
    ------
    CheckpointError
        Not a regular file, truncated, or a header that is no valid safetensors header; the file is named.
    """
    with open_checked(path) as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        if size < 8:
            raise CheckpointError(f"{path}: truncated: {size} bytes, a safetensors file has at least 8")
        length_bytes = bytearray(8)
        pread_into(fd, memoryview(length_bytes), 0, path)
        length = int.from_bytes(length_bytes, "little")
        if length > size - 8:
            raise CheckpointError(f"{path}: truncated: a header of {length} bytes in a file of {size} bytes")
        if length > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: a header of {length} bytes, at most {MAX_HEADER_BYTES} allowed")
        header = bytearray(length)
        pread_into(fd, memoryview(header), 8, path)
    try:
        return _parse(header, path, 8 + length, size, keep)
    except ValueError as error:
        raise CheckpointError(f"{path}: bad safetensors header: {error}") from None


def _parse(
    header: bytearray, path: Path, data_start: int, size: int, keep: Callable[[str], bool] | None
) -> dict[str, TensorSlice]:
    if header.count(b"{") > _MAX_ENTRIES or header.count(b'"') > _MAX_QUOTES:
        raise ValueError(f"at most {_MAX_ENTRIES} tensors expected, got more")
    kept: dict[str, TensorSlice] = {}
    firsts, lasts = array("q"), array("q")
    for name, begin, end, match in object_entries(header, plain=_ENTRY):
        if name == "__metadata__":
            continue
        if end - begin > _MAX_ENTRY_BYTES:
            raise ValueError(
                f"{shown(name)}: an entry of {end - begin} bytes, at most {_MAX_ENTRY_BYTES} allowed"
            )
        plain = match and _plain(match[3], match[4])
        if match and plain and int(match[6]) - int(match[5]) == plain[2]:
            (dtype, shape, _), first, last = plain, int(match[5]), int(match[6])
        else:  # unusual, or wrong
            dtype, shape, first, last = _entry(name, header[begin:end])
        if last > size - data_start:
            raise ValueError(
                f"truncated: {shown(name)} ends at byte {shown(data_start + last)}, the file has {size} bytes"
            )
        if last > first:
            firsts.append(first)
            lasts.append(last)
        if keep is None or keep(name):
            if name in kept:
                raise ValueError(f"{shown(name)} occurs twice")
            kept[name] = TensorSlice(path, data_start + first, dtype, shape)
            if len(kept) > MAX_TENSORS:
                raise ValueError(f"at most {MAX_TENSORS} tensors of n-gram tables expected, got more")
    starts, ends = np.frombuffer(firsts, np.int64), np.frombuffer(lasts, np.int64)
    order = np.argsort(starts)
    overlaps = np.flatnonzero(starts[order[1:]] < ends[order[:-1]])
    if len(overlaps):
        raise ValueError(f"two tensors overlap at byte {data_start + int(starts[order[overlaps[0] + 1]])}")
    return kept


@lru_cache(1024)  # a file has few dtypes and shapes
def _plain(dtype: bytes, shape: bytes) -> tuple[str, tuple[int, ...], int] | None:
    """Dtype, shape and bytes of a tensor from the text of its entry; None for what `_entry` must look at."""
    code = dtype.decode()
    try:
        sizes = tuple(json.loads(b"[%b]" % shape))
    except ValueError:
        return None
    return (code, sizes, math.prod(sizes) * TORCH_DTYPES[code].itemsize) if code in TORCH_DTYPES else None


def _entry(name: str, text: bytes | bytearray) -> tuple[str, tuple[int, ...], int, int]:
    try:
        entry: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shown(name)}: {error}") from None
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(
            f"{shown(name)}: must have exactly dtype, shape and data_offsets, got {shown(bytes(text[:80]))}"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError(f"{shown(name)}: dtype must be a string, got {str(dtype)[:80]}")
    for field, value in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(value, list) or any(type(item) is not int or item < 0 for item in value):
            raise ValueError(f"{shown(name)}: {field} must be a list of integers >= 0, got {str(value)[:80]}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(
            f"{shown(name)}: data_offsets must be [begin, end] in this order, got {str(offsets)[:80]}"
        )
    first, last = offsets
    if dtype in TORCH_DTYPES:
        expected = math.prod(shape) * TORCH_DTYPES[dtype].itemsize
        if last - first != expected:
            raise ValueError(
                f"{shown(name)}: {dtype} {str(shape)[:80]} takes {str(expected)[:40]} bytes, "
                f"data_offsets give {str(last - first)[:40]}"
            )
    return dtype, tuple(shape), first, last
