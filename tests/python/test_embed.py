"""embed: hashing, lookup and decoding in one is the three one after another."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from batches import FORMATS, OUT_DTYPES, Batch, random_batch, random_rows, small_plan
from ngram_ple import ops
from reference import assert_same
from seeds import for_seeds

ALL_OUT = (*OUT_DTYPES, "bytes")


def rows_of(batch: Batch) -> int:
    return sum(batch.plan[1])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("out_dtype", ALL_OUT)
def test_embed_is_lookup_of_the_ids(format: str, out_dtype: str, device: torch.device) -> None:
    rng = random.Random(f"{format} {out_dtype}")
    for head_dim in (16, 32, 160, *(() if format == "nvfp4" else (1, 7, 33))):
        batch = random_batch(rng)
        table = random_rows(rng, format, head_dim, rows_of(batch), device)
        arguments = batch.arguments(device)
        expected = table.expected(batch.expected().to(device), out_dtype).flatten(1)
        got = ops.embed(
            *arguments, table.weight, table.scale, table.global_scale, out_dtype=out_dtype, **table.options
        )
        assert_same(got, expected)
        got = ops.embed(
            *arguments, table.slots, None, table.global_scale, out_dtype=out_dtype, **table.options
        )
        assert_same(got, expected)


@for_seeds(50)
def test_random_shares_of_a_table(device: torch.device, rng: random.Random) -> None:
    """A rank that owns some rows gives those and zeros; the ranks' integer sum is the whole."""
    batch, format, out_dtype = random_batch(rng), rng.choice(FORMATS), rng.choice(ALL_OUT)
    table = random_rows(rng, format, 16 * rng.randint(1, 4), rows_of(batch), device)
    dtypes = [rng.choice([torch.int32, torch.int64]) for _ in range(3)]
    arguments = batch.arguments(device, (dtypes[0], dtypes[1], dtypes[2]))
    slots, total = table.slots, len(table.slots)
    cuts = sorted([0, total, *(rng.randint(0, total) for _ in range(rng.randint(0, 3)))])
    summed: torch.Tensor | None = None
    for start, end in itertools.pairwise(cuts):
        part = ops.embed(
            *arguments, slots[start:end], None, table.global_scale,
            out_dtype=out_dtype, row_start=start, row_end=end, **table.options,
        )  # fmt: skip
        share = part.view(torch.uint8)
        summed = share if summed is None else summed + share
    assert summed is not None
    whole = table.expected(batch.expected().to(device), out_dtype).flatten(1)
    if format == "bf16" and out_dtype == "bf16":
        assert torch.equal(summed, whole.view(torch.uint8))
    assert_same(summed.view(whole.dtype), whole)


def test_no_tokens_and_no_requests(device: torch.device) -> None:
    batch = Batch([], [0], [], small_plan(3, 2), 1, 2)
    table = random_rows(random.Random(1), "bf16", 8, rows_of(batch), device)
    got = ops.embed(*batch.arguments(device), table.weight, out_dtype="fp32", **table.options)
    assert got.shape == (0, 32)
    batch.input_ids = [1, 2]
    if device.type == "cpu":
        with pytest.raises(RuntimeError, match="embed: query_start_loc names no request for 2 tokens"):
            ops.embed(*batch.arguments(device), table.weight, out_dtype="fp32", **table.options)
    else:
        got = ops.embed(*batch.arguments(device), table.weight, out_dtype="fp32", **table.options)
        assert got.shape == (2, 32)


def test_padding_tokens_read_the_table(device: torch.device) -> None:
    batch = random_batch(random.Random(3), padding=7)
    table = random_rows(random.Random(4), "fp8", 32, rows_of(batch), device)
    ids = ops.ngram_ids(*batch.arguments(device))
    got = ops.embed(
        *batch.arguments(device), table.weight, None, table.global_scale, out_dtype="bf16", **table.options
    )
    assert_same(got, table.expected(ids, "bf16").flatten(1))


def test_out(device: torch.device) -> None:
    rng = random.Random(5)
    for format in FORMATS:
        batch = random_batch(rng)
        table = random_rows(rng, format, 32, rows_of(batch), device)
        for out_dtype in ALL_OUT:
            expected = table.expected(batch.expected().to(device), out_dtype).flatten(1)
            out = torch.full_like(expected, 5)
            result = torch.ops.ngram_ple.embed.out(
                *batch.arguments(device), table.weight, table.scale, table.global_scale,
                out_dtype=out_dtype, out=out, **table.options,
            )  # fmt: skip
            assert result is None
            assert_same(out, expected)


def test_threads_give_identical_bits() -> None:
    rng = random.Random(6)
    batch = Batch(
        [rng.randrange(9) for _ in range(700)], [0, 200, 200, 650], [[1, 2]] * 3, small_plan(3, 8), 3, 8
    )
    before = torch.get_num_threads()
    try:
        for format in FORMATS:
            table = random_rows(rng, format, 160, rows_of(batch))
            results = []
            for threads in (1, 2, 3, 8):
                torch.set_num_threads(threads)
                results.append(
                    ops.embed(
                        *batch.arguments(torch.device("cpu")), table.weight, table.scale, table.global_scale,
                        out_dtype="bf16", **table.options,
                    )
                )  # fmt: skip
            for other in results[1:]:
                assert torch.equal(other.view(torch.int16), results[0].view(torch.int16))
    finally:
        torch.set_num_threads(before)
