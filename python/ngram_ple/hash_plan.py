"""The hash plan of a PLE layer: multipliers, head sizes and head offsets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from ngram_ple import _core
from ngram_ple.config import NGramConfig
from ngram_ple.errors import CheckpointError, ConfigError, NgramPleWarning

BUFFER_FIELDS = {
    "layer_multipliers": "multipliers",
    "ngram_heads_vocab_sizes": "head_sizes",
    "ngram_heads_offsets": "head_offsets",
}
"""The plan's lists by the names that checkpoints and operators give them."""

_MAX_HEAD_SIZE = 2**62


@dataclass(frozen=True)
class HashPlan:
    """What hashing one PLE layer needs; it follows from the configuration alone.

    With N, K, V, B, D and L of `NGramConfig` and H = (N - 1)·K heads:

    - ``multipliers[i] = 2·(splitmix64(seed + 10007·L + gamma·(i+1)) mod half) + 1``, where gamma is
      splitmix64's increment 0x9E3779B97F4A7C15 and ``half = max(1, ((2^63 - 1) // V) // 2)``;
    - ``head_sizes[h]`` is the (L·H + h + 1)-th prime strictly greater than B - 1;
    - ``head_offsets`` is the exclusive running sum of the sizes, `num_rows` their sum, `padded_rows` that
      rounded up to a multiple of D.

    Attributes
    ----------
    multipliers : list of int
        N odd numbers.
    head_sizes, head_offsets : list of int
        H primes, and the table row at which each head begins.
    num_rows, padded_rows : int
        Rows that ids can name, and rows that the table has.
    divisible_by : int
        D.

    Notes
    -----
    Source: the public Qwen4Exp n-gram embedding (`transformers`, ``Qwen4ExpTextNGramEmbedding``).
    """

    multipliers: list[int]
    head_sizes: list[int]
    head_offsets: list[int]
    num_rows: int
    padded_rows: int
    divisible_by: int

    @classmethod
    def from_config(cls, config: NGramConfig) -> HashPlan:
        """Derive the plan of the configured layer.

        Raises
        ------
        ConfigError
            The table would have more than 2^62 rows.
        """
        divisor = config.make_ngram_vocab_size_divisible_by
        try:
            native = _core.hash_plan(
                ngram_size=config.ngram_size,
                heads_per_ngram=config.heads_per_ngram,
                vocab_size=config.vocab_size,
                ngram_vocab_size_base=config.ngram_vocab_size_base,
                divisible_by=divisor,
                seed=config.seed % 2**64,
                layer=config.layer,
            )
        except (ValueError, OverflowError) as error:
            raise ConfigError(str(error)) from None
        return cls(
            native.multipliers,
            native.head_sizes,
            native.head_offsets,
            native.num_rows,
            native.padded_rows,
            divisor,
        )

    def with_buffers(self, buffers: Mapping[str, list[int]], source: str = "the checkpoint") -> HashPlan:
        """Return the plan that stored buffers make of this one.

        Stored values win, since the table was trained with them; a warning names both where they differ.
        `num_rows` and `padded_rows` follow from the winning sizes.

        Parameters
        ----------
        buffers : mapping
            Some of ``layer_multipliers`` [N], ``ngram_heads_vocab_sizes`` [H], ``ngram_heads_offsets`` [H].
        source : str
            Where they come from, for messages.

        Raises
        ------
        CheckpointError
            A buffer of another length, a size outside 1..2^62, a negative offset, or a head that ends past
            `padded_rows`.
        """
        changed: dict[str, list[int]] = {}
        for name, values in buffers.items():
            derived: list[int] = getattr(self, BUFFER_FIELDS[name])
            if len(values) != len(derived):
                raise CheckpointError(
                    f"{name} of {source} must have {len(derived)} elements, got {len(values)}"
                )
            if list(values) != derived:
                warnings.warn(
                    f"{name} of {source} is {list(values)}, but the configuration gives {derived}; the "
                    "stored values are used. A wrong seed, vocab_size or ngram_vocab_size_base does this.",
                    NgramPleWarning,
                    stacklevel=2,
                )
                changed[BUFFER_FIELDS[name]] = list(values)
        if not changed:
            return self
        sizes = changed.get("head_sizes", self.head_sizes)
        offsets = changed.get("head_offsets", self.head_offsets)
        for size, offset in zip(sizes, offsets, strict=True):
            if not 1 <= size <= _MAX_HEAD_SIZE or not 0 <= offset <= _MAX_HEAD_SIZE:
                raise CheckpointError(
                    f"ngram_heads_vocab_sizes of {source} must be within 1..2^62 and ngram_heads_offsets "
                    f"within 0..2^62, got {size} and {offset}"
                )
        num_rows = sum(sizes)
        padded_rows = -(-num_rows // self.divisible_by) * self.divisible_by
        end = max(size + offset for size, offset in zip(sizes, offsets, strict=True))
        if end > padded_rows:
            raise CheckpointError(
                f"ngram_heads_offsets of {source} must keep every head inside the {padded_rows} rows of the "
                f"table, got one that ends at row {end}"
            )
        return HashPlan(
            multipliers=changed.get("multipliers", self.multipliers),
            head_sizes=sizes,
            head_offsets=offsets,
            num_rows=num_rows,
            padded_rows=padded_rows,
            divisible_by=self.divisible_by,
        )
