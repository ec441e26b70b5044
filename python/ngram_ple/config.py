"""What a model's configuration says about one PLE layer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ngram_ple.errors import ConfigError, shown
from ngram_ple.json_file import read_object

_CONFIG_FILE = "config.json"
LEGACY_QUANTIZATION_FILE = "hf_quant_config.json"
"""Where older checkpoints have what is now ``quantization_config``."""

# Far above any model, low enough that sums and products of them stay inside 64 bits.
_MAX_HEADS = 1024
_MAX_LAYERS = 1024
MAX_SHARDS = 2**20
"""The most that `split_ngram_parts` may be."""

_RANGES = {
    "ngram_size": (2, 64),
    "heads_per_ngram": (1, _MAX_HEADS),
    "vocab_size": (1, 2**62),
    "ngram_vocab_size_base": (1, 2**40),
    "make_ngram_vocab_size_divisible_by": (1, 2**40),
    "seed": (-(2**63), 2**64 - 1),
    "ple_embed_dim": (1, 2**24),
    "split_ngram_parts": (1, MAX_SHARDS),
    "eos_token_id": (0, 2**63 - 1),
    "layer": (0, _MAX_LAYERS - 1),
}


@dataclass(frozen=True)
class NGramConfig:
    """One PLE layer's configuration, checked.

    Parameters
    ----------
    vocab_size : int
        V, the tokenizer's vocabulary; it bounds the hash multipliers.
    ple_embed_dim : int
        Elements of a token's embedding, H · head_dim.
    eos_token_id : int
        The token that cuts a history.
    ple_layer_ids : tuple of int
        1-based decoder layers that have a table; sorted and without doubles here.
    layer : int
        L, the index of this layer in `ple_layer_ids`.
    ngram_size, heads_per_ngram : int
        N, the longest n-gram, and K, the heads of each order 2..N.
    ngram_vocab_size_base, make_ngram_vocab_size_divisible_by : int
        B, the lower bound of a head's rows, and D, the divisor that the table's rows are padded to.
    seed : int
        Seed of the hash multipliers; counts modulo 2^64.
    split_ngram_parts : int
        Shards that a checkpoint splits the table into.
    ple_embedding_dtype, quantization_config
        What the configuration says about the table's format, see `ngram_ple.quantization.resolve_format`.

    Raises
    ------
    ConfigError
        A field of a wrong type or out of range; the message names the field, the requirement and the value.

    Notes
    -----
    Field names and defaults are those of published Qwen4Exp configurations (`transformers`'
    ``Qwen4ExpTextConfig``).
    """

    vocab_size: int
    ple_embed_dim: int
    eos_token_id: int
    ple_layer_ids: tuple[int, ...]
    layer: int = 0
    ngram_size: int = 3
    heads_per_ngram: int = 8
    ngram_vocab_size_base: int = 20_000_000
    make_ngram_vocab_size_divisible_by: int = 128
    seed: int = 1234
    split_ngram_parts: int = 512
    ple_embedding_dtype: str | None = None
    quantization_config: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        """Check every field; normalise `ple_layer_ids` and a list of end tokens."""
        object.__setattr__(self, "eos_token_id", _first_token(self.eos_token_id))
        for name, (least, most) in _RANGES.items():
            _check_int(name, getattr(self, name), least, most)
        object.__setattr__(self, "ple_layer_ids", _layer_ids(self.ple_layer_ids))
        if self.layer >= len(self.ple_layer_ids):
            raise ConfigError(
                f"layer must be an index into the {len(self.ple_layer_ids)} ple_layer_ids "
                f"{list(self.ple_layer_ids)[:8]}, got {self.layer}"
            )
        if self.num_heads > _MAX_HEADS:
            raise ConfigError(
                f"(ngram_size - 1) * heads_per_ngram must be at most {_MAX_HEADS} heads, got {self.num_heads}"
            )
        if self.ple_embed_dim % self.num_heads:
            raise ConfigError(
                f"ple_embed_dim must be divisible by the {self.num_heads} heads, "
                f"(ngram_size - 1) * heads_per_ngram, got {self.ple_embed_dim}"
            )
        if self.ple_embedding_dtype is not None and not isinstance(self.ple_embedding_dtype, str):
            raise ConfigError(f"ple_embedding_dtype must be a string, got {_shown(self.ple_embedding_dtype)}")
        if self.quantization_config is not None and not isinstance(self.quantization_config, Mapping):
            raise ConfigError(
                f"quantization_config must be an object, got {_shown(self.quantization_config)}"
            )

    @property
    def num_heads(self) -> int:
        """H = (N - 1) · K, the hashed heads that share the table."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def head_dim(self) -> int:
        """Elements of a table row."""
        return self.ple_embed_dim // self.num_heads

    @property
    def decoder_layer(self) -> int:
        """0-based decoder layer that this table feeds: ``layers.{decoder_layer}`` in tensor names."""
        return self.ple_layer_ids[self.layer] - 1

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike[str] | Mapping[str, Any], layer: int = 0
    ) -> NGramConfig:
        """Read the configuration of PLE layer `layer` from a checkpoint folder, a config.json or its dict.

        A field under ``text_config`` wins over one at the top level; null counts as absent. `layer` is the
        index among the PLE layers.

        Raises
        ------
        ConfigError
            The file is missing or no JSON object, or a field is missing, of a wrong type or out of range. A
            file that was read is named.
        """
        if not isinstance(source, Mapping):
            read = read_config(source)
            with naming(config_file(source)):
                return cls.from_pretrained(read, layer)
        config = source
        text = config.get("text_config")
        if text is not None and not isinstance(text, Mapping):
            raise ConfigError(f"text_config must be an object, got {_shown(text)}")
        found: dict[str, Any] = {}
        for section in (config, text or {}):
            found.update({name: section[name] for name in _FIELDS if section.get(name) is not None})
        found.setdefault("ple_embed_dim", found.get("hidden_size"))
        found.pop("hidden_size", None)
        if not found.get("ple_layer_ids"):
            raise ConfigError("ple_layer_ids must list the decoder layers with an n-gram table, got none")
        for name, hint in _REQUIRED.items():
            if found.get(name) is None:
                raise ConfigError(f"{name} must be given{hint}, got nothing")
        return cls(**found, layer=layer)

    def to_dict(self) -> dict[str, Any]:
        """Return the config.json that `from_pretrained` reads back (`layer` is no part of it)."""
        names = (name for name in _FIELDS if name not in ("hidden_size", "quantization_config"))
        text = {name: getattr(self, name) for name in names}
        text["ple_layer_ids"] = list(self.ple_layer_ids)
        if self.ple_embedding_dtype is None:
            del text["ple_embedding_dtype"]
        config: dict[str, Any] = {"model_type": "qwen4_exp", "text_config": text}
        if self.quantization_config is not None:
            config["quantization_config"] = dict(self.quantization_config)
        return config


_FIELDS = (
    "vocab_size",
    "hidden_size",
    "ple_embed_dim",
    "eos_token_id",
    "ple_layer_ids",
    "ngram_size",
    "heads_per_ngram",
    "ngram_vocab_size_base",
    "make_ngram_vocab_size_divisible_by",
    "seed",
    "split_ngram_parts",
    "ple_embedding_dtype",
    "quantization_config",
)
_REQUIRED = {"vocab_size": "", "eos_token_id": "", "ple_embed_dim": " (or hidden_size)"}


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read config.json of a checkpoint folder (or the file itself).

    Where it has no ``quantization_config``, that of a legacy hf_quant_config.json beside it is added.

    Raises
    ------
    ConfigError
        A file is missing, unreadable or no JSON object.
    """
    file = config_file(path)
    config = _read(file)
    legacy = file.with_name(LEGACY_QUANTIZATION_FILE)
    text = config.get("text_config")
    sections = (config, text if isinstance(text, dict) else {})
    if not any(section.get("quantization_config") for section in sections) and legacy.exists():
        config["quantization_config"] = {"quant_method": "modelopt", **_read(legacy)}
    return config


def config_file(path: str | os.PathLike[str]) -> Path:
    """Return where the config.json of a checkpoint folder is, or the file given."""
    given = Path(path)
    return given / _CONFIG_FILE if given.is_dir() else given


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Put the file's name before what a ConfigError says."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_object(file)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error


def _shown(value: object) -> str:
    return f"{shown(value)} ({type(value).__name__})"


def _check_int(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, got {_shown(value)}")
    if not least <= value <= most:
        raise ConfigError(f"{name} must be within {least}..{most}, got {_shown(value)}")


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _first_token(value: Any) -> Any:
    if not _is_list(value):
        return value
    if not value:
        raise ConfigError("eos_token_id must be a token or a list with at least one, got an empty list")
    return value[0]


def _layer_ids(value: Any) -> tuple[int, ...]:
    if not _is_list(value):
        raise ConfigError(f"ple_layer_ids must be a list of integers, got {_shown(value)}")
    for item in value:
        _check_int("ple_layer_ids (each one)", item, 1, 2**20)
    ids = tuple(sorted(set(value)))
    if not 1 <= len(ids) <= _MAX_LAYERS:
        raise ConfigError(f"ple_layer_ids must list 1..{_MAX_LAYERS} layers, got {len(ids)}")
    return ids
