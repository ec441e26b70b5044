"""What ``ngram-ple embed`` writes, computed while it is written."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ngram_ple.checkpoint.safetensors_file import DTYPE_CODES
from ngram_ple.checkpoint.safetensors_writer import TensorToWrite
from ngram_ple.cli.ranks import cut, gather_on_first
from ngram_ple.embedding import NGramEmbedding
from ngram_ple.text import RaggedTokens


class Pieces:
    """The result's tensors, computed piece by piece while they are written."""

    def __init__(
        self, tokens: RaggedTokens, embedding: NGramEmbedding, progress: Callable[[int], object]
    ) -> None:
        self.seconds = 0.0
        self.seen = torch.zeros(embedding.padded_rows, dtype=torch.bool)
        self._tokens = tokens
        self._embedding = embedding
        self._progress = progress
        self._device = embedding.layer_multipliers.device

    def tensors(self, batch_tokens: int) -> list[TensorToWrite]:
        """Return what the file holds; 8-byte values first, which keeps every tensor aligned."""
        ids, starts = self._tokens.input_ids, self._tokens.query_start_loc
        config = self._embedding.config
        total = self._tokens.num_tokens
        code = DTYPE_CODES[self._embedding.dtype]
        return [
            TensorToWrite("input_ids", "I64", (total,), lambda first, last: ids[first:last]),
            TensorToWrite(
                "query_start_loc", "I64", tuple(starts.shape), lambda first, last: starts[first:last]
            ),
            TensorToWrite("ngram_ids", "I64", (total, config.num_heads), self._ngram_ids, batch_tokens),
            TensorToWrite("embeddings", code, (total, config.ple_embed_dim), self._embeddings, batch_tokens),
        ]

    def _batch(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config = self._embedding.config
        parts = self._tokens.chunk(first, last, config.ngram_size - 1, config.eos_token_id)
        ids, starts, context = (part.to(self._device) for part in parts)
        return ids, starts, context

    def _ngram_ids(self, first: int, last: int) -> torch.Tensor:
        ids = self._embedding.compute_ngram_ids(*self._batch(first, last)).cpu()
        self.seen[ids.reshape(-1)] = True
        return ids

    def take_part(self, batch_tokens: int) -> None:
        """Compute this rank's part of every batch, in the order in which the first rank writes them."""
        total = self._tokens.num_tokens
        for first in range(0, total, batch_tokens):
            self._embeddings(first, min(first + batch_tokens, total))

    def _embeddings(self, first: int, last: int) -> torch.Tensor:
        etp = self._embedding.etp
        parts = [(first, last)] if etp is None else cut(first, last, etp.size)
        batch = self._batch(*parts[0 if etp is None else etp.rank])
        self._synchronize()
        began = time.perf_counter()
        if etp is None:
            rows = self._embedding(*batch)
        else:
            counts = [end - begin for begin, end in parts]
            rows = gather_on_first(etp, self._embedding(*batch, token_counts=counts), counts)
        self._synchronize()
        self.seconds += time.perf_counter() - began
        self._progress(last - first)
        assert isinstance(rows, torch.Tensor)
        return rows

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
