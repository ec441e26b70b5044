"""N-gram per-layer embedding tables (Qwen PLE, DeepSeek Engram) for any PyTorch program.

Hash a ragged batch of tokens to row ids, look the rows up wherever the table lives, in whatever format it is
stored: `NGramEmbedding` is the module, `ngram_ple.ops` the operators under it (``torch.ops.ngram_ple.*``).
"""

from __future__ import annotations

import torch as _torch

if tuple(int(_part) for _part in _torch.__version__.split(".")[:2]) < (2, 11):
    raise ImportError(f"ngram_ple needs torch >= 2.11, found torch {_torch.__version__}: upgrade torch.")

from ngram_ple import ops
from ngram_ple.build_info import build_info
from ngram_ple.config import NGramConfig
from ngram_ple.embedding import NGramEmbedding
from ngram_ple.errors import (
    CheckpointError,
    ConfigError,
    ExchangeError,
    NgramPleError,
    NgramPleWarning,
    PinnedMemoryError,
    PrefetchError,
)
from ngram_ple.formats import RowFormat, row_format
from ngram_ple.hash_plan import HashPlan
from ngram_ple.history import NGramHistory
from ngram_ple.padding import padded_batch
from ngram_ple.quantization import resolve_format
from ngram_ple.stats import LookupStats

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ExchangeError",
    "HashPlan",
    "LookupStats",
    "NGramConfig",
    "NGramEmbedding",
    "NGramHistory",
    "NgramPleError",
    "NgramPleWarning",
    "PinnedMemoryError",
    "PrefetchError",
    "RowFormat",
    "build_info",
    "ops",
    "padded_batch",
    "resolve_format",
    "row_format",
]
