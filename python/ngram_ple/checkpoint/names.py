"""Tensor names of PLE layers: which tensors belong to a table, and under which prefix they lie.

A name is ``<prefix><rest>``. The prefix ends in a dot (``model.language_model.layers.1.ple.ple_embedding.``)
or is empty when the embedding was saved alone. The rest is one of

- ``ngram_embedding.shard_{s}.<leaf>`` or ``ngram_embedding.<leaf>``,
- a stored hash buffer, ``layer_multipliers`` and its like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ngram_ple.config import NGramConfig
from ngram_ple.errors import CheckpointError

TABLE = "ngram_embedding."
BUFFERS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")

_TABLE_NAME = re.compile(r"(.*?)(?:^|(?<=\.))ngram_embedding\..+", re.DOTALL)
_TABLE_TENSOR = re.compile(r"ngram_embedding\.(?:shard_([0-9]{1,9})\.)?([A-Za-z0-9_]+)")
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]{1,9})\.")


@dataclass(frozen=True)
class TableTensor:
    """A tensor of the table: its leaf name, and the shard or None for the whole table."""

    leaf: str
    shard: int | None


def is_ignored(name: str) -> bool:
    """Whether a tensor under the prefix carries statistics or a token map that serving never needs."""
    leaf = name.rpartition(".")[2]
    return leaf.startswith("hashstats_") or leaf == "token_lookup"


def is_ple_name(name: str) -> bool:
    """Whether a full tensor name may belong to a PLE embedding."""
    return TABLE in name or "ple_embedding." in name or name.rpartition(".")[2] in BUFFERS


def parse_table_tensor(name: str) -> TableTensor | None:
    """Parse a name relative to the prefix; None when it is no tensor of the table."""
    match = _TABLE_TENSOR.fullmatch(name)
    if match is None:
        return None
    return TableTensor(match.group(2), None if match.group(1) is None else int(match.group(1)))


def shard_name(shard: int | None, leaf: str) -> str:
    """Name of a table tensor relative to the prefix."""
    return f"{TABLE}{leaf}" if shard is None else f"{TABLE}shard_{shard}.{leaf}"


def find_prefixes(names: Iterable[str]) -> list[str]:
    """Every prefix under which a table lies, sorted."""
    matches = (_TABLE_NAME.fullmatch(name) for name in names)
    return sorted({match.group(1) for match in matches if match})


def select_prefix(names: Iterable[str], config: NGramConfig) -> str:
    """Find the prefix of the configured PLE layer's table.

    It is the one whose last ``layers.{i}.`` is the configured decoder layer. One without a layer number
    serves when the model has a single PLE layer.

    Raises
    ------
    CheckpointError
        None, or several, which are listed.
    """
    prefixes = find_prefixes(names)
    wanted = config.decoder_layer
    matching = [prefix for prefix in prefixes if _decoder_layer(prefix) == wanted]
    if not matching and len(config.ple_layer_ids) == 1:
        matching = [prefix for prefix in prefixes if _decoder_layer(prefix) is None]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise CheckpointError(
            f"the table of decoder layer {wanted} must lie under one prefix, got {len(matching)}: "
            f"{', '.join(map(repr, matching[:8]))}; choose one with prefix="
        )
    found = ", ".join(map(repr, prefixes[:8])) or "no ngram_embedding tensor at all"
    raise CheckpointError(
        f"tensors of an n-gram table must lie under layers.{wanted}. (PLE layer {config.layer} of "
        f"ple_layer_ids {list(config.ple_layer_ids)}), got {found}"
    )


def _decoder_layer(prefix: str) -> int | None:
    numbers = _LAYER.findall(prefix)
    return int(numbers[-1]) if numbers else None
