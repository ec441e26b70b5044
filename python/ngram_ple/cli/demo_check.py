"""The demo's proof: some tokens of the result, hashed again in Python integers and gathered from the seed."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from safetensors import safe_open

from ngram_ple.cli.demo_table import DemoTable
from ngram_ple.config import NGramConfig
from ngram_ple.errors import NgramPleError
from ngram_ple.hash_plan import HashPlan


def check_result(out: Path, table: DemoTable, config: NGramConfig, samples: int, seed: int) -> int:
    """Compare tokens of an ``embed`` result with an independent computation, bit for bit.

    Parameters
    ----------
    out : Path
        What ``embed`` wrote.
    table : DemoTable
        What the checkpoint was written from.
    config : NGramConfig
    samples : int
        Tokens to check: the first two, the last, and others at random.
    seed : int
        Which others.

    Returns
    -------
    int
        Tokens checked.

    Raises
    ------
    NgramPleError
        A token whose ids or rows differ.
    """
    plan = HashPlan.from_config(config)
    with safe_open(out, framework="pt") as file:
        input_ids = file.get_tensor("input_ids").tolist()
        starts = file.get_tensor("query_start_loc")
        ids, embeddings = file.get_slice("ngram_ids"), file.get_slice("embeddings")
        total = len(input_ids)
        edges = list({0, min(1, total - 1), total - 1})
        others = random.Random(seed).sample(range(total), min(total, samples))
        chosen = list(dict.fromkeys(edges + others))[:samples]
        expected = {}
        for token in chosen:
            begin = int(starts[torch.searchsorted(starts, token, right=True) - 1])
            expected[token] = ngram_ids(input_ids[begin : token + 1], config, plan)
        distinct = sorted({row for rows in expected.values() for row in rows})
        place = {row: index for index, row in enumerate(distinct)}
        decoded = table.decoded(distinct, embeddings[:1].dtype)
        for token, rows in expected.items():
            if ids[token : token + 1][0].tolist() != rows:
                raise NgramPleError(f"{out}: ngram_ids of token {token} must be {rows}, got others")
            got = embeddings[token : token + 1][0]
            made = decoded[[place[row] for row in rows]].flatten()
            if not torch.equal(got.view(torch.uint8), made.view(torch.uint8)):
                raise NgramPleError(f"{out}: embeddings of token {token} must be rows {rows}, got others")
    return len(chosen)


def ngram_ids(history: list[int], config: NGramConfig, plan: HashPlan) -> list[int]:
    """Hash the last token of a request's `history` to its H rows, in Python integers."""
    token, *older = reversed(history[-config.ngram_size :])
    tokens = [token]
    for position in range(config.ngram_size - 1):
        ended = position > 0 and tokens[-1] == config.eos_token_id
        known = position < len(older) and not ended
        tokens.append(older[position] if known else config.eos_token_id)
    ids = []
    mixed = tokens[0] * plan.multipliers[0]
    for order in range(2, config.ngram_size + 1):
        mixed ^= tokens[order - 1] * plan.multipliers[order - 1]
        signed = (mixed + 2**63) % 2**64 - 2**63  # as a wrapping 64-bit product has it
        first = (order - 2) * config.heads_per_ngram
        for head in range(first, first + config.heads_per_ngram):
            ids.append(signed % plan.head_sizes[head] + plan.head_offsets[head])
    return ids
