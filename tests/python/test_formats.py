"""RowFormat: the geometry of every format, and the names that cross to the operators."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from ngram_ple import ConfigError, row_format
from ngram_ple.formats import FORMATS, OUT_DTYPES, RowFormat, out_dtype_name

# name, head_dim -> row_bytes, scale_bytes, scale_offset, slot_bytes, has_global_scale
GEOMETRIES = {
    ("bf16", 160): (320, 0, 0, 320, False),
    ("bf16", 7): (14, 0, 0, 14, False),
    ("fp16", 160): (320, 0, 0, 320, False),
    ("fp32", 160): (640, 0, 0, 640, False),
    ("fp8", 160): (160, 0, 0, 160, True),
    ("fp8", 257): (257, 0, 0, 257, True),
    ("fp8-rowwise", 160): (160, 4, 160, 176, False),
    ("fp8-rowwise", 13): (13, 4, 16, 32, False),
    ("fp8-rowwise", 1): (1, 4, 4, 16, False),
    ("nvfp4", 160): (80, 10, 80, 96, True),
    ("nvfp4", 16): (8, 1, 8, 16, True),
}


@pytest.mark.parametrize(("name", "head_dim"), GEOMETRIES)
def test_geometry(name: str, head_dim: int) -> None:
    assert row_format(name, head_dim) == RowFormat(name, head_dim, *GEOMETRIES[name, head_dim])


def test_published_table_sizes() -> None:
    rows = 320001536
    gib = {name: rows * row_format(name, 160).row_bytes / 2**30 for name in FORMATS}
    assert round(gib["bf16"], 2) == 95.37
    assert round(gib["fp8"], 2) == 47.68
    scaled = row_format("nvfp4", 160)
    assert round(rows * (scaled.row_bytes + scaled.scale_bytes) / 2**30, 2) == 26.82


@pytest.mark.parametrize("name", FORMATS)
def test_parts_lie_inside_the_slot(name: str) -> None:
    for head_dim in range(16, 400, 16 if name == "nvfp4" else 1):
        found = row_format(name, head_dim)
        assert found.row_bytes <= found.slot_bytes
        if found.scale_bytes:
            assert found.row_bytes <= found.scale_offset
            assert found.scale_offset + found.scale_bytes <= found.slot_bytes
            assert found.slot_bytes % 16 == 0
        else:
            assert found.slot_bytes == found.row_bytes


def test_it_is_frozen_and_hashable() -> None:
    found = row_format("fp8", 8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.head_dim = 3  # type: ignore[misc]
    assert len({found, row_format("fp8", 8)}) == 1


@pytest.mark.parametrize(
    ("name", "head_dim", "said"),
    [
        ("int8", 16, "format must be one of bf16, fp16, fp32, fp8, fp8-rowwise, nvfp4, got int8"),
        ("BF16", 16, "got BF16"),
        ("", 16, "format must be one of"),
        ("bf16", 0, "head_dim must be within 1..2^24, got 0"),
        ("bf16", -3, "got -3"),
        ("fp32", 2**24 + 1, "head_dim must be within 1..2^24"),
        ("nvfp4", 24, "nvfp4 needs a head_dim divisible by 16, got 24"),
    ],
)
def test_errors_name_the_argument(name: str, head_dim: int, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        row_format(name, head_dim)
    assert said in str(error.value)


def test_out_dtype_names() -> None:
    assert {out_dtype_name(dtype) for dtype in OUT_DTYPES} == {"bf16", "fp16", "fp32"}
    for wrong in (torch.float64, torch.int8, torch.uint8, "bf16", None, []):
        with pytest.raises(ConfigError, match="dtype must be one of"):
            out_dtype_name(wrong)  # type: ignore[arg-type]
