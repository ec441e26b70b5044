"""What only a GPU shows: graphs that read their inputs at replay, streams, devices, memory, CPU = GPU."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from ngram_ple import NGramEmbedding
from ngram_ple.benchmark.cases import Model, make_batches, make_random_table
from ngram_ple.checkpoint import write_checkpoint
from ngram_ple.tables import Table

pytestmark = pytest.mark.needs_gpu

DEVICE = torch.device("cuda", 0)
MODEL = Model(base=1500)  # the real shape, H 16 and head_dim 160, with small heads
FORMATS = ("bf16", "fp16", "fp32", "fp8", "fp8-rowwise", "nvfp4")
SIZES = [(1, 1), (17, 5), (64, 64), (300, 3), (1024, 64), (4099, 70)]  # both gather kernels


def table_on(device: torch.device, format: str) -> Table:
    torch.manual_seed(3)
    placement = "cpu" if device.type == "cpu" else "device"
    return make_random_table(MODEL.row_format(format), MODEL.plan.padded_rows, placement, device)


@functools.cache
def plan_on(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return MODEL.plan_tensors(device)


def calls_on(device: torch.device, table: Table, batch: object) -> dict[str, torch.Tensor]:
    """Every operator's result on one batch."""
    config = MODEL.config
    hashing = (*batch, *plan_on(device), config.eos_token_id, config.heads_per_ngram)  # type: ignore[misc]
    ids = torch.ops.ngram_ple.ngram_ids(*hashing)
    how = {"format": table.format.name, "out_dtype": "bf16", "head_dim": config.head_dim}
    held = (table.slots, None, table.global_scale)
    return {
        "ngram_ids": ids,
        "lookup": torch.ops.ngram_ple.lookup(ids, *held, **how),
        "embed": torch.ops.ngram_ple.embed(*hashing, *held, **how),
        "decode": torch.ops.ngram_ple.decode(table.slots[:50], None, table.global_scale, **how),
    }


def assert_same_bits(left: torch.Tensor, right: torch.Tensor) -> None:
    assert torch.equal(left.cpu().contiguous().view(torch.uint8), right.cpu().contiguous().view(torch.uint8))


@pytest.mark.parametrize("format", FORMATS)
def test_gpu_equals_cpu(format: str) -> None:
    here, there = table_on(torch.device("cpu"), format), table_on(DEVICE, format)
    assert torch.equal(here.slots, there.slots.cpu())
    for tokens, requests in SIZES:
        on_cpu = calls_on(torch.device("cpu"), here, make_batches(tokens, requests, "cpu")[0])
        on_gpu = calls_on(DEVICE, there, make_batches(tokens, requests, DEVICE)[0])
        for name, expected in on_cpu.items():
            assert_same_bits(on_gpu[name], expected)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("tokens", "requests"), [(6, 6), (64, 9), (1024, 64)])
def test_a_captured_graph_reads_its_inputs_at_replay(format: str, tokens: int, requests: int) -> None:
    table = table_on(DEVICE, format)
    batches = make_batches(tokens, requests, DEVICE)
    inputs = [tensor.clone() for tensor in batches[0]]
    calls_on(DEVICE, table, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = calls_on(DEVICE, table, inputs)
    for batch in batches:
        bounds = batch.query_start_loc.clone()
        bounds[1:-1] = torch.randint(0, tokens + 1, (requests - 1,), device=DEVICE).sort().values
        for held, new in zip(inputs, (batch.input_ids, bounds, batch.ngram_context), strict=True):
            held.copy_(new)
        for result in results.values():
            result.view(torch.uint8).fill_(0xA5)
        graph.replay()
        expected = calls_on(DEVICE, table, (batch.input_ids, bounds, batch.ngram_context))
        for name, result in results.items():
            assert_same_bits(result, expected[name])


def test_calls_neither_synchronise_nor_allocate_more_than_the_result() -> None:
    table = table_on(DEVICE, "nvfp4")
    batch = make_batches(512, 16, DEVICE)[0]
    plan = MODEL.plan_tensors(DEVICE)
    config = MODEL.config
    how = {"format": "nvfp4", "out_dtype": "bf16", "head_dim": config.head_dim}

    def embed() -> torch.Tensor:
        result: torch.Tensor = torch.ops.ngram_ple.embed(
            *batch, *plan, config.eos_token_id, config.heads_per_ngram, table.slots, None,
            table.global_scale, **how,
        )  # fmt: skip
        return result

    embed()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = embed()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before == result.nbytes


def test_work_goes_to_the_current_stream() -> None:
    table = table_on(DEVICE, "fp8")
    batch = make_batches(2048, 16, DEVICE)[0]
    expected = calls_on(DEVICE, table, batch)
    stream = torch.cuda.Stream()
    tokens = torch.zeros_like(batch.input_ids)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # late tokens: only the same stream waits for them
        tokens.copy_(batch.input_ids)
        results = calls_on(DEVICE, table, (tokens, batch.query_start_loc, batch.ngram_context))
    stream.synchronize()
    for name, result in results.items():
        assert_same_bits(result, expected[name])


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="one GPU only")
def test_the_inputs_device_counts_not_the_current_one() -> None:
    other = torch.device("cuda", 1)
    batch = make_batches(100, 7, other)[0]
    with torch.cuda.device(0):
        results = calls_on(other, table_on(other, "bf16"), batch)
    expected = calls_on(
        torch.device("cpu"), table_on(torch.device("cpu"), "bf16"), make_batches(100, 7, "cpu")[0]
    )
    for name, result in results.items():
        assert result.device == other
        assert_same_bits(result, expected[name])


@pytest.mark.parametrize("format", FORMATS)
def test_a_checkpoint_loads_without_a_second_copy(format: str, tmp_path: Path) -> None:
    model = Model(base=20_000)
    here = make_random_table(model.row_format(format), model.plan.padded_rows, "cpu", torch.device("cpu"))
    geometry = here.format
    views = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    codes = torch.uint8 if format == "nvfp4" else torch.float8_e4m3fn
    weight = here.slots[:, : geometry.row_bytes].contiguous().view(views.get(format, codes))
    scales = here.slots[:, geometry.scale_offset : geometry.scale_offset + geometry.scale_bytes].contiguous()
    scale_dtypes = {"fp8-rowwise": torch.float32, "nvfp4": torch.float8_e4m3fn}
    write_checkpoint(
        tmp_path / "checkpoint",
        model.config,
        format=format,
        padded_rows=model.plan.padded_rows,
        weight=weight,
        weight_scale=scales.view(scale_dtypes[format]) if format in scale_dtypes else None,
        global_scale=None if here.global_scale is None else float(here.global_scale),
        max_file_bytes=8 << 20,
    )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    embedding = NGramEmbedding.from_pretrained(tmp_path / "checkpoint", placement="device")
    assert torch.cuda.max_memory_allocated() - before <= embedding.table.nbytes + (64 << 20)
    assert torch.equal(embedding.table.slots.cpu(), here.slots)
    batch = make_batches(40, 3, DEVICE)[0]
    assert embedding(*batch).shape == (40, model.config.ple_embed_dim)
