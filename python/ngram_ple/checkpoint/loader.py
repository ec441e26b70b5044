"""TableLoader: tensors in any order into a sink, with proof of coverage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from ngram_ple.checkpoint.open import StoredTable
from ngram_ple.checkpoint.safetensors_file import TensorSlice

if TYPE_CHECKING:
    from ngram_ple.tables.sink import RowSink


class TableLoader:
    """Take tensors by name relative to the prefix, in any order, into a sink.

    ``add`` copies a torch tensor at once and queues a TensorSlice; ``finish`` proves coverage, then reads what
    is queued, then sets the global scale.
    """

    def __init__(
        self,
        sink: RowSink,
        *,
        padded_rows: int,
        split_ngram_parts: int,
        prefix: str = "",
        threads: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        raise NotImplementedError

    buffers: Mapping[str, list[int]]

    def add(self, name: str, source: TensorSlice | torch.Tensor) -> str | None:
        """Returns the parameter or buffer filled ("ngram_embedding.weight" for a shard), None when ignored."""
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        """Forget what was loaded: the next tensors fill the same memory again."""
        raise NotImplementedError


def read_table(
    stored: StoredTable,
    sink: RowSink,
    *,
    padded_rows: int,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """All of a stored table's owned rows into the sink; progress gets byte increments."""
    raise NotImplementedError
