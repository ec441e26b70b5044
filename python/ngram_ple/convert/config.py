"""config.json of a converted checkpoint: the source's, but for what it says of the tables."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ngram_ple.checkpoint.write import CONFIG_DTYPES
from ngram_ple.errors import NgramPleError, NgramPleWarning
from ngram_ple.quantization import explain_format


def converted_config(
    config: Mapping[str, Any], format: str, shards: int, prefixes: Sequence[str]
) -> dict[str, Any]:
    """Return the configuration of the converted tables.

    ``ple_embedding_dtype`` and ``split_ngram_parts`` are set; ``quantization_config`` stays, since it
    speaks of other layers. Only where it would claim tables that are now unquantized are those excluded in
    it: in ``ignored_layers`` (or ``modules_to_not_convert``) of fp8, in ``ignore`` (or ``exclude_modules``)
    of modelopt.

    Parameters
    ----------
    config : mapping
        The source's config.json.
    format : str
        Of the tables written.
    shards : int
    prefixes : sequence of str
        Of the tables, with their final dots.
    """
    result: dict[str, Any] = copy.deepcopy(dict(config))
    text = result["text_config"] if isinstance(result.get("text_config"), dict) else result
    for section in (result, text):
        section.pop("ple_embedding_dtype", None)
        section.pop("split_ngram_parts", None)
    text["split_ngram_parts"] = shards
    if format in CONFIG_DTYPES:
        text["ple_embedding_dtype"] = CONFIG_DTYPES[format]
        return result
    for section in (result, text):
        quantization = section.get("quantization_config")
        if isinstance(quantization, dict):
            for prefix in prefixes:
                _exclude(quantization, f"{prefix}ngram_embedding")
    return result


def _exclude(quantization: dict[str, Any], name: str) -> None:
    if _claims(quantization, name):
        key, section = _exclusions(quantization)
        section[key] = [*(section.get(key) or []), name]
        if _claims(quantization, name):
            warnings.warn(
                f"quantization_config still claims {name}, which is unquantized now: exclude it by hand",
                NgramPleWarning,
                stacklevel=2,
            )


def _claims(quantization: Mapping[str, Any], name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NgramPleWarning)
        try:
            return explain_format(quantization, name).format != "unquantized"
        except NgramPleError:
            return False  # it speaks of no format that tables have


def _exclusions(quantization: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Where the method keeps what it excludes."""
    if str(quantization.get("quant_method", "")).lower() == "fp8":
        used = not quantization.get("ignored_layers") and quantization.get("modules_to_not_convert")
        return "modules_to_not_convert" if used else "ignored_layers", quantization
    nested = quantization.get("quantization")
    for section in (quantization, *([nested] if isinstance(nested, dict) else [])):
        for key in ("ignore", "exclude_modules"):
            if section.get(key):
                return key, section
    return "ignore", quantization
