"""Tables in pinned host memory: regions, operators over them, the placement."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from batches import FORMATS, random_batch, random_rows
from modules import CONFIG, batch, construct, loaded, rows_of, tensors_of
from ngram_ple import (
    ConfigError,
    NGramEmbedding,
    NgramPleWarning,
    PinnedMemoryError,
    _core,
    build_info,
    ops,
    row_format,
)
from ngram_ple.tables import PinnedTable, make_table
from reference import assert_same
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA = torch.device("cuda", 0)
HAS_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.needs_gpu


def pinned_rows(format: str, piece_bytes: int = 4096) -> PinnedTable:
    """A table whose pieces are pages, so that rows lie across them."""
    table = PinnedTable(row_format(format, 32), 0, 2000, CUDA, piece_bytes=piece_bytes, threads=2)
    table.slots.copy_(random_rows(random.Random(5), format, 32, 2000).slots)
    if table.format.has_global_scale:
        table.set_global_scale(0.5)
    return table


@pytest.mark.skipif(HAS_GPU, reason="says what is said without a GPU")
def test_without_a_gpu_a_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="placement 'pinned' needs a GPU that torch can use, got none"):
        NGramEmbedding(CONFIG, placement="pinned")
    folder = checkpoints.make_source("bf16", rows=128).write(tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match="placement 'pinned' needs a GPU"):
        NGramEmbedding.from_pretrained(folder, placement="pinned")
    built_for_gpu = {"cuda", "hip"} & set(build_info()["backends"])
    said = "needs a GPU, got none" if built_for_gpu else "was built without GPU support"
    with pytest.raises(PinnedMemoryError, match=said):
        _core.PinnedRegion(4096, 0)


def test_the_device_must_be_a_gpu() -> None:
    with pytest.raises(
        ConfigError, match="device must be a cuda device or None for placement 'pinned', got cpu"
    ):
        NGramEmbedding(CONFIG, placement="pinned", device="cpu")


def test_fake_results_are_where_the_ids_are() -> None:
    with FakeTensorMode():
        weight = torch.empty((10, 48), dtype=torch.uint8)
        ids = torch.empty((3, 2), dtype=torch.int64, device="cuda")
        out = ops.lookup(ids, weight, format="fp8-rowwise", out_dtype="bf16", head_dim=32)
        assert (out.device.type, out.shape, out.dtype) == ("cuda", (3, 2, 32), torch.bfloat16)
        tokens, bounds = (torch.empty(n, dtype=torch.int64, device="cuda") for n in (5, 2))
        context = torch.empty((1, 2), dtype=torch.int64, device="cuda")
        plan = [torch.empty(n, dtype=torch.int64, device="cuda") for n in (3, 4, 4)]
        rows = ops.embed(
            tokens, bounds, context, *plan, 7, 2, weight, format="fp8-rowwise", out_dtype="fp32", head_dim=32
        )
        assert (rows.device.type, rows.shape) == ("cuda", (5, 128))


@needs_gpu
def test_a_region_has_its_exact_size_in_pieces() -> None:
    region = _core.PinnedRegion((5 << 20) + 3, 0, piece_bytes=1 << 20, threads=2)
    assert (region.nbytes, region.pieces) == ((5 << 20) + 3, 6)
    held = torch.frombuffer(region, dtype=torch.uint8)
    assert held.data_ptr() == region.address
    assert held.is_pinned()
    assert not held.any()
    assert region.huge_bytes() % 4096 == 0
    assert region.huge_bytes() <= 6 << 20
    region.close()
    region.close()
    assert region.address == 0
    assert len(memoryview(region)) == 0


@needs_gpu
def test_a_tensor_over_a_region_keeps_it() -> None:
    view = pinned_rows("bf16").slots[3:5]
    gc.collect()
    assert_same(view.cuda().cpu(), random_rows(random.Random(5), "bf16", 32, 2000).slots[3:5])


@needs_gpu
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("out_dtype", ["bf16", "fp32", "bytes"])
def test_lookups_across_pieces(format: str, out_dtype: str) -> None:
    table = pinned_rows(format)
    ids = torch.randint(-3, 2003, (700, 3))
    on_cpu = make_table("cpu", table.format, 0, 2000, torch.device("cpu"))
    on_cpu.slots.copy_(table.slots)
    if table.format.has_global_scale:
        on_cpu.set_global_scale(0.5)
    assert_same(table.lookup(ids.cuda(), out_dtype).cpu(), on_cpu.lookup(ids, out_dtype))


@needs_gpu
@pytest.mark.parametrize("format", ["fp8-rowwise", "nvfp4", "fp8", "fp32"])
def test_operators_take_pinned_weights_and_scales(format: str) -> None:
    table = random_rows(random.Random(2), format, 32, 500)
    weight = table.weight.pin_memory()
    scale = None if table.scale is None else table.scale.pin_memory()
    global_scale = None if table.global_scale is None else table.global_scale.cuda()
    ids = torch.randint(-1, 500, (40,))
    out = ops.lookup(ids.cuda(), weight, scale, global_scale, **table.options, out_dtype="bf16")
    assert_same(out.cpu(), table.expected(ids, "bf16"))
    hashed = random_batch(random.Random(3))
    arguments: Any = hashed.arguments(CUDA)
    rows = ops.embed(*arguments, weight, scale, global_scale, **table.options, out_dtype="bf16")
    assert_same(rows.cpu(), table.expected(hashed.expected(), "bf16").flatten(1))


@needs_gpu
def test_pageable_weights_and_scales_are_refused() -> None:
    table = random_rows(random.Random(2), "fp8-rowwise", 32, 50)
    assert table.scale is not None
    ids = torch.tensor([1], device="cuda")
    options: Any = {**table.options, "out_dtype": "bf16"}
    said = r"lookup: weight must be on the device of ids \(cuda:0\) or in pinned host memory, got pageable"
    with pytest.raises(RuntimeError, match=said):
        ops.lookup(ids, table.weight, table.scale, **options)
    with pytest.raises(RuntimeError, match="scale must be on the device of ids"):
        ops.lookup(ids, table.weight.pin_memory(), table.scale, **options)
    with pytest.raises(RuntimeError, match=r"weight must be on the device of ids \(cpu\), got .* on cuda:0"):
        ops.lookup(ids.cpu(), table.weight.cuda(), table.scale.cuda(), **options)
    assert ops.lookup(ids, table.weight[:0], table.scale[:0].cuda(), **options).eq(0).all()


@needs_gpu
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_a_pinned_module_is_the_table_at_the_ids(format: str, source: str) -> None:
    before = torch.cuda.memory_allocated()
    module = construct(CUDA, format, placement="pinned")
    module.load_weights((name, tensor.to(source)) for name, tensor in tensors_of(rows_of(format)).items())
    module.finish_loading()
    assert torch.cuda.memory_allocated() - before < 1 << 17
    assert module.table.slots.device.type == "cpu"
    inputs = batch(CUDA)
    expected = rows_of(format).expected(module.compute_ngram_ids(*inputs).cpu(), "bf16").cuda()
    assert_same(module(*inputs), expected.flatten(1))
    assert_same(module.sync_lookup(module.compute_ngram_ids(*inputs)), expected)
    graph, out = torch.cuda.CUDAGraph(), torch.empty(0)
    with torch.cuda.graph(graph):
        out = module(*inputs)
    graph.replay()
    assert_same(out, expected.flatten(1))
    assert "placement=pinned, device=cuda:0" in repr(module)
    assert "huge_page_bytes=" in repr(module)


@needs_gpu
@pytest.mark.parametrize("format", FORMATS)
def test_from_pretrained_fills_the_region(format: str, tmp_path: Path) -> None:
    source = checkpoints.make_source(format, rows=128)
    folder = source.write(tmp_path / "checkpoint")
    module = NGramEmbedding.from_pretrained(folder, placement="pinned", max_tokens=16)
    on_cpu = NGramEmbedding.from_pretrained(folder, placement="cpu")
    assert_same(module.table.slots, on_cpu.table.slots)
    assert_same(module(*batch(CUDA)).cpu(), on_cpu(*batch(torch.device("cpu"))))


@needs_gpu
def test_the_module_stays_on_its_gpu() -> None:
    module = loaded(CUDA, "fp8", placement="pinned")
    with pytest.warns(NgramPleWarning, match="stays on cuda:0"):
        module.cpu()
    module.cuda()
    module.table_in_state_dict = True
    saved = module.state_dict()
    fresh = construct(CUDA, "fp8", placement="pinned")
    fresh.load_state_dict(saved)
    assert_same(fresh(*batch(CUDA)), module(*batch(CUDA)))
    with torch.device("meta"):
        on_meta = construct(CUDA, "fp8", placement="pinned")
    assert not on_meta.supports_prefetch
    on_meta.to_empty(device="cuda")
    on_meta.load_state_dict(saved)
    assert on_meta.supports_prefetch
    assert_same(on_meta(*batch(CUDA)), module(*batch(CUDA)))


@needs_gpu
def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(
        PinnedMemoryError, match=r"70368744177664 bytes \(65536.00 GiB\) does not fit: MemAvail"
    ):
        _core.PinnedRegion(1 << 46, 0)
    with pytest.raises(PinnedMemoryError, match="device must be within 0"):
        _core.PinnedRegion(4096, 99)


LIMITED = """
import resource, torch
from ngram_ple import PinnedMemoryError, _core
torch.zeros(1, device="cuda")
_core.PinnedRegion(64 << 20, 0).close()
{limit}
try:
    _core.PinnedRegion(1 << 30, 0)
except PinnedMemoryError as error:
    print(error)
else:
    print("fits")
print(int(torch.ones(3, device="cuda").sum()))
"""
SMALL_SPACE = """
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), -1))
"""
SMALL_LOCK = "resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))"


@needs_gpu
@pytest.mark.parametrize(
    ("limit", "said"),
    [(SMALL_SPACE, "does not fit: the address space limit (RLIMIT_AS, ulimit -v) is"), (SMALL_LOCK, "fits")],
)
def test_resource_limits(limit: str, said: str) -> None:
    """A lock limit stands in the way only where the driver counts what it locks: this one does not."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(limit=limit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert done.stdout.endswith("\n3\n")


@needs_gpu
@pytest.mark.parametrize("format", FORMATS)
def test_the_first_use_may_be_captured(format: str) -> None:
    module, inputs = loaded(CUDA, format, placement="pinned", max_tokens=16), batch(CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(*inputs)
        module.start_prefetch(*inputs)
        prefetched = module.finalize_prefetch(len(inputs[0]))
    graph.replay()
    ids = module.compute_ngram_ids(*inputs).cpu()
    expected = rows_of(format).expected(ids, "bf16").flatten(1).cuda()
    assert_same(out, expected)
    assert_same(prefetched, expected)
