"""lookup: rows of every format against eager torch, ownership, layouts and addresses."""

from __future__ import annotations

import random

import pytest
import torch
from batches import FORMATS, OUT_DTYPES, Rows, allowed, random_rows
from ngram_ple import ops
from reference import TORCH_DTYPES, assert_same
from seeds import for_seeds

ALL_OUT = (*OUT_DTYPES, "bytes")


def some_ids(rng: random.Random, rows: int, count: int, device: torch.device, start: int = 0) -> torch.Tensor:
    return torch.tensor([start + rng.randint(-2, rows + 1) for _ in range(count)], dtype=torch.int64).to(
        device
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("head_dim", [1, 7, 15, 16, 17, 31, 32, 48, 64, 160, 257])
def test_every_format_and_width(format: str, head_dim: int, device: torch.device) -> None:
    if not allowed(format, head_dim):
        pytest.skip("nvfp4 needs multiples of 16")
    rng = random.Random(head_dim)
    table = random_rows(rng, format, head_dim, 23, device)
    ids = some_ids(rng, 23, 70, device)
    for out_dtype in ALL_OUT:
        for integer in (torch.int32, torch.int64):
            got = ops.lookup(
                ids.to(integer), table.weight, table.scale, table.global_scale,
                out_dtype=out_dtype, **table.options,
            )  # fmt: skip
            assert_same(got, table.expected(ids, out_dtype))


@for_seeds(60)
def test_random_tables(device: torch.device, rng: random.Random) -> None:
    """Scales inside and apart, bytes and native dtypes, any share of the rows: the same rows."""
    format, out_dtype = rng.choice(FORMATS), rng.choice(ALL_OUT)
    head_dim = 16 * rng.randint(1, 12) if format == "nvfp4" else rng.randint(1, 200)
    count, start = rng.randint(0, 30), rng.choice([0, 1, 1000, 2**40])
    table = random_rows(rng, format, head_dim, count, device, rng.choice([torch.float32, torch.bfloat16]))
    end = rng.randint(0, count)
    ids = some_ids(rng, count, rng.randint(0, 60), device, start)
    owned = Rows(
        format, head_dim, table.weight[:end], None if table.scale is None else table.scale[:end],
        table.global_scale,
    )  # fmt: skip
    expected = owned.expected(ids, out_dtype, start)
    options = {**table.options, "out_dtype": out_dtype, "row_start": start, "row_end": start + end}
    weight, scale, global_scale = table.weight, table.scale, table.global_scale
    assert_same(ops.lookup(ids, weight, scale, global_scale, **options), expected)
    assert_same(ops.lookup(ids, weight.view(torch.uint8), scale, global_scale, **options), expected)
    assert_same(ops.lookup(ids, table.slots, None, global_scale, **options), expected)
    if scale is not None and format == "nvfp4":
        assert_same(ops.lookup(ids, weight, scale.view(torch.uint8), global_scale, **options), expected)
    if scale is not None and format == "fp8-rowwise":
        assert_same(ops.lookup(ids, weight, scale.view(-1), None, **options), expected)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0), (2, 3), (2, 1, 3, 2)])
@pytest.mark.parametrize("out_dtype", ALL_OUT)
def test_ids_of_any_shape(shape: tuple[int, ...], out_dtype: str, device: torch.device) -> None:
    table = random_rows(random.Random(1), "nvfp4", 32, 9, device)
    ids = torch.randint(0, 9, shape, device=device)
    got = ops.lookup(ids, table.weight, table.scale, table.global_scale, out_dtype=out_dtype, **table.options)
    assert_same(got, table.expected(ids, out_dtype))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shift", [1, 2, 3, 7, 8, 15])
def test_unaligned_weights(format: str, shift: int, device: torch.device) -> None:
    """Bytes at any address: a view into a larger buffer."""
    rng = random.Random(shift)
    table = random_rows(rng, format, 48, 12, device)
    slots = table.slots
    buffer = torch.zeros(slots.numel() + shift, dtype=torch.uint8, device=device)
    view = buffer[shift:].view(slots.shape)
    view.copy_(slots)
    ids = some_ids(rng, 12, 40, device)
    for out_dtype in ALL_OUT:
        got = ops.lookup(ids, view, None, table.global_scale, out_dtype=out_dtype, **table.options)
        assert_same(got, table.expected(ids, out_dtype))


@pytest.mark.parametrize("format", FORMATS)
def test_unowned_rows_are_zero_bits(format: str, device: torch.device) -> None:
    table = random_rows(random.Random(2), format, 32, 3, device)
    ids = torch.tensor([-1, 0, 9, 13, 14, -(2**63), 2**63 - 1, 2**32 + 11, -(2**32) + 11], device=device)
    for out_dtype in ALL_OUT:
        got = ops.lookup(
            ids, table.slots, None, table.global_scale, out_dtype=out_dtype, row_start=10, **table.options
        )
        assert torch.count_nonzero(got.contiguous().view(torch.uint8)[[0, 1, 2, 3, 4, 5, 6, 7, 8]]) == 0
    empty = table.slots[:0]
    got = ops.lookup(ids, empty, None, table.global_scale, out_dtype="fp32", row_start=10, **table.options)
    assert torch.count_nonzero(got.view(torch.int32)) == 0


@pytest.mark.parametrize("format", ["bf16", "fp16", "fp32", "fp8", "fp8-rowwise", "nvfp4"])
def test_negative_zero_survives(format: str, device: torch.device) -> None:
    width = {"bf16": 32, "fp16": 32, "fp32": 64, "nvfp4": 8}.get(format, 16)
    weight = torch.zeros(2, width, dtype=torch.uint8, device=device)
    if format in TORCH_DTYPES:
        weight = torch.full((2, 16), -0.0, dtype=TORCH_DTYPES[format], device=device)
    else:
        weight.fill_(0x88 if format == "nvfp4" else 0x80)
    scale = {
        "fp8-rowwise": torch.ones(2, 1, device=device),
        "nvfp4": torch.full((2, 1), 0x38, dtype=torch.uint8, device=device),
    }.get(format)
    global_scale = torch.ones(1, device=device) if format in ("fp8", "nvfp4") else None
    for out_dtype in OUT_DTYPES:
        got = ops.lookup(
            torch.tensor([1, 0], device=device), weight, scale, global_scale,
            format=format, out_dtype=out_dtype, head_dim=16,
        )  # fmt: skip
        assert bool((got == 0).all())
        assert bool(got.signbit().all())


def test_rows_beyond_32_bits_of_bytes(device: torch.device) -> None:
    """A table of 5 GiB of which three rows are ever touched."""
    rows, width = 5 * 2**30 // 320 + 1, 160
    weight = torch.empty((rows, width), dtype=torch.bfloat16, device=device)
    places = [0, 2**32 // 320 + 1, rows - 1]
    for place in places:
        weight[place] = place % 251
    got = ops.lookup(
        torch.tensor(places, device=device), weight, format="bf16", out_dtype="bf16", head_dim=width
    )
    assert torch.equal(got, weight[places])
    fake_start = 2**33
    ids = torch.tensor(places, device=device) + fake_start
    shifted = ops.lookup(ids, weight, format="bf16", out_dtype="fp32", head_dim=width, row_start=fake_start)
    assert torch.equal(shifted, weight[places].float())


@pytest.mark.needs_gpu
def test_results_beyond_32_bits_of_bytes() -> None:
    device = torch.device("cuda", 0)
    weight = torch.randn(1000, 160, device=device)
    ids = torch.randint(0, 1000, (2**32 // 640 + 1000,), device=device)
    got = ops.lookup(ids, weight, format="fp32", out_dtype="fp32", head_dim=160)
    for part in (slice(0, 500), slice(-2000, None)):
        assert torch.equal(got[part], weight[ids[part]])


def test_out(device: torch.device) -> None:
    rng = random.Random(3)
    for format in FORMATS:
        table = random_rows(rng, format, 32, 9, device)
        ids = some_ids(rng, 9, 20, device).view(4, 5)
        for out_dtype in ALL_OUT:
            expected = table.expected(ids, out_dtype)
            out = torch.full_like(expected, 3)
            result = torch.ops.ngram_ple.lookup.out(
                ids, table.weight, table.scale, table.global_scale,
                out_dtype=out_dtype, out=out, **table.options,
            )  # fmt: skip
            assert result is None
            assert_same(out, expected)


def test_threads_give_identical_bits() -> None:
    table = random_rows(random.Random(4), "fp8", 160, 500)
    ids = torch.randint(0, 500, (3001,))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            got = ops.lookup(ids, table.weight, None, table.global_scale, out_dtype="bf16", **table.options)
            assert_same(got, table.expected(ids, "bf16"))
    finally:
        torch.set_num_threads(before)
