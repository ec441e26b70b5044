"""Opening a checkpoint folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngram_ple.checkpoint.safetensors_file import TensorSlice
from ngram_ple.config import NGramConfig


@dataclass(frozen=True)
class StoredTable:
    """One PLE layer's table as it lies in a checkpoint."""

    prefix: str  # with the final dot
    tensors: Mapping[str, TensorSlice]  # names relative to the prefix
    config: NGramConfig
    format: str  # one of bf16 fp16 fp32 fp8 fp8-rowwise nvfp4
    format_rule: str  # which rule decided the format, in words
    buffers: Mapping[str, list[int]]  # layer_multipliers, ngram_heads_vocab_sizes, ngram_heads_offsets: those stored

    def check(self, padded_rows: int, row_start: int = 0, row_end: int | None = None) -> None:
        """Prove by the headers alone that the owned rows are covered once; else CheckpointError."""
        raise NotImplementedError


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder: configuration and the headers of the files that hold PLE tensors."""

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorSlice]  # PLE tensors by full name

    def table(self, config: NGramConfig, prefix: str | None = None) -> StoredTable:
        raise NotImplementedError


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    raise NotImplementedError
