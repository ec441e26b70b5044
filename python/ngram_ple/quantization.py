"""Which format a checkpoint's table has, by what its configuration says.

The rules are those of the engines that serve published Qwen4Exp checkpoints. What the tensors on disk are is
stronger evidence; `ngram_ple.checkpoint.detect` weighs both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ngram_ple.errors import ConfigError, NgramPleWarning, shown
from ngram_ple.name_patterns import NamePatterns, UnsupportedPatternError

ConfiguredFormat: TypeAlias = Literal["unquantized", "fp8", "nvfp4"]

_TABLE = ".ngram_embedding"
_EMBEDDING_DTYPES: dict[str, ConfiguredFormat] = {"nvfp4": "nvfp4", "float8_e4m3fn": "fp8"}
_MODELOPT = ("modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed")
_LINEAR_ONLY = ("auto-round", "auto_round", "inc", "quark")
# Engines write the first, checkpoints the second: the same module.
_SAME_PREFIX = ("language_model.model.", "model.language_model.")


@dataclass(frozen=True)
class Resolution:
    """The format that a configuration gives a table and, in words, the rule that decided it."""

    format: ConfiguredFormat
    rule: str


def resolve_format(
    quantization_config: Mapping[str, Any] | None, prefix: str, ple_embedding_dtype: str | None = None
) -> ConfiguredFormat:
    """Tell which format the configuration gives a PLE layer's table.

    Parameters
    ----------
    quantization_config : mapping or None
        As in config.json, or the content of a legacy hf_quant_config.json.
    prefix : str
        Full module name of the table, ``model.language_model.layers.1.ple.ple_embedding.ngram_embedding``;
        the last component may be left out. ``language_model.model.`` and ``model.language_model.`` are the
        same.
    ple_embedding_dtype : str or None
        ``text_config.ple_embedding_dtype``; "nvfp4" and "float8_e4m3fn" win over `quantization_config`.

    Returns
    -------
    "unquantized", "fp8" or "nvfp4"
        Whether fp8 is row-wise follows from the scale's shape, which only the tensors tell.

    Raises
    ------
    ConfigError
        An unsupported algorithm, contradicting entries, or a field of a wrong type; the message names it.

    Warns
    -----
    NgramPleWarning
        An unknown method, or one that claims the table in a way that no published checkpoint means.
    """
    return explain_format(quantization_config, prefix, ple_embedding_dtype).format


def explain_format(
    quantization_config: Mapping[str, Any] | None, prefix: str, ple_embedding_dtype: str | None = None
) -> Resolution:
    """Do what `resolve_format` does and tell the rule as well."""
    if ple_embedding_dtype is not None:
        if not isinstance(ple_embedding_dtype, str) or ple_embedding_dtype not in _EMBEDDING_DTYPES:
            raise ConfigError(
                f"ple_embedding_dtype must be one of {sorted(_EMBEDDING_DTYPES)}, "
                f"got {shown(ple_embedding_dtype)}"
            )
        return Resolution(
            _EMBEDDING_DTYPES[ple_embedding_dtype], f"ple_embedding_dtype is {ple_embedding_dtype}"
        )
    if quantization_config is None:
        return Resolution("unquantized", "there is no quantization_config")
    if not isinstance(quantization_config, Mapping):
        raise ConfigError(f"quantization_config must be an object, got {type(quantization_config).__name__}")
    if not quantization_config:
        return Resolution("unquantized", "quantization_config is empty")
    return _by_method(quantization_config, _spellings(prefix))


def _by_method(config: Mapping[str, Any], names: tuple[str, ...]) -> Resolution:
    method = _text(config, "quant_method")
    if method is None and _modelopt_field(config, "quant_algo") is not None:
        method = "modelopt"  # hf_quant_config.json has no quant_method
    method = (method or "").lower()
    if method == "fp8":
        return _fp8(config, names)
    if method in _MODELOPT:
        return _modelopt(config, names)
    if method == "compressed-tensors":
        return _compressed_tensors(config, names)
    if method in _LINEAR_ONLY:
        return Resolution("unquantized", f"quant_method {method} means linear layers")
    return _unquantized_with_warning(f"quant_method {shown(method)} is unknown", names)


def _fp8(config: Mapping[str, Any], names: tuple[str, ...]) -> Resolution:
    key = "ignored_layers" if _strings(config, "ignored_layers") else "modules_to_not_convert"
    shards = tuple(f"{name}.shard_" for name in names)
    for entry in _strings(config, key):
        if entry in names or entry.startswith(shards):
            return Resolution("unquantized", f"quant_method fp8, whose {key} has {shown(entry)}")
    return Resolution("fp8", "quant_method fp8, which does not ignore the table")


def _modelopt(config: Mapping[str, Any], names: tuple[str, ...]) -> Resolution:
    key = "ignore" if _modelopt_field(config, "ignore") else "exclude_modules"
    patterns = NamePatterns()
    for pattern in _strings({key: _modelopt_field(config, key)}, key):
        if pattern and any(pattern in name or patterns.glob(pattern, name) for name in names):
            return Resolution("unquantized", f"modelopt, whose {key} has {shown(pattern)}")
    algorithm = _text({"quant_algo": _modelopt_field(config, "quant_algo")}, "quant_algo")
    known = (algorithm or "").upper()
    if known == "MIXED_PRECISION":
        return _mixed_precision(_modelopt_field(config, "quantized_layers"), names)
    if known not in ("FP8", "NVFP4"):
        raise ConfigError(
            f"quant_algo must be FP8, NVFP4 or MIXED_PRECISION for a table that is not excluded, "
            f"got {shown(algorithm)}"
        )
    return _unquantized_with_warning(
        f"modelopt's quant_algo {known} does not exclude the table (linear layers are meant)", names
    )


def _mixed_precision(layers: object, names: tuple[str, ...]) -> Resolution:
    if layers is None:
        layers = {}
    if not isinstance(layers, Mapping):
        raise ConfigError(f"quantized_layers must be an object, got {type(layers).__name__}")
    lowered = tuple(name.lower() for name in names)
    children = tuple(f"{name}." for name in lowered)
    found: dict[str, str] = {}  # algorithm -> the entry that names it
    for entry, value in layers.items():
        key = str(entry).lower()
        if key in lowered or key.startswith(children):
            algorithm = value.get("quant_algo") if isinstance(value, Mapping) else None
            if not isinstance(algorithm, str):
                raise ConfigError(
                    f"quantized_layers[{shown(entry)}] must have a quant_algo, got {shown(value)}"
                )
            found.setdefault(algorithm.upper(), entry)
    if not found:
        return Resolution("unquantized", "modelopt MIXED_PRECISION without the table in quantized_layers")
    if len(found) > 1:
        listed = ", ".join(f"{shown(name)} for {shown(found[name])}" for name in list(found)[:4])
        raise ConfigError(f"quantized_layers must agree on one algorithm for {names[0]}, got {listed}")
    algorithm, entry = next(iter(found.items()))
    formats: dict[str, ConfiguredFormat] = {"FP8": "fp8", "NVFP4": "nvfp4"}
    if algorithm not in formats:
        raise ConfigError(
            f"quantized_layers[{shown(entry)}] must be FP8 or NVFP4 for an n-gram table, "
            f"got {shown(algorithm)}"
        )
    return Resolution(formats[algorithm], f"modelopt MIXED_PRECISION: quantized_layers has {shown(entry)}")


def _compressed_tensors(config: Mapping[str, Any], names: tuple[str, ...]) -> Resolution:
    groups = config.get("config_groups")
    if groups is not None and not isinstance(groups, Mapping):
        raise ConfigError(f"config_groups must be an object, got {type(groups).__name__}")
    patterns = NamePatterns()
    ignored = any(_targeted(entry, names, patterns) for entry in _strings(config, "ignore"))
    for group, target in () if ignored else _targets(groups or {}):
        if _targeted(target, names, patterns):
            return _unquantized_with_warning(
                f"config_groups[{shown(group)}] targets it by {shown(target)}", names
            )
    return Resolution("unquantized", "quant_method compressed-tensors means linear layers")


def _targets(groups: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for group, scheme in groups.items():
        for target in _strings(scheme, "targets") if isinstance(scheme, Mapping) else ():
            yield group, target


def _targeted(target: str, names: tuple[str, ...], patterns: NamePatterns) -> bool:
    if not target.startswith("re:"):
        return target in names
    try:
        return any(patterns.regex(target[3:], name) for name in names)
    except UnsupportedPatternError:
        return False  # it could only have changed whether there is a warning


def _spellings(prefix: str) -> tuple[str, ...]:
    if not isinstance(prefix, str):
        raise ConfigError(f"prefix must be a string, got {type(prefix).__name__}")
    name = prefix.rstrip(".")
    name = name if f".{name}".endswith(_TABLE) else f"{name}{_TABLE}".lstrip(".")
    for one, other in (_SAME_PREFIX, _SAME_PREFIX[::-1]):
        if name.startswith(one):
            return name, other + name[len(one) :]
    return (name,)


def _modelopt_field(config: Mapping[str, Any], key: str) -> Any:
    nested = config.get("quantization")
    value = config.get(key)
    return nested.get(key) if value is None and isinstance(nested, Mapping) else value


def _text(config: Mapping[str, Any], key: str) -> str | None:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{key} must be a string, got {type(value).__name__}")
    return value


def _strings(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = config.get(key)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{key} must be a list of strings, got {shown(value)}")
    return tuple(value)


def _unquantized_with_warning(why: str, names: tuple[str, ...]) -> Resolution:
    warnings.warn(f"{why}: {names[0]} is taken as unquantized", NgramPleWarning, stacklevel=2)
    return Resolution("unquantized", why)
