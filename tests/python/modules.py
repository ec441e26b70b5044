"""A small NGramEmbedding, its tensors and a batch for it."""

from __future__ import annotations

import random
from typing import Any

import torch
from batches import Rows, finite_rows, random_rows
from ngram_ple import NGramConfig, NGramEmbedding

PARTS = 5
CONFIG = NGramConfig(
    vocab_size=1000, ple_embed_dim=128, eos_token_id=7, ple_layer_ids=(2,), heads_per_ngram=2,
    ngram_vocab_size_base=17, split_ngram_parts=PARTS,
)  # fmt: skip
ROWS = 128


def construct(device: torch.device, format: str = "bf16", **options: Any) -> NGramEmbedding:
    """The module for a device, without its table."""
    options.setdefault("placement", "cpu" if device.type == "cpu" else "device")
    return NGramEmbedding(CONFIG, format=format, **options)


def rows_of(format: str, seed: int = 0) -> Rows:
    table = random_rows(random.Random(seed), format, 32, ROWS)
    if format == "nvfp4":
        table.scale = finite_rows(random.Random(seed), format, 32, ROWS).scale
        assert table.scale is not None
        table.scale = table.scale.view(torch.float8_e4m3fn)
    return table


def tensors_of(table: Rows) -> dict[str, torch.Tensor]:
    """By relative name, split as a checkpoint is."""
    size = -(-ROWS // PARTS)
    named = {}
    for leaf, tensor in (("weight", table.weight), ("weight_scale", table.scale)):
        for shard in range(PARTS if tensor is not None else 0):
            assert tensor is not None
            named[f"ngram_embedding.shard_{shard}.{leaf}"] = tensor[shard * size : (shard + 1) * size]
    if table.global_scale is not None:
        scale = {"fp8": "weight_scale", "nvfp4": "weight_scale_2"}[table.format]
        named[f"ngram_embedding.{scale}"] = table.global_scale
    return named


def loaded(device: torch.device, format: str = "bf16", seed: int = 0, **options: Any) -> NGramEmbedding:
    module = construct(device, format, **options)
    module.load_weights(tensors_of(rows_of(format, seed)).items())
    module.finish_loading()
    return module


def batch(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lists: list[Any] = [[1, 2, 7, 4, 5, 6, 900], [0, 3, 3, 7], [[7, 7], [1, 2], [3, 4]]]
    ids, bounds, contexts = (torch.tensor(values, device=device) for values in lists)
    return ids, bounds, contexts
