"""Wrong arguments: a RuntimeError names operator, argument, requirement and what came; nothing is written."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from batches import Batch, random_rows, small_plan

Arguments = dict[str, Any]
Change = Callable[[torch.Tensor], Any]

HEADS = 4  # N 3, K 2
TOKENS = 5
ROWS = sum(small_plan(3, 2)[1])


def hash_arguments(device: torch.device) -> Arguments:
    names = (
        "input_ids", "query_start_loc", "ngram_context", "layer_multipliers", "ngram_heads_vocab_sizes",
        "ngram_heads_offsets", "eos_token_id", "heads_per_ngram",
    )  # fmt: skip
    batch = Batch([1, 2, 3, 4, 5], [0, 2, 5], [[1, 2], [3, 4]], small_plan(3, 2), 1, 2)
    return dict(zip(names, batch.arguments(device), strict=True))


def table_arguments(device: torch.device, format: str = "nvfp4") -> Arguments:
    table = random_rows(random.Random(1), format, 32, ROWS, device)
    return {
        "weight": table.weight, "scale": table.scale, "global_scale": table.global_scale,
        "format": format, "out_dtype": "bf16", "head_dim": 32,
    }  # fmt: skip


def valid(op: str, device: torch.device, format: str = "nvfp4") -> Arguments:
    if op == "ngram_ids":
        return hash_arguments(device)
    table = table_arguments(device, format)
    if op == "embed":
        return {**hash_arguments(device), **table}
    if op == "lookup":
        return {"ids": torch.tensor([[1, 2], [3, 4]], device=device), **table}
    table["rows"] = table.pop("weight")
    return table


def expect_error(op: str, arguments: Arguments, *said: str) -> None:
    """The plain form and the out form both refuse; the out form has not written."""
    device = next(a for a in arguments.values() if isinstance(a, torch.Tensor)).device
    good = getattr(torch.ops.ngram_ple, op)(**valid(op, device))
    out = torch.full_like(good, 3)
    for call in (
        lambda: getattr(torch.ops.ngram_ple, op)(**arguments),
        lambda: getattr(torch.ops.ngram_ple, op).out(**arguments, out=out),
    ):
        with pytest.raises(RuntimeError) as error:
            call()
        for part in (f"{op}: ", *said):
            assert part in str(error.value)
    assert bool((out == 3).all())


HASH_CASES: list[tuple[str, Change, str, str]] = [
    ("input_ids", lambda t: t.float(), "must be int32 or int64", "got float32 [5]"),
    ("input_ids", lambda t: t.short(), "must be int32 or int64", "got int16 [5]"),
    ("input_ids", lambda t: t.bool(), "must be int32 or int64", "got bool [5]"),
    ("input_ids", lambda t: t.view(1, -1), "must be [T]", "got int64 [1, 5]"),
    ("input_ids", lambda t: t.repeat(2)[::2], "must be contiguous", "int64 [5]"),
    ("query_start_loc", lambda t: t.double(), "must be int32 or int64", "got float64 [3]"),
    ("query_start_loc", lambda t: t.view(1, -1), "must be [R + 1]", "got int64 [1, 3]"),
    ("query_start_loc", lambda t: t[:0], "must be [R + 1] with R >= 0", "got int64 [0]"),
    ("query_start_loc", lambda t: t.repeat_interleave(2)[::2], "must be contiguous", "int64 [3]"),
    ("ngram_context", lambda t: t.half(), "must be int32 or int64", "got float16 [2, 2]"),
    ("ngram_context", lambda t: t[:1], "must be [>= 2, 2]", "got int64 [1, 2]"),
    ("ngram_context", lambda t: t[:, :1], "must be [>= 2, 2]", "got int64 [2, 1]"),
    ("ngram_context", lambda t: t.repeat(1, 2), "must be [>= 2, 2]", "got int64 [2, 4]"),
    ("ngram_context", lambda t: t.flatten(), "must be [>= 2, 2]", "got int64 [4]"),
    ("ngram_context", lambda t: t.repeat(1, 2)[:, ::2], "must have adjacent columns", "stride of 2"),
    ("layer_multipliers", lambda t: t.int(), "must be int64 [N]", "got int32 [3]"),
    ("layer_multipliers", lambda t: t[:1], "must have N within 2..1024 elements", "got int64 [1]"),
    ("layer_multipliers", lambda t: t.view(1, -1), "must be int64 [N]", "got int64 [1, 3]"),
    ("layer_multipliers", lambda t: t.repeat(2)[::2], "must be contiguous", "int64 [3]"),
    ("ngram_heads_vocab_sizes", lambda t: t.int(), "must be int64 [4]", "got int32 [4]"),
    ("ngram_heads_vocab_sizes", lambda t: t[:3], "must be int64 [4]", "got int64 [3]"),
    ("ngram_heads_vocab_sizes", lambda t: t.repeat(2)[::2], "must be contiguous", "int64 [4]"),
    ("ngram_heads_offsets", lambda t: t.float(), "must be int64 [4]", "got float32 [4]"),
    ("ngram_heads_offsets", lambda t: t.repeat(2), "must be int64 [4]", "got int64 [8]"),
    ("heads_per_ngram", lambda k: 0, "must be within 1..65536", "got 0"),
    ("heads_per_ngram", lambda k: -2, "must be within 1..65536", "got -2"),
    ("heads_per_ngram", lambda k: 2**33 + 2, "must be within 1..65536", "got 8589934594"),
    ("ngram_heads_vocab_sizes", lambda t: t[:0], "must be int64 [4]", "got int64 [0]"),
]


@pytest.mark.parametrize("op", ["ngram_ids", "embed"])
@pytest.mark.parametrize(("name", "change", "needs", "got"), HASH_CASES)
def test_hashing(op: str, name: str, change: Change, needs: str, got: str, device: torch.device) -> None:
    arguments = valid(op, device)
    arguments[name] = change(arguments[name])
    expect_error(op, arguments, name, needs, got)


VALUE_CASES: list[tuple[str, list[int], str]] = [
    ("query_start_loc", [1, 2, 5], "query_start_loc must start at 0, got 1"),
    ("query_start_loc", [-1, 2, 5], "query_start_loc must start at 0, got -1"),
    ("query_start_loc", [0, 3, 2], "query_start_loc must not decrease, got 3 then 2 at index 2"),
    ("query_start_loc", [0, 2, 6], "query_start_loc must end within input_ids [5], got 6"),
    ("query_start_loc", [0, 2, 2**62], "query_start_loc must end within input_ids [5]"),
    ("ngram_heads_vocab_sizes", [11, 0, 17, 19], "must be within 1..2^62, got 0 for head 1"),
    ("ngram_heads_vocab_sizes", [11, 13, -17, 19], "must be within 1..2^62, got -17 for head 2"),
    ("ngram_heads_vocab_sizes", [11, 13, 17, 2**62 + 1], "must be within 1..2^62"),
    ("ngram_heads_offsets", [-1, 11, 24, 41], "must be within 0..2^62, got -1 for head 0"),
    ("ngram_heads_offsets", [0, 11, 24, 2**63 - 1], "must be within 0..2^62"),
]


@pytest.mark.parametrize("op", ["ngram_ids", "embed"])
@pytest.mark.parametrize(("name", "values", "said"), VALUE_CASES)
def test_values_on_the_cpu(op: str, name: str, values: list[int], said: str) -> None:
    arguments = valid(op, torch.device("cpu"))
    arguments[name] = torch.tensor(values)
    expect_error(op, arguments, name, said)


@pytest.mark.parametrize("op", ["ngram_ids", "embed"])
def test_boundaries_of_no_promise_stay_inside_on_a_gpu(op: str, device: torch.device) -> None:
    """What only the GPU sees is not looked at, and never leads outside the buffers."""
    if device.type == "cpu":
        pytest.skip("the CPU refuses them")
    if os.environ.get("NGRAM_PLE_CHECK", "0") not in ("", "0"):
        pytest.skip("NGRAM_PLE_CHECK looks at them")
    for bounds in ([3, 1, 0], [-9, 2**40, -(2**63)], [2**63 - 1] * 3, [0, 0, 10**6], [5, 5, 5]):
        arguments = valid(op, device)
        arguments["query_start_loc"] = torch.tensor(bounds, device=device)
        getattr(torch.ops.ngram_ple, op)(**arguments)
    torch.cuda.synchronize()


# format, argument, change, what it must be, what came
TABLE_CASES: list[tuple[str, str, Change, str, str]] = [
    ("bf16", "weight", lambda t: t.half(), "must be uint8 or bfloat16 for format bf16", "got float16"),
    ("fp16", "weight", lambda t: t.int(), "must be uint8 or float16 for format fp16", "got int32"),
    ("fp32", "weight", lambda t: t.double(), "must be uint8 or float32 for format fp32", "got float64"),
    ("fp8", "weight", lambda t: t.view(torch.int8), "must be uint8 or", "got int8"),
    ("fp8", "weight", lambda t: t.view(torch.float8_e5m2), "must be uint8 or", "got Float8_e5m2"),
    ("nvfp4", "weight", lambda t: t.view(torch.int8), "must be uint8", "got int8"),
    ("bf16", "weight", lambda t: t[:, :31].contiguous(), "must have 64 bytes a row", "got 62"),
    ("bf16", "weight", lambda t: t.t().contiguous().t(), "must be contiguous", "bfloat16"),
    ("bf16", "weight", lambda t: t[:, ::2], "must be contiguous", "bfloat16"),
    ("bf16", "weight", lambda t: t[0, 0], "must have a row dimension", "got bfloat16 []"),
    ("fp8-rowwise", "scale", lambda t: t.half(), "must be float32 or bfloat16 [60, 1]", "got float16"),
    ("fp8-rowwise", "scale", lambda t: t[:-1], "must be float32 or bfloat16 [60, 1]", "got float32 [59, 1]"),
    ("fp8-rowwise", "scale", lambda t: t.repeat(1, 2)[:, :1], "must be contiguous", "float32 [60, 1]"),
    ("nvfp4", "scale", lambda t: t.float(), "must be uint8 or float8_e4m3fn [60, 2]", "got float32 [60, 2]"),
    ("nvfp4", "scale", lambda t: t[:, :1], "must be uint8 or float8_e4m3fn [60, 2]", "[60, 1]"),
    ("bf16", "scale", lambda t: torch.ones(60), "format bf16 has no scale", "got float32 [60]"),
    ("fp8", "scale", lambda t: torch.ones(60), "format fp8 has no scale", "got float32 [60]"),
    ("nvfp4", "scale", lambda t: None, "must have 32 bytes a row (nvfp4, head_dim 32", "got 16"),
    ("fp8-rowwise", "scale", lambda t: None, "must have 48 bytes a row", "got 32"),
    ("fp8", "global_scale", lambda t: None, "format fp8 needs global_scale", "got None"),
    ("nvfp4", "global_scale", lambda t: None, "format nvfp4 needs global_scale", "got None"),
    ("fp8", "global_scale", lambda t: t.bfloat16(), "must be a float32 tensor of one", "got bfloat16"),
    ("fp8", "global_scale", lambda t: t.repeat(2), "must be a float32 tensor of one", "got float32 [2]"),
    ("bf16", "global_scale", lambda t: torch.ones(1), "format bf16 has no global_scale", "got float32 [1]"),
    ("fp8-rowwise", "global_scale", lambda t: torch.ones(1), "has no global_scale", "got float32 [1]"),
    ("bf16", "format", lambda t: "int4", "must be one of bf16, fp16, fp32, fp8,", "got int4"),
    ("bf16", "out_dtype", lambda t: "fp64", "must be one of bf16, fp16, fp32, bytes", "got fp64"),
    ("bf16", "head_dim", lambda t: 0, "must be within 1..2^24", "got 0"),
    ("bf16", "head_dim", lambda t: 2**40, "must be within 1..2^24", "got 1099511627776"),
    ("nvfp4", "head_dim", lambda t: 24, "nvfp4 needs a head_dim divisible by 16", "got 24"),
    ("fp8", "head_dim", lambda t: 33, "must have 33 bytes a row", "got 32"),
]  # fmt: skip


@pytest.mark.parametrize("op", ["lookup", "embed", "decode"])
@pytest.mark.parametrize(("format", "name", "change", "needs", "got"), TABLE_CASES)
def test_tables(
    op: str, format: str, name: str, change: Change, needs: str, got: str, device: torch.device
) -> None:
    arguments = valid(op, device, format)
    at = "rows" if op == "decode" and name == "weight" else name
    value = change(arguments[at])
    arguments[at] = value.to(device) if isinstance(value, torch.Tensor) else value
    said = ("weight" if op != "decode" else "rows") if "bytes a row" in needs else at
    expect_error(op, arguments, said, needs, got)


@pytest.mark.parametrize("op", ["lookup", "embed"])
@pytest.mark.parametrize(
    ("start", "end"), [(-1, -1), (-5, 10), (0, ROWS + 1), (10, 9), (0, -2), (5, ROWS + 6), (2**63 - 1, -1)]
)
def test_row_ranges(op: str, start: int, end: int, device: torch.device) -> None:
    arguments = {**valid(op, device), "row_start": start, "row_end": end}
    expect_error(
        op, arguments, f"row_start and row_end must satisfy 0 <= row_start <= row_end <= row_start + {ROWS}"
    )


def test_ids_of_lookup(device: torch.device) -> None:
    arguments = valid("lookup", device)
    ids = arguments["ids"]
    for wrong, said in (
        (ids.float(), "ids must be int32 or int64, got float32 [2, 2]"),
        (ids.to(torch.uint8), "ids must be int32 or int64, got uint8 [2, 2]"),
        (ids.t(), "ids must be contiguous"),
        (ids[:, 1], "ids must be contiguous"),
    ):
        expect_error("lookup", {**arguments, "ids": wrong}, said)


OUT_CASES: list[tuple[Change, str]] = [
    (lambda t: t.new_empty(t.shape, dtype=torch.float64), "got float64"),
    (lambda t: t.new_empty((*t.shape[:-1], t.shape[-1] + 1)), "got "),
    (lambda t: t.new_empty((t.shape[0] + 1, *t.shape[1:])), "got "),
    (lambda t: t.flatten(), "got "),
    (lambda t: t.repeat_interleave(2, dim=-1)[..., ::2], "must be contiguous"),
]


@pytest.mark.parametrize("op", ["ngram_ids", "lookup", "embed", "decode"])
@pytest.mark.parametrize(("change", "got"), OUT_CASES)
def test_out(op: str, change: Change, got: str, device: torch.device) -> None:
    arguments = valid(op, device)
    good = getattr(torch.ops.ngram_ple, op)(**arguments)
    out = change(good).fill_(3)
    with pytest.raises(RuntimeError) as error:
        getattr(torch.ops.ngram_ple, op).out(**arguments, out=out)
    assert f"{op}: out must be " in str(error.value)
    assert got in str(error.value)
    assert bool((out == 3).all())


@pytest.mark.needs_gpu
@pytest.mark.parametrize("op", ["ngram_ids", "lookup", "embed", "decode"])
def test_devices_may_not_mix(op: str) -> None:
    cpu, gpu = valid(op, torch.device("cpu")), valid(op, torch.device("cuda", 0))
    anchor = {"lookup": "ids", "decode": "rows"}.get(op, "input_ids")
    for name in (name for name, value in gpu.items() if isinstance(value, torch.Tensor) and name != anchor):
        for arguments, other in ((gpu, cpu), (cpu, gpu)):
            with pytest.raises(RuntimeError) as error:
                getattr(torch.ops.ngram_ple, op)(**{**arguments, name: other[name]})
            said = str(error.value)
            assert f"{op}: {name} must be on the device of {anchor}" in said
    out = getattr(torch.ops.ngram_ple, op)(**cpu)
    with pytest.raises(RuntimeError, match="out must be on the device of"):
        getattr(torch.ops.ngram_ple, op).out(**gpu, out=out)
