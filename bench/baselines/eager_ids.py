"""N-gram ids in eager torch, two ways."""

from __future__ import annotations

import torch


def _cut_at_eos(history: list[torch.Tensor], eos: int) -> list[torch.Tensor]:
    """Predecessors 1..N-1; from the first EOS on, every older one becomes EOS."""
    ended = torch.zeros_like(history[0], dtype=torch.bool)
    cut = []
    for token in history:
        token = torch.where(ended, eos, token)
        ended = ended | (token == eos)
        cut.append(token)
    return cut


def _hash(
    tokens: torch.Tensor,
    history: list[torch.Tensor],
    multipliers: torch.Tensor,
    sizes: torch.Tensor,
    offsets: torch.Tensor,
    heads: int,
) -> torch.Tensor:
    mixed = tokens * multipliers[0]
    ids = []
    for i, token in enumerate(history):
        mixed = mixed ^ (token * multipliers[i + 1])
        part = slice(i * heads, (i + 1) * heads)
        ids.append(torch.remainder(mixed.unsqueeze(-1), sizes[part]) + offsets[part])
    return torch.cat(ids, dim=-1)


def padded(
    input_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    ngram_context: torch.Tensor,
    multipliers: torch.Tensor,
    sizes: torch.Tensor,
    offsets: torch.Tensor,
    eos: int,
    heads: int,
) -> torch.Tensor:
    """Every request padded to T tokens, ``[R, T]``: no length is read back, so shapes stay static."""
    total, requests = input_ids.shape[0], query_start_loc.shape[0] - 1
    order = multipliers.shape[0]
    starts = query_start_loc.long()
    positions = torch.arange(total).unsqueeze(0)
    index = (starts[:-1].unsqueeze(1) + positions).clamp(max=total - 1)
    inside = positions < (starts[1:] - starts[:-1]).unsqueeze(1)
    tokens = torch.where(inside, input_ids[index], eos)
    whole = torch.cat([ngram_context, tokens], dim=1)
    history = [whole[:, order - 1 - s : order - 1 - s + total] for s in range(1, order)]
    ids = _hash(tokens, _cut_at_eos(history, eos), multipliers, sizes, offsets, heads)
    rows = torch.searchsorted(starts, torch.arange(total), right=True) - 1
    rows = rows.clamp(max=requests - 1)
    return ids[rows, torch.arange(total) - starts[rows]]


def linear(
    input_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    ngram_context: torch.Tensor,
    multipliers: torch.Tensor,
    sizes: torch.Tensor,
    offsets: torch.Tensor,
    eos: int,
    heads: int,
) -> torch.Tensor:
    """O(T): each token finds its request by searchsorted and gathers its predecessors."""
    total = input_ids.shape[0]
    order = multipliers.shape[0]
    starts = query_start_loc.long()
    at = torch.arange(total)
    rows = (torch.searchsorted(starts, at, right=True) - 1).clamp(max=starts.shape[0] - 2)
    position = at - starts[rows]
    history = []
    for s in range(1, order):
        column = (order - 1 - s + position).clamp(max=order - 2)
        history.append(
            torch.where(position >= s, input_ids[(at - s).clamp(min=0)], ngram_context[rows, column])
        )
    return _hash(input_ids, _cut_at_eos(history, eos), multipliers, sizes, offsets, heads)
