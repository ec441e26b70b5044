"""Which format a checkpoint's table has, by its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal


def resolve_format(
    quantization_config: Mapping[str, Any] | None, prefix: str, ple_embedding_dtype: str | None = None
) -> Literal["unquantized", "fp8", "nvfp4"]:
    raise NotImplementedError
