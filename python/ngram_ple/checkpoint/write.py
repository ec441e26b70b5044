"""Writing checkpoints in the canonical layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ngram_ple.config import NGramConfig

Rows = torch.Tensor | Callable[[int, int], torch.Tensor]
"""A tensor [padded_rows, width], or a callable (first, last) -> rows [first, last) of it."""


def write_checkpoint(
    folder: str | os.PathLike[str],
    config: NGramConfig,
    *,
    format: str,
    padded_rows: int,
    weight: Rows,
    weight_scale: Rows | None = None,
    global_scale: torch.Tensor | float | None = None,
    buffers: Mapping[str, Sequence[int]] | None = None,
    base_config: Mapping[str, Any] | None = None,
    prefix: str | None = None,
    max_file_bytes: int = 5 << 30,
    progress: Callable[[int], None] | None = None,
) -> list[Path]:
    """Write config.json, sharded safetensors and the index; returns the files written.

    weight_scale: fp8-rowwise [padded_rows, 1] bf16/fp32, nvfp4 [padded_rows, head_dim/16] float8_e4m3fn (or uint8 bytes).
    global_scale: fp8 (bf16/fp32) and nvfp4 (fp32).
    """
    raise NotImplementedError
