"""The ways of reading pinned tables: the same bits, captured or not, and what is refused."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from batches import FORMATS, random_rows
from modules import construct, loaded, rows_of
from ngram_ple import ConfigError, build_info, row_format
from ngram_ple.tables import PinnedTable
from ngram_ple.tables.calibration import Calibration
from ngram_ple.tables.reader import COUNTERS, STRATEGIES, WAYS, PinnedReader
from reference import assert_same
from torch._subclasses.fake_tensor import FakeTensorMode

CUDA = torch.device("cuda", 0)
needs_gpu = pytest.mark.needs_gpu
ROWS = 3000


def pinned_table(format: str, row_start: int = 0, **options: Any) -> PinnedTable:
    table = PinnedTable(row_format(format, 32), row_start, row_start + ROWS, CUDA, threads=2)
    table.slots.copy_(random_rows(random.Random(5), format, 32, ROWS).slots)
    if table.format.has_global_scale:
        table.set_global_scale(0.5)
    options.setdefault("strategy", "staged")
    options.setdefault("host_threads", 3)
    table.open_reader(**options)
    return table


def reader_of(table: PinnedTable) -> PinnedReader:
    assert table.reader is not None
    return table.reader


def test_a_calibration_chooses_the_nearest_size() -> None:
    fast, slow = 1.0, 2.0
    times = {
        4096: {"zero-copy": slow, "staged": fast},
        512: {"zero-copy": fast, "staged": slow},
        2048: {"zero-copy": fast, "staged": slow},
    }
    calibration = Calibration(times)
    assert calibration.choices == [(0, "zero-copy"), (2896, "staged")]
    assert [calibration.way(n) for n in (0, 512, 2895, 2896, 10**9)] == ["zero-copy"] * 3 + ["staged"] * 2
    assert str(calibration) == "zero-copy, staged from 2896 ids"
    assert Calibration.usual().way(1024) == "zero-copy"
    assert Calibration.usual().way(131072) == "staged"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strategy": "fast"}, "strategy must be one of auto, zero-copy, ordered, staged, got 'fast'"),
        ({"strategy": None}, "strategy must be one of .*, got None"),
        ({"host_threads": 0}, "host_threads must be an int within 1..1024 or None, got 0"),
        ({"host_threads": True}, "host_threads must be an int within 1..1024 or None, got True"),
        ({"prefetch_sms": 0}, "prefetch_sms must be a positive int, got 0"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        construct(torch.device("cpu"), **options)


def test_fake_results_are_where_the_ids_are() -> None:
    with FakeTensorMode():
        weight = torch.empty((10, 48), dtype=torch.uint8)
        ids = torch.empty((3, 2), dtype=torch.int64, device="cuda")
        out = torch.ops.ngram_ple.pinned_lookup(
            ids,
            weight,
            None,
            reader=1,
            way="staged",
            sms=0,
            format="fp8-rowwise",
            out_dtype="bf16",
            head_dim=32,
        )
        assert (out.device.type, out.shape, out.dtype) == ("cuda", (3, 2, 32), torch.bfloat16)


@needs_gpu
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("out_dtype", ["bf16", "fp32", "bytes"])
def test_every_way_gives_the_same_bits(format: str, out_dtype: str) -> None:
    table = pinned_table(format, row_start=100, max_ids=7000)
    reader = reader_of(table)
    # 7000 ids whose repeats are found, and 1000 that are listed as they are
    ids = torch.randint(90, ROWS + 120, (4000, 2), device=CUDA)
    ids[::3] = ids[:1]  # repeats
    wanted = reader.lookup(ids, table.global_scale, out_dtype, way="zero-copy")
    for way in WAYS:
        for narrow in (False, True):
            for sms in (0, 3):
                got = reader.lookup(
                    ids.int() if narrow else ids, table.global_scale, out_dtype, way=way, sms=sms
                )
                assert_same(got, wanted)
    counters = reader.counters()
    assert list(counters) == list(COUNTERS)
    assert counters["batches"] == 8 * 2
    assert counters["batch_ids"] == 8 * ids.numel()
    assert counters["listed_rows"] <= 8 * min(ids.numel(), 4 * ROWS)
    assert counters["zero_copy_calls"] == 5
    assert counters["failed_batches"] == 0


@needs_gpu
@pytest.mark.parametrize("way", WAYS)
def test_a_captured_lookup_follows_its_ids(way: str) -> None:
    table = pinned_table("nvfp4", max_ids=512)
    reader, generator = reader_of(table), torch.Generator().manual_seed(1)
    ids = torch.zeros(700, dtype=torch.int64, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # nothing was looked up before
        out = reader.lookup(ids, table.global_scale, "bf16", way=way)
    for replay in range(1000):
        ids.copy_(torch.randint(-2, ROWS + 2, (700,), generator=generator))
        if replay % 100 == 0:  # others look up meanwhile
            other = reader.lookup(ids.flip(0), table.global_scale, "bf16", way="staged")
        graph.replay()
        if replay % 50 == 0:
            assert_same(out, reader.lookup(ids, table.global_scale, "bf16", way="zero-copy"))
            assert other.shape == out.shape


@needs_gpu
def test_streams_take_turns() -> None:
    table = pinned_table("fp8")
    reader, streams = reader_of(table), [torch.cuda.Stream() for _ in range(3)]
    batches = [torch.randint(0, ROWS, (4000,), device=CUDA) for _ in range(60)]
    wanted = [reader.lookup(ids, table.global_scale, "bf16", way="zero-copy") for ids in batches]
    torch.cuda.synchronize()
    results = []
    for i, ids in enumerate(batches):
        with torch.cuda.stream(streams[i % 3]):
            results.append(reader.lookup(ids, table.global_scale, "bf16", way=WAYS[1 + i % 2]))
    torch.cuda.synchronize()
    for got, rows in zip(results, wanted, strict=True):
        assert_same(got, rows)


@needs_gpu
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_modules_read_by_any_strategy(strategy: str) -> None:
    module = loaded(CUDA, "fp8", placement="pinned", strategy=strategy, host_threads=2, max_tokens=64)
    batch = (
        torch.randint(0, 1000, (40,), device=CUDA),
        torch.tensor([0, 15, 40], device=CUDA),
        torch.randint(0, 1000, (2, 2), device=CUDA),
    )
    ids = module.compute_ngram_ids(*batch)
    wanted = rows_of("fp8").expected(ids.cpu(), "bf16").to(CUDA)
    assert_same(module(*batch), wanted.flatten(1))
    assert_same(module.sync_lookup(ids), wanted)
    module.start_prefetch(*batch)
    assert_same(module.finalize_prefetch(40), wanted.flatten(1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.start_prefetch(*batch)
        out = module.finalize_prefetch(40)
    graph.replay()
    assert_same(out, wanted.flatten(1))
    assert f"strategy={strategy}" in repr(module)


@needs_gpu
def test_auto_measures_large_tables_alone() -> None:
    small = pinned_table("bf16", strategy="auto")
    assert reader_of(small).calibration is None
    assert reader_of(small).way(1 << 20) == "zero-copy"
    format = row_format("fp8", 160)
    table = PinnedTable(format, 0, (300 << 20) // 160, CUDA)
    reader = table.open_reader()
    assert reader.calibration is not None
    assert reader.calibration_seconds < 0.3
    assert set(reader.calibration.times[512]) == set(WAYS)
    assert str(reader.calibration) in repr(reader)
    assert any(line.endswith(f": {reader.calibration}") for line in build_info()["calibrations"])
    assert (
        PinnedTable(format, 0, (300 << 20) // 160, CUDA).open_reader(calibrate=False).calibration_seconds < 1
    )


@needs_gpu
def test_a_closed_reader_says_so() -> None:
    table = pinned_table("bf16")
    reader = reader_of(table)
    ids = torch.arange(4000, device=CUDA) % ROWS
    reader.lookup(ids, None, "bf16")
    reader.close()
    reader.close()
    with pytest.raises(RuntimeError, match=r"reader must be an open one, got \d+, which was closed or never"):
        reader.lookup(ids, None, "bf16")


@needs_gpu
def test_another_table_is_refused() -> None:
    first, second = pinned_table("bf16"), pinned_table("bf16")
    with pytest.raises(RuntimeError, match="weight must be the table of reader"):
        torch.ops.ngram_ple.pinned_lookup(
            torch.zeros(3, dtype=torch.int64, device=CUDA), second.slots, None,
            reader=reader_of(first).number, way="staged", sms=0, format="bf16", out_dtype="bf16", head_dim=32,
        )  # fmt: skip
    with pytest.raises(RuntimeError, match="way must be zero-copy, ordered or staged, got quick"):
        reader_of(first).lookup(torch.zeros(3, dtype=torch.int64, device=CUDA), None, "bf16", way="quick")


@needs_gpu
def test_tables_end_with_lookups_under_way() -> None:
    ids = torch.randint(0, ROWS, (100_000,), device=CUDA)
    for _ in range(10):
        table = pinned_table("fp8")
        for _ in range(5):
            reader_of(table).lookup(ids, table.global_scale, "bf16")
        del table
    torch.cuda.synchronize()


@needs_gpu
def test_a_forked_child_leaves_the_reader_alone() -> None:
    table = pinned_table("bf16")
    ids = torch.arange(4000, device=CUDA) % ROWS
    wanted = reader_of(table).lookup(ids, None, "bf16")
    child = os.fork()
    if child == 0:
        reader_of(table).close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert_same(reader_of(table).lookup(ids, None, "bf16"), wanted)
