"""What is written comes back, in every format, dialect and row range."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import ngram_ple.checkpoint.read as read_module
import ngram_ple.checkpoint.read_slots as slots_module
import pytest
import torch
from checkpoints import (
    FORMATS,
    PADDED_ROWS,
    PREFIX,
    SPLIT,
    Source,
    assert_filled,
    make_source,
    save_tensors,
    sink_for,
    small_config,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ngram_ple.checkpoint.loader import TableLoader
from ngram_ple.checkpoint.open import StoredTable, open_checkpoint, read_table
from ngram_ple.checkpoint.safetensors_writer import write_folder
from ngram_ple.checkpoint.write import stored_config, table_tensors, write_checkpoint
from ngram_ple.config import NGramConfig
from ngram_ple.errors import CheckpointError, NgramPleWarning
from safetensors.torch import load_file


def stored_table(folder: Path, layer: int = 0) -> StoredTable:
    checkpoint = open_checkpoint(folder)
    return checkpoint.table(NGramConfig.from_pretrained(checkpoint.config, layer))


def assert_loads(folder: Path, source: Source, **options: Any) -> StoredTable:
    stored = stored_table(folder)
    assert stored.format == source.format
    sink = sink_for(source, **options)
    stored.check(len(source.weight), sink.row_start, sink.row_end)
    read_table(stored, sink, padded_rows=len(source.weight))
    assert_filled(sink, source)
    return stored


@pytest.mark.parametrize("give_direct", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_written_table_comes_back(tmp_path: Path, format: str, give_direct: bool) -> None:
    source = make_source(format)
    source.write(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    stored = assert_loads(tmp_path, source, give_direct=give_direct)
    assert stored.prefix == PREFIX
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("format", FORMATS)
def test_safetensors_reads_what_we_write(tmp_path: Path, format: str) -> None:
    source = make_source(format)
    source.write(tmp_path, buffers={"layer_multipliers": [3, 5, 7]})
    tensors = {}
    for file in tmp_path.glob("*.safetensors"):
        tensors.update(load_file(file))
    expected = {f"{PREFIX}{name}": tensor for name, tensor in source.named().items()}
    assert tensors.pop(f"{PREFIX}layer_multipliers").tolist() == [3, 5, 7]
    assert set(tensors) == set(expected)
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name].view(torch.uint8), tensor.contiguous().view(torch.uint8)), name


@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("format", ["fp8", "fp8-rowwise"])
def test_scale_dtypes(tmp_path: Path, format: str, scale_dtype: torch.dtype) -> None:
    source = make_source(format, scale_dtype=scale_dtype)
    source.write(tmp_path)
    assert_loads(tmp_path, source)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    format=st.sampled_from(FORMATS),
    rows=st.integers(1, 90),
    split=st.integers(1, 40),
    bounds=st.tuples(st.integers(0, 90), st.integers(0, 90)),
    block=st.integers(1, 400),
    give_direct=st.booleans(),
    threads=st.integers(1, 3),
)
def test_any_row_range(
    tmp_path_factory: pytest.TempPathFactory,
    format: str,
    rows: int,
    split: int,
    bounds: tuple[int, int],
    block: int,
    give_direct: bool,
    threads: int,
) -> None:
    """Partial ownership, blocks and shards that straddle its ends, shards without rows."""
    folder = tmp_path_factory.mktemp("table")
    source = make_source(format, rows)
    source.write(folder, small_config(split_ngram_parts=split), max_file_bytes=700)
    row_start, row_end = sorted(min(bound, rows) for bound in bounds)
    stored = stored_table(folder)
    stored.check(rows, row_start, row_end)
    sink = sink_for(source, row_start, row_end, give_direct=give_direct)
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_module, "WEIGHT_BLOCK_BYTES", block)
        patch.setattr(slots_module, "SLOT_BLOCK_BYTES", block)
        read_table(stored, sink, padded_rows=rows, threads=threads, progress=seen.append)
    assert_filled(sink, source)
    stored_bytes = source.weight[row_start:row_end].nbytes
    if source.weight_scale is not None:
        stored_bytes += source.weight_scale[row_start:row_end].nbytes
    assert sum(seen) == stored_bytes


def test_shards_without_rows_are_absent_or_empty(tmp_path: Path) -> None:
    source = make_source("bf16", rows=10)  # 7 parts of 2 rows: shards 5 and 6 have none
    config = small_config(split_ngram_parts=7)
    source.write(tmp_path / "absent", config)
    assert len(stored_table(tmp_path / "absent").tensors) == 5
    assert_loads(tmp_path / "absent", source)
    tensors = source.named(7)
    tensors["ngram_embedding.shard_6.weight"] = source.weight[:0]
    save_tensors(tmp_path / "empty", tensors, config.to_dict())
    assert_loads(tmp_path / "empty", source)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("split", [SPLIT, None])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.filterwarnings("ignore::ngram_ple.errors.NgramPleWarning")
def test_other_writers(tmp_path: Path, format: str, split: int | None, index: bool) -> None:
    """Split and unsplit, scales in other files than the weights, with and without an index."""
    source = make_source(format)
    save_tensors(tmp_path, source.named(split), files=3, index=index)
    assert_loads(tmp_path, source)


def test_single_model_file(tmp_path: Path) -> None:
    source = make_source("bf16")
    save_tensors(tmp_path, source.named(), index=False)
    (tmp_path / "part-0.safetensors").rename(tmp_path / "model.safetensors")
    (tmp_path / "consolidated.safetensors").write_bytes(b"")  # other files do not matter beside it
    assert_loads(tmp_path, source)


def test_whole_scales_of_split_weights(tmp_path: Path) -> None:
    source = make_source("nvfp4")
    tensors = source.named()
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("weight_scale")}
    tensors["ngram_embedding.weight_scale"] = source.weight_scale
    config = stored_config(small_config(), "nvfp4")
    assert_loads(save_tensors(tmp_path, tensors, config), source)


@pytest.mark.parametrize("per_shard", [True, False])
def test_compressed_tensors_names(tmp_path: Path, per_shard: bool) -> None:
    """weight_packed, and a global scale that is the reciprocal, inverted once in fp32."""
    source = make_source("nvfp4")
    stored_scale = torch.tensor([2688.0 / 1.7])
    source.global_scale = torch.ones(1) / stored_scale
    tensors = {
        name.replace(".weight", ".weight_packed") if name.endswith(".weight") else name: tensor
        for name, tensor in source.named().items()
    }
    del tensors["ngram_embedding.weight_scale_2"]
    for shard in range(SPLIT) if per_shard else (None,):
        middle = "" if shard is None else f"shard_{shard}."
        tensors[f"ngram_embedding.{middle}weight_global_scale"] = stored_scale
    assert_loads(save_tensors(tmp_path, tensors, stored_config(small_config(), "nvfp4")), source)


def test_global_scales_of_shards_must_agree(tmp_path: Path) -> None:
    source = make_source("nvfp4")
    tensors = source.named()
    for shard in range(SPLIT):
        tensors[f"ngram_embedding.shard_{shard}.weight_scale_2"] = source.global_scale
    assert_loads(save_tensors(tmp_path, tensors, stored_config(small_config(), "nvfp4")), source)
    tensors["ngram_embedding.shard_3.weight_scale_2"] = torch.tensor([0.5])
    stored = stored_table(save_tensors(tmp_path, tensors, stored_config(small_config(), "nvfp4")))
    with pytest.raises(CheckpointError, match=r"shard_\d.weight_scale_2: expected the global scale .* got "):
        read_table(stored, sink_for(source), padded_rows=PADDED_ROWS)


def test_scalar_scale(tmp_path: Path) -> None:
    source = make_source("fp8")
    tensors = source.named()
    tensors["ngram_embedding.weight_scale"] = source.global_scale.reshape(())
    assert_loads(save_tensors(tmp_path, tensors, stored_config(small_config(), "fp8")), source)


@pytest.mark.parametrize("stored_as", ["fp8", "bf16", "nvfp4"])
def test_tensors_win_over_the_configuration(tmp_path: Path, stored_as: str) -> None:
    source = make_source(stored_as)
    claimed = {"fp8": "bf16", "bf16": "nvfp4", "nvfp4": "fp8"}[stored_as]
    save_tensors(tmp_path, source.named(), stored_config(small_config(), claimed))
    with pytest.warns(NgramPleWarning, match=f"ngram_embedding is {stored_as}.* configuration says"):
        assert_loads(tmp_path, source)


@pytest.mark.parametrize(
    "prefix",
    ["", "ple_embedding.", "model.layers.1.ple.ple_embedding.", "a.b.layers.7.c.layers.1.x."],
)
def test_prefix_is_found(tmp_path: Path, prefix: str) -> None:
    source = make_source("bf16")
    save_tensors(tmp_path, source.named(), prefix=prefix)
    assert assert_loads(tmp_path, source).prefix == prefix


def test_several_layers(tmp_path: Path) -> None:
    tensors = []
    sources = []
    for layer in range(3):
        config = small_config(ple_layer_ids=(2, 5, 11), layer=layer)
        source = make_source("bf16", seed=layer)
        sources.append(source)
        tensors += table_tensors(config, format="bf16", padded_rows=PADDED_ROWS, weight=source.weight)
    write_folder(tmp_path, config.to_dict(), tensors, max_file_bytes=9000)
    for layer, source in enumerate(sources):
        stored = stored_table(tmp_path, layer)
        assert stored.prefix == f"model.language_model.layers.{(1, 4, 10)[layer]}.ple.ple_embedding."
        sink = sink_for(source)
        read_table(stored, sink, padded_rows=PADDED_ROWS)
        assert_filled(sink, source)


def test_rest_of_the_model_may_be_absent(tmp_path: Path) -> None:
    """Files of other tensors need not be there; statistics are ignored."""
    import json

    source = make_source("fp8")
    tensors = source.named()
    tensors["hashstats_counts"] = torch.zeros(3)
    tensors["ngram_embedding.hashstats_x"] = torch.zeros(3)
    tensors["token_lookup"] = torch.zeros(3, dtype=torch.int32)
    save_tensors(tmp_path, tensors, stored_config(small_config(), "fp8"), files=2)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.language_model.embed_tokens.weight"] = "model-00001-of-00100.safetensors"
    content["weight_map"]["model.language_model.layers.1.ple.key_proj.weight"] = (
        "model-00007-of-00100.safetensors"
    )
    index.write_text(json.dumps(content))
    assert_loads(tmp_path, source)


def test_stored_buffers(tmp_path: Path) -> None:
    buffers = {
        "layer_multipliers": [23703573157769, 2**63 - 1, -5],
        "ngram_heads_vocab_sizes": [17, 19, 23, 29],
        "ngram_heads_offsets": [0, 17, 36, 59],
    }
    source = make_source("bf16")
    source.write(tmp_path, buffers=buffers)
    stored = assert_loads(tmp_path, source)
    assert stored.buffers == buffers
    loader = TableLoader(sink_for(source), padded_rows=PADDED_ROWS, split_ngram_parts=SPLIT)
    for name, tensor in stored.tensors.items():
        loader.add(name, tensor)
    assert loader.buffers == buffers


@pytest.mark.parametrize("format", FORMATS)
def test_engine_hands_tensors_over(format: str) -> None:
    """In any order, twice into the same memory; the names that were filled come back."""
    sources = [make_source(format, seed=seed) for seed in (1, 2)]
    sink = sink_for(sources[0], 17, 90)
    addresses = {leaf: held.data_ptr() for leaf, held in sink.leaves.items()}
    loader = TableLoader(sink, padded_rows=PADDED_ROWS, split_ngram_parts=SPLIT, prefix=PREFIX)
    for source in sources:
        loader.restart()
        named = list(source.named().items())
        random.Random(format).shuffle(named)
        filled = {loader.add(name, tensor) for name, tensor in named}
        assert loader.add("ngram_embedding.hashstats_x", torch.zeros(1)) is None
        assert filled == {re.sub(r"shard_\d+\.", "", name) for name, _ in named}
        loader.finish()
        assert_filled(sink, source)
    assert {leaf: held.data_ptr() for leaf, held in sink.leaves.items()} == addresses


def test_tensors_of_any_strides() -> None:
    source = make_source("fp32")
    sink = sink_for(source)
    loader = TableLoader(sink, padded_rows=PADDED_ROWS, split_ngram_parts=SPLIT)
    loader.add("ngram_embedding.weight", source.weight.t().contiguous().t().requires_grad_())
    loader.finish()
    assert_filled(sink, source)


def test_rows_from_a_callable(tmp_path: Path) -> None:
    source = make_source("nvfp4")
    asked: list[tuple[int, int]] = []

    def weight(first: int, last: int) -> torch.Tensor:
        asked.append((first, last))
        return source.weight[first:last]

    seen: list[int] = []
    files = write_checkpoint(
        tmp_path,
        small_config(),
        format="nvfp4",
        padded_rows=PADDED_ROWS,
        weight=weight,
        weight_scale=lambda first, last: source.weight_scale[first:last],
        global_scale=float(source.global_scale),
        progress=seen.append,
    )
    assert {file.name for file in files} == {file.name for file in tmp_path.iterdir()}
    assert asked[1:] == [(0, 21), (21, 42), (42, 63), (63, 84), (84, 103)]
    assert sum(seen) == source.weight.nbytes + source.weight_scale.nbytes + 4
    assert_loads(tmp_path, source)


@pytest.mark.parametrize(
    ("format", "change", "message"),
    [
        ("bf16", {"weight": torch.zeros(PADDED_ROWS, 32)}, "weight must be BF16, got torch.float32"),
        (
            "bf16",
            {"weight": torch.zeros(9, 32, dtype=torch.bfloat16)},
            r"weight must be \[103, 32\], got \[9, 32\]",
        ),
        ("bf16", {"global_scale": 1.0}, "global_scale must not be given for bf16, got 1.0"),
        ("fp8", {"global_scale": None}, "global_scale must be given for fp8"),
        ("fp8", {"global_scale": torch.ones(2)}, "global_scale must be one BF16 or F32 value"),
        ("nvfp4", {"weight_scale": None}, "weight_scale must be given for nvfp4"),
        ("fp8", {"weight_scale": torch.ones(PADDED_ROWS, 1)}, "weight_scale must not be given for fp8"),
        ("bf16", {"buffers": {"x": [1]}}, "buffers must be among layer_multipliers"),
        ("bf17", {}, "format must be one of bf16"),
        (
            "bf16",
            {"weight": lambda a, b: torch.zeros(2, 32, dtype=torch.bfloat16)},
            r"rows 0..20, got .*\[2, 32\]",
        ),
    ],
)
def test_writer_refuses(tmp_path: Path, format: str, change: dict[str, Any], message: str) -> None:
    source = make_source(format if format in FORMATS else "bf16")
    arguments = {
        "weight": source.weight,
        "weight_scale": source.weight_scale,
        "global_scale": source.global_scale,
        **change,
    }
    with pytest.raises(CheckpointError, match=message):
        write_checkpoint(tmp_path, small_config(), format=format, padded_rows=PADDED_ROWS, **arguments)
    assert not list(tmp_path.iterdir())
