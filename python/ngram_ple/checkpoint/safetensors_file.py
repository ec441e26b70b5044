"""Where tensors lie in a safetensors file, read from its header with every bound checked first.

Layout (the safetensors format): 8 bytes little-endian header length, a JSON object that gives each tensor's
dtype, shape and data_offsets relative to the end of the header, then the bytes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ngram_ple.errors import CheckpointError
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

# A published shard's header is far below 1 MiB; the format itself allows 100 MB.
_MAX_HEADER_BYTES = 16 << 20
_MAX_ENTRY_BYTES = 4096


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
        if length > _MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: a header of {length} bytes, at most {_MAX_HEADER_BYTES} allowed")
        header = bytearray(length)
        pread_into(fd, memoryview(header), 8, path)
    try:
        return _parse(bytes(header), path, 8 + length, size, keep)
    except ValueError as error:
        raise CheckpointError(f"{path}: bad safetensors header: {error}") from None


def _parse(
    header: bytes, path: Path, data_start: int, size: int, keep: Callable[[str], bool] | None
) -> dict[str, TensorSlice]:
    kept: dict[str, TensorSlice] = {}
    extents: list[tuple[int, int]] = []
    for name, begin, end in object_entries(header):
        if name == "__metadata__":
            continue
        if end - begin > _MAX_ENTRY_BYTES:
            raise ValueError(f"{name}: an entry of {end - begin} bytes, at most {_MAX_ENTRY_BYTES} allowed")
        dtype, shape, first, last = _entry(name, header[begin:end])
        if last > size - data_start:
            raise ValueError(f"truncated: {name} ends at byte {data_start + last}, the file has {size} bytes")
        if last > first:
            extents.append((first, last))
        if keep is None or keep(name):
            kept[name] = TensorSlice(path, data_start + first, dtype, shape)
    extents.sort()
    for (_, last), (first, _) in itertools.pairwise(extents):
        if first < last:
            raise ValueError(f"two tensors overlap at byte {data_start + first}")
    return kept


def _entry(name: str, text: bytes) -> tuple[str, tuple[int, ...], int, int]:
    try:
        entry: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name}: must have exactly dtype, shape and data_offsets, got {text[:80]!r}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError(f"{name}: dtype must be a string, got {str(dtype)[:80]}")
    for field, value in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(value, list) or any(type(item) is not int or item < 0 for item in value):
            raise ValueError(f"{name}: {field} must be a list of integers >= 0, got {str(value)[:80]}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"{name}: data_offsets must be [begin, end] in this order, got {str(offsets)[:80]}")
    first, last = offsets
    if dtype in TORCH_DTYPES:
        expected = math.prod(shape) * TORCH_DTYPES[dtype].itemsize
        if last - first != expected:
            raise ValueError(
                f"{name}: {dtype} {str(shape)[:80]} takes {str(expected)[:40]} bytes, "
                f"data_offsets give {str(last - first)[:40]}"
            )
    return dtype, tuple(shape), first, last
