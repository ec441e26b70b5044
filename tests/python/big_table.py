"""A table large enough to be found in a process's memory."""

from __future__ import annotations

import torch
from modules import CONFIG
from ngram_ple import NGramConfig, NGramEmbedding

TABLE_BYTES = 256 << 20
BIG = NGramConfig(
    vocab_size=1000, ple_embed_dim=256, eos_token_id=CONFIG.eos_token_id, ple_layer_ids=(2,),
    heads_per_ngram=2, ngram_vocab_size_base=TABLE_BYTES // (4 * 128),
)  # fmt: skip
"""Four heads of 64 bf16 values, 256 MiB."""


def big_module(placement: str) -> NGramEmbedding:
    module = NGramEmbedding(BIG, placement=placement)
    rows = module.table.slots.shape[0]
    parts = BIG.split_ngram_parts
    size = -(-rows // parts)
    module.load_weights(
        (
            f"ngram_embedding.shard_{part}.weight",
            torch.full((max(0, min(size, rows - part * size)), 64), part, dtype=torch.bfloat16),
        )
        for part in range(parts)
    )
    module.finish_loading()
    return module
