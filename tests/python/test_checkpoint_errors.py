"""Wrong tensors: each ends in an error that names the tensor and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import (
    PADDED_ROWS,
    PREFIX,
    SPLIT,
    assert_filled,
    load,
    make_source,
    save_tensors,
    shard,
    sink_for,
    small_config,
)
from ngram_ple.checkpoint import TableLoader, stored_config
from ngram_ple.checkpoint.layout import table_layout
from ngram_ple.errors import CheckpointError, NgramPleError

Tensors = dict[str, torch.Tensor]


def replaced(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        tensors[name] = change(tensors[name])

    return apply


def without(*names: str) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return apply


def plus(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensor})


def row_nan(scales: torch.Tensor) -> torch.Tensor:
    scales = scales.clone()
    scales.view(torch.uint8 if scales.dtype == torch.float8_e4m3fn else scales.dtype)[5, -1] = (
        0xFF if scales.dtype == torch.float8_e4m3fn else float("nan")
    )
    return scales


NAN = torch.tensor([float("nan")])
CASES: list[tuple[str, str, Callable[[Tensors], None], str]] = [
    (
        "missing",
        "bf16",
        without(shard(2)),
        r"shard_2\.weight missing: expected BF16 \[21, 32\] for rows 42\.\.62",
    ),
    (
        "missing last",
        "bf16",
        without(shard(4)),
        r"shard_4\.weight missing: expected BF16 \[19, 32\] for rows 84\.\.102",
    ),
    ("missing several", "bf16", without(shard(0), shard(3)), r"shard_0\.weight, .*shard_3\.weight missing"),
    ("no weight", "nvfp4", without(*(shard(n) for n in range(SPLIT))), r"ngram_embedding\.weight missing"),
    (
        "missing scales",
        "nvfp4",
        without(shard(1, "weight_scale")),
        r"shard_1\.weight_scale missing: expected F8_E4M3",
    ),
    (
        "extra",
        "bf16",
        plus(shard(5), torch.zeros(1, 32).bfloat16()),
        r"shard_5\.weight: expected shards 0\.\.4",
    ),
    ("extra far", "bf16", plus(shard(10**8), torch.zeros(1, 32).bfloat16()), r"expected shards 0\.\.4"),
    (
        "short",
        "bf16",
        replaced(shard(1), lambda t: t[:-1]),
        r"shard_1\.weight: expected BF16 \[21, 32\], got BF16 \[20, 32\]",
    ),
    (
        "long",
        "fp8",
        replaced(shard(4), lambda t: torch.cat([t, t])),
        r"expected F8_E4M3 \[19, 32\], got F8_E4M3 \[38, 32\]",
    ),
    (
        "narrow",
        "fp32",
        replaced(shard(1), lambda t: t[:, :-1]),
        r"expected F32 \[21, 32\], got F32 \[21, 31\]",
    ),
    (
        "narrow codes",
        "nvfp4",
        replaced(shard(0), lambda t: t[:, 1:]),
        r"expected U8 \[21, 16\], got U8 \[21, 15\]",
    ),
    (
        "flat",
        "bf16",
        replaced(shard(1), lambda t: t.reshape(-1)),
        r"expected BF16 \[21, 32\], got BF16 \[672\]",
    ),
    (
        "transposed",
        "bf16",
        replaced(shard(1), lambda t: t.t()),
        r"expected BF16 \[21, 32\], got BF16 \[32, 21\]",
    ),
    (
        "one of another type",
        "bf16",
        replaced(shard(3), lambda t: t.half()),
        r"must have one dtype, got BF16 .*shard_0.* F16 .*shard_3",
    ),
    (
        "all of another type",
        "bf16",
        lambda ts: ts.update({k: v.to(torch.int8) for k, v in ts.items()}),
        "got I8, which no",
    ),
    (
        "scale type",
        "nvfp4",
        replaced(shard(1, "weight_scale"), lambda t: t.float()),
        r"expected F8_E4M3 \[21, 2\], got F32",
    ),
    (
        "scale width",
        "nvfp4",
        replaced(shard(1, "weight_scale"), lambda t: t[:, :1]),
        r"expected F8_E4M3 \[21, 2\], got .*\[21, 1\]",
    ),
    (
        "row scales short",
        "fp8-rowwise",
        replaced(shard(1, "weight_scale"), lambda t: t[1:]),
        r"\[21, 1\], got F32 \[20, 1\]",
    ),
    (
        "row scales half",
        "fp8-rowwise",
        replaced(shard(1, "weight_scale"), lambda t: t.half()),
        "expected BF16 or F32",
    ),
    (
        "whole and split",
        "bf16",
        lambda ts: ts.update({"ngram_embedding.weight": torch.cat(list(ts.values()))}),
        "expected once, but .* was given already",
    ),
    (
        "leading zero",
        "bf16",
        lambda ts: ts.update({"ngram_embedding.shard_01.weight": ts[shard(1)]}),
        r"expected once, but .*shard_0?1\.weight was given already",
    ),
    (
        "two dialects",
        "nvfp4",
        lambda ts: ts.update({shard(1, "weight_packed"): ts[shard(1)]}),
        "expected once, but",
    ),
    (
        "unknown",
        "bf16",
        plus("ngram_embedding.bias", torch.zeros(3)),
        r"ngram_embedding\.bias: unknown tensor; expected",
    ),
    ("unknown sibling", "bf16", plus("other.thing", torch.zeros(3)), r"other\.thing: unknown tensor"),
    (
        "scale of bf16",
        "bf16",
        plus("ngram_embedding.weight_scale", torch.ones(1)),
        "weight_scale: unknown tensor",
    ),
    (
        "scale_2 of fp8",
        "fp8",
        plus("ngram_embedding.weight_scale_2", torch.ones(1)),
        "weight_scale_2: unknown tensor",
    ),
    (
        "fp8 scale absent",
        "fp8",
        without("ngram_embedding.weight_scale"),
        r"ngram_embedding\.weight_scale missing: expected one BF16 or F32",
    ),
    (
        "nvfp4 scale absent",
        "nvfp4",
        without("ngram_embedding.weight_scale_2"),
        r"weight_scale_2 missing: expected one F32 value",
    ),
    (
        "scale of two",
        "fp8",
        plus("ngram_embedding.weight_scale", torch.ones(2)),
        r"expected one BF16 or F32 value, \[1\] or \[\], got F32 \[2\]",
    ),
    ("scale in fp16", "fp8", plus("ngram_embedding.weight_scale", torch.ones(1).half()), "got F16"),
    ("bf16 scale_2", "nvfp4", plus("ngram_embedding.weight_scale_2", torch.ones(1).bfloat16()), "got BF16"),
    (
        "never filled",
        "fp8",
        plus("ngram_embedding.weight_scale", NAN),
        r"weight_scale: expected a finite scale, got nan",
    ),
    (
        "never filled nvfp4",
        "nvfp4",
        plus("ngram_embedding.weight_scale_2", NAN),
        "expected a finite scale, got nan",
    ),
    (
        "infinite",
        "fp8",
        plus("ngram_embedding.weight_scale", torch.tensor([float("inf")])),
        "finite scale, got inf",
    ),
    (
        "reciprocal of 0",
        "nvfp4",
        lambda ts: (
            ts.pop("ngram_embedding.weight_scale_2"),
            ts.update({"ngram_embedding.weight_global_scale": torch.zeros(1)}),
        ),
        "finite scale, got 0.0",
    ),  # type: ignore[func-returns-value]
    (
        "row scale NaN",
        "fp8-rowwise",
        replaced(shard(1, "weight_scale"), row_nan),
        r"shard_1\.weight_scale: expected finite scales, row 26",
    ),
    (
        "block scale NaN",
        "nvfp4",
        replaced(shard(2, "weight_scale"), row_nan),
        r"shard_2\.weight_scale: expected finite scales, row 47",
    ),
    (
        "buffer type",
        "bf16",
        plus("layer_multipliers", torch.zeros(3)),
        r"layer_multipliers: expected I64 \[3\], got F32",
    ),
    (
        "buffer length",
        "bf16",
        plus("ngram_heads_offsets", torch.zeros(3, dtype=torch.int64)),
        r"expected I64 \[4\], got I64 \[3\]",
    ),
]


@pytest.mark.parametrize(("format", "change", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_wrong_tensors(tmp_path: Path, format: str, change: Callable[[Tensors], None], message: str) -> None:
    source = make_source(format)
    tensors = source.named()
    change(tensors)
    save_tensors(tmp_path, tensors, stored_config(small_config(), format), files=2)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path, sink_for(source))
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, NgramPleError)


# The length of a hash buffer is the hash plan's matter when an engine hands the tensors over.
ENGINE_CASES = [case for case in CASES if case[0] != "buffer length"]


@pytest.mark.parametrize(
    ("format", "change"), [case[1:3] for case in ENGINE_CASES], ids=[case[0] for case in ENGINE_CASES]
)
def test_wrong_tensors_of_an_engine(format: str, change: Callable[[Tensors], None]) -> None:
    source = make_source(format)
    tensors = source.named()
    change(tensors)
    sink = sink_for(source)
    loader = TableLoader(sink, padded_rows=PADDED_ROWS, split_ngram_parts=SPLIT, prefix=PREFIX)

    def load_all() -> None:
        for name, tensor in tensors.items():
            loader.add(name, tensor)
        loader.finish()

    with pytest.raises(CheckpointError, match="expected"):
        load_all()
    assert sink.global_scale is None


def test_structure_is_proved_before_anything_is_read(tmp_path: Path) -> None:
    source = make_source("nvfp4")
    tensors = source.named()
    del tensors[shard(4, "weight_scale")]
    save_tensors(tmp_path, tensors, stored_config(small_config(), "nvfp4"))
    sink = sink_for(source)
    with pytest.raises(CheckpointError, match=r"shard_4\.weight_scale missing"):
        load(tmp_path, sink, check=False)
    assert sink.writes == 0
    assert torch.equal(sink.leaves["weight"], torch.full_like(sink.leaves["weight"], 0xA5))


def test_missing_tensor_may_still_come() -> None:
    source = make_source("fp8")
    sink = sink_for(source)
    loader = TableLoader(sink, padded_rows=PADDED_ROWS, split_ngram_parts=SPLIT)
    named = source.named()
    late = named.pop(shard(3))
    for name, tensor in named.items():
        loader.add(name, tensor)
    with pytest.raises(CheckpointError, match=r"shard_3\.weight missing"):
        loader.finish()
    loader.add(shard(3), late)
    loader.finish()
    assert_filled(sink, source)
    with pytest.raises(CheckpointError, match="expected once"):
        loader.add(shard(3), late)


def test_only_owned_rows_are_required() -> None:
    source = make_source("bf16")
    sink = sink_for(source, 21, 63)
    loader = TableLoader(sink, padded_rows=PADDED_ROWS, split_ngram_parts=SPLIT)
    for number in (1, 2):
        loader.add(shard(number), source.named()[shard(number)])
    loader.finish()
    assert_filled(sink, source)
    nobody = TableLoader(sink_for(source, 103, 103), padded_rows=PADDED_ROWS, split_ngram_parts=SPLIT)
    nobody.finish()


def test_meta_tensor() -> None:
    source = make_source("bf16")
    loader = TableLoader(sink_for(source), padded_rows=PADDED_ROWS, split_ngram_parts=SPLIT)
    with pytest.raises(CheckpointError, match="got one on the meta device"):
        loader.add("ngram_embedding.weight", source.weight.to("meta"))


def test_head_dim_of_nvfp4() -> None:
    with pytest.raises(CheckpointError, match="nvfp4 needs a head_dim divisible by 16, got 24"):
        table_layout("nvfp4", 24)
