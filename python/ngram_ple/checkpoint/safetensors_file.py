"""Safetensors headers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TensorSlice:
    """Where a tensor's bytes lie: file, byte offset, safetensors dtype code ("BF16"), shape."""

    file: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        raise NotImplementedError
