"""Which format a checkpoint's table has, by what its configuration says.

The rules are those of the engines that serve published Qwen4Exp checkpoints. What the tensors on disk are is
stronger evidence; `ngram_ple.checkpoint.detect` weighs both.
"""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from ngram_ple.errors import ConfigError, NgramPleWarning

ConfiguredFormat: TypeAlias = Literal["unquantized", "fp8", "nvfp4"]

_TABLE = ".ngram_embedding"
_EMBEDDING_DTYPES: dict[str, ConfiguredFormat] = {"nvfp4": "nvfp4", "float8_e4m3fn": "fp8"}
_MODELOPT = ("modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed")
_LINEAR_ONLY = ("auto-round", "auto_round", "inc", "quark")
# Engines write the first, checkpoints the second: the same module.
_SAME_PREFIX = ("language_model.model.", "model.language_model.")


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
    if ple_embedding_dtype is not None:
        if not isinstance(ple_embedding_dtype, str) or ple_embedding_dtype not in _EMBEDDING_DTYPES:
            raise ConfigError(
                f"ple_embedding_dtype must be one of {sorted(_EMBEDDING_DTYPES)}, got {ple_embedding_dtype!r}"
            )
        return _EMBEDDING_DTYPES[ple_embedding_dtype]
    if quantization_config is None:
        return "unquantized"
    if not isinstance(quantization_config, Mapping):
        raise ConfigError(f"quantization_config must be an object, got {type(quantization_config).__name__}")
    if not quantization_config:
        return "unquantized"
    return _by_method(quantization_config, _spellings(prefix))


def _by_method(config: Mapping[str, Any], names: tuple[str, ...]) -> ConfiguredFormat:
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
    if method not in _LINEAR_ONLY:
        _warn(f"quant_method {method!r} is unknown: {names[0]} is taken as unquantized")
    return "unquantized"


def _fp8(config: Mapping[str, Any], names: tuple[str, ...]) -> ConfiguredFormat:
    ignored = _strings(config, "ignored_layers") or _strings(config, "modules_to_not_convert")
    skipped = any(entry == name or entry.startswith(f"{name}.shard_") for entry in ignored for name in names)
    return "unquantized" if skipped else "fp8"


def _modelopt(config: Mapping[str, Any], names: tuple[str, ...]) -> ConfiguredFormat:
    key = "ignore" if _modelopt_field(config, "ignore") else "exclude_modules"
    excluded = any(
        pattern and (pattern in name or fnmatch.fnmatchcase(name, pattern))
        for pattern in _strings({key: _modelopt_field(config, key)}, key)
        for name in names
    )
    if excluded:
        return "unquantized"
    algorithm = _text({"quant_algo": _modelopt_field(config, "quant_algo")}, "quant_algo")
    known = (algorithm or "").upper()
    if known == "MIXED_PRECISION":
        return _mixed_precision(_modelopt_field(config, "quantized_layers"), names)
    if known not in ("FP8", "NVFP4"):
        raise ConfigError(
            f"quant_algo must be FP8, NVFP4 or MIXED_PRECISION for a table that is not excluded, "
            f"got {algorithm!r}"
        )
    _warn(
        f"quant_algo {algorithm} does not exclude {names[0]}: taken as unquantized (linear layers are meant)"
    )
    return "unquantized"


def _mixed_precision(layers: object, names: tuple[str, ...]) -> ConfiguredFormat:
    if layers is None:
        layers = {}
    if not isinstance(layers, Mapping):
        raise ConfigError(f"quantized_layers must be an object, got {type(layers).__name__}")
    lowered = tuple(name.lower() for name in names)
    found: dict[str, str] = {}  # algorithm -> the entry that names it
    for entry, value in layers.items():
        key = str(entry).lower()
        if any(key == name or key.startswith(f"{name}.") for name in lowered):
            algorithm = value.get("quant_algo") if isinstance(value, Mapping) else None
            if not isinstance(algorithm, str):
                raise ConfigError(f"quantized_layers[{entry!r}] must have a quant_algo, got {value!r}")
            found.setdefault(algorithm.upper(), entry)
    if not found:
        return "unquantized"
    if len(found) > 1:
        listed = ", ".join(f"{algorithm} for {entry}" for algorithm, entry in found.items())
        raise ConfigError(f"quantized_layers must agree on one algorithm for {names[0]}, got {listed}")
    algorithm, entry = next(iter(found.items()))
    if algorithm == "FP8":
        return "fp8"
    if algorithm == "NVFP4":
        return "nvfp4"
    raise ConfigError(
        f"quantized_layers[{entry!r}] must be FP8 or NVFP4 for an n-gram table, got {algorithm}"
    )


def _compressed_tensors(config: Mapping[str, Any], names: tuple[str, ...]) -> ConfiguredFormat:
    groups = config.get("config_groups")
    if groups is not None and not isinstance(groups, Mapping):
        raise ConfigError(f"config_groups must be an object, got {type(groups).__name__}")
    if any(_targeted(entry, names) for entry in _strings(config, "ignore")):
        return "unquantized"
    for group, scheme in (groups or {}).items():
        targets = _strings(scheme, "targets") if isinstance(scheme, Mapping) else ()
        for target in targets:
            if _targeted(target, names):
                _warn(f"config_groups[{group!r}] targets {names[0]} by {target!r}: taken as unquantized")
                return "unquantized"
    return "unquantized"


def _targeted(target: str, names: Iterable[str]) -> bool:
    if not target.startswith("re:"):
        return target in names
    try:
        pattern = re.compile(target[3:])
    except re.error as error:
        raise ConfigError(f"quantization_config has the unreadable pattern {target!r}: {error}") from None
    return any(pattern.match(name) for name in names)


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
        raise ConfigError(f"{key} must be a list of strings, got {str(value)[:80]!r}")
    return tuple(value)


def _warn(message: str) -> None:
    warnings.warn(message, NgramPleWarning, stacklevel=4)
