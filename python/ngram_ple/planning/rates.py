"""Rates that a plan counts with: measured on this machine and saved, or the shipped ones."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ngram_ple.errors import ConfigError
from ngram_ple.json_file import read_object

# H 16, head_dim 160: what `embed` was measured with.
MEASURED_HEADS, MEASURED_HEAD_DIM = 16, 160

_TRUSTED_BEYOND = 4  # times the largest batch that was measured


@dataclass(frozen=True)
class Rates:
    """What one machine does.

    Attributes
    ----------
    hardware, source : str
        What was measured, and where the figures come from.
    embed_us : mapping
        Placement ("device", "cpu") -> format -> tokens -> µs of one `embed` in the published model's shape:
        16 heads, rows of 160 values, to bf16.
    host_to_device, peer : float or None
        Bytes a second from pinned memory to a GPU, and from one GPU to another, one direction.
    pinned_row_ns : float or None
        Of a random row in a large pinned table that a GPU reads in place: address translation bounds it,
        whatever the row's size.
    staged_start_us, staged_row_ns : float or None
        Of a lookup in a pinned table whose rows CPU workers gather: a batch, and each row (at least what its
        bytes take). ``bench --save`` does not measure them: plans then count rows read in place.
    """

    hardware: str
    source: str
    embed_us: Mapping[str, Mapping[str, Mapping[int, float]]]
    host_to_device: float | None = None
    peer: float | None = None
    pinned_row_ns: float | None = None
    staged_start_us: float | None = None
    staged_row_ns: float | None = None

    def embed_time(self, placement: str, format: str, tokens: int, bytes_ratio: float) -> float | None:
        """µs of `embed`: between measured batch sizes linear, beyond them in proportion.

        `bytes_ratio` is what a token moves over what it moved when measured. None where nothing was measured.
        """
        points = sorted(self.embed_us.get(placement, {}).get(format, {}).items())
        if not points:
            return None
        wanted = tokens * bytes_ratio
        for (few, short), (many, long) in pairwise(points):
            if wanted <= many:
                return short + (long - short) * max(wanted - few, 0) / (many - few)
        many, long = points[-1]
        return long * max(wanted, 1) / many if wanted > many else long

    def extrapolated_from(self, placement: str, format: str, tokens: int, bytes_ratio: float) -> int | None:
        """Return the largest batch that was measured where `embed_time` goes beyond four times its size."""
        points = self.embed_us.get(placement, {}).get(format, {})
        largest = max(points, default=None)
        return largest if largest and tokens * bytes_ratio > _TRUSTED_BEYOND * largest else None

    def to_json(self) -> dict[str, Any]:
        """Return what `read_rates` reads back."""
        return asdict(self)


# fp8-rowwise: not published; its slots are 10 % larger than fp8's rows, and it takes the same kernel.
SHIPPED = Rates(
    hardware="NVIDIA H200",
    source="shipped figures of one H200 (docs/gpu_kernels.md, docs/host_tables.md), not of this machine",
    embed_us={
        "device": {
            "bf16": {1: 1.85, 8: 1.98, 64: 2.27, 1024: 5.10, 8192: 25.6, 32768: 88.9},
            "fp8": {1: 2.03, 8: 2.25, 64: 2.65, 1024: 4.57, 8192: 22.2, 32768: 76.3},
            "nvfp4": {1: 2.05, 8: 2.17, 64: 2.41, 1024: 4.45, 8192: 19.8, 32768: 68.3},
        }
    },
    host_to_device=55.4e9,
    peer=390e9,
    pinned_row_ns=33.0,
    staged_start_us=50.0,  # a line through 1024 and 8192 tokens of docs/host_tables.md
    staged_row_ns=4.6,
)


def read_rates(file: str | os.PathLike[str]) -> Rates:
    """Read what ``ngram-ple bench --save`` has written.

    Raises
    ------
    ConfigError
        The file is no such one; the field is named.
    """
    path = Path(file)
    try:
        found = read_object(path)
        return Rates(
            hardware=_text(found, "hardware"),
            source=f"measured, {path}",
            embed_us=_embed(found.get("embed_us")),
            host_to_device=_rate(found, "host_to_device"),
            peer=_rate(found, "peer"),
            pinned_row_ns=_rate(found, "pinned_row_ns"),
            staged_start_us=_rate(found, "staged_start_us"),
            staged_row_ns=_rate(found, "staged_row_ns"),
        )
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error} (ngram-ple bench --save writes such files)") from error


def _text(found: Mapping[str, Any], name: str) -> str:
    if not isinstance(found.get(name), str):
        raise ValueError(f"{name} must be a string")
    return str(found[name])


def _rate(found: Mapping[str, Any], name: str) -> float | None:
    value = found.get(name)
    return None if value is None else _positive(name, value)


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def _embed(found: object) -> dict[str, dict[str, dict[int, float]]]:
    result: dict[str, dict[str, dict[int, float]]] = {}
    for placement, formats in _object("embed_us", found):
        for format, times in _object(f"embed_us[{placement!r}]", formats):
            at = f"embed_us[{placement!r}][{format!r}]"
            points = {}
            for tokens, spent in _object(at, times):
                if not tokens.isdecimal() or len(tokens) > 18 or not int(tokens):
                    raise ValueError(f"{at} must have numbers of tokens as names, got {tokens!r}")
                points[int(tokens)] = _positive(f"{at}[{tokens!r}]", spent)
            result.setdefault(placement, {})[format] = points
    return result


def _object(name: str, found: object) -> list[tuple[str, Any]]:
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} must be an object")
    return list(found.items())
