"""Wrong files, indexes, links and prefixes: an error that names them, at once."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from checkpoints import (
    FORMATS,
    PADDED_ROWS,
    PREFIX,
    Source,
    assert_filled,
    load,
    make_source,
    save_tensors,
    shard,
    sink_for,
    small_config,
)
from ngram_ple.checkpoint import open_checkpoint, read_table
from ngram_ple.config import NGramConfig
from ngram_ple.errors import CheckpointError, ConfigError, NgramPleError

INDEX = "model.safetensors.index.json"


@pytest.fixture
def source() -> Source:
    return make_source("bf16")


@pytest.fixture
def folder(tmp_path: Path, source: Source) -> Path:
    return save_tensors(tmp_path / "checkpoint", source.named(), files=2)


def edit_index(folder: Path, **placed: str) -> None:
    content = json.loads((folder / INDEX).read_text())
    content["weight_map"].update({f"{PREFIX}{shard(int(key[1:]))}": file for key, file in placed.items()})
    (folder / INDEX).write_text(json.dumps(content))


def refuses(folder: Path, message: str, error: type[NgramPleError] = CheckpointError) -> None:
    begin = time.monotonic()
    with pytest.raises(error, match=message):
        open_checkpoint(folder)
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1, -700])
@pytest.mark.parametrize("index", [True, False])
def test_truncated_file(tmp_path: Path, source: Source, keep: int, index: bool) -> None:
    save_tensors(tmp_path, source.named(), files=2, index=index)
    file = tmp_path / "part-1.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refuses(tmp_path, r"part-1\.safetensors: .*truncated")


def test_file_truncated_while_reading(folder: Path, source: Source) -> None:
    checkpoint = open_checkpoint(folder)
    stored = checkpoint.table(small_config())
    file = folder / "part-1.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(
        CheckpointError, match=r"part-1\.safetensors: truncated: 1 more bytes expected at byte"
    ):
        read_table(stored, sink_for(source), padded_rows=PADDED_ROWS)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"part-1\.safetensors: No such file"):
        read_table(stored, sink_for(source), padded_rows=PADDED_ROWS, threads=1)


def test_index_names_a_missing_file(folder: Path) -> None:
    edit_index(folder, s1="gone.safetensors")
    refuses(folder, r"index\.json names 'gone\.safetensors', but .*gone\.safetensors: No such file")


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "a/../../outside.safetensors", "/etc/x.safetensors", "", "a\0.safetensors"],
)
def test_index_leads_out(folder: Path, source: Source, name: str) -> None:
    save_tensors(folder.parent / "other", source.named())
    (folder.parent / "other" / "part-0.safetensors").rename(folder.parent / "outside.safetensors")
    edit_index(folder, s1=name)
    refuses(folder, r"index\.json: weight_map\[.*\] must name a file inside the folder, got ")


def test_index_leads_out_for_another_tensor(folder: Path) -> None:
    content = json.loads((folder / INDEX).read_text())
    content["weight_map"]["lm_head.weight"] = "../x.safetensors"
    (folder / INDEX).write_text(json.dumps(content))
    refuses(folder, "lm_head.weight.* must name a file inside the folder")


@pytest.mark.parametrize("index", [True, False])
def test_link_leads_out(folder: Path, index: bool) -> None:
    (folder / "part-1.safetensors").rename(folder.parent / "outside.safetensors")
    (folder / "part-1.safetensors").symlink_to("../outside.safetensors")
    if not index:
        (folder / INDEX).unlink()
    refuses(folder, r"part-1\.safetensors leads out of the folder, to .*outside\.safetensors")


def test_index_link_leads_out(folder: Path) -> None:
    (folder / INDEX).rename(folder.parent / INDEX)
    (folder / INDEX).symlink_to(f"../{INDEX}")
    refuses(folder, "leads out of the folder")


def test_links_that_stay_inside(folder: Path, source: Source) -> None:
    (folder / "blobs").mkdir()
    (folder / "part-1.safetensors").rename(folder / "blobs" / "x")
    (folder / "part-1.safetensors").symlink_to("blobs/x")
    sink = sink_for(source)
    load(folder, sink)
    assert_filled(sink, source)


def test_links_of_a_hugging_face_cache(tmp_path: Path, source: Source) -> None:
    snapshot = tmp_path / "models--Qwen--X" / "snapshots" / "0123abc"
    snapshot.parent.mkdir(parents=True)
    blobs = tmp_path / "models--Qwen--X" / "blobs"
    blobs.mkdir()
    save_tensors(snapshot, source.named(), files=2)
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(f"../../blobs/{number}")
    sink = sink_for(source)
    load(snapshot, sink)
    assert_filled(sink, source)


def test_loop_of_links(folder: Path) -> None:
    (folder / "part-1.safetensors").unlink()
    (folder / "part-1.safetensors").symlink_to("part-1.safetensors")
    refuses(folder, r"part-1\.safetensors")


@pytest.mark.parametrize("name", ["part-1.safetensors", INDEX])
def test_fifo(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refuses(folder, f"{name}: not a regular file")


def test_folder_in_place_of_a_file(folder: Path) -> None:
    (folder / "part-1.safetensors").unlink()
    (folder / "part-1.safetensors").mkdir()
    refuses(folder, r"part-1\.safetensors: (not a regular file|Is a directory)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "unreadable JSON"),
        ("[]", "unreadable JSON: expected '{'"),
        ("{}", "must have a weight_map"),
        ('{"weight_map": []}', "expected '{'"),
        ('{"weight_map": {"a": 1}}', r"weight_map\['a'\] must be a file name, got 1"),
        ('{"weight_map": {"a": {}}}', r"weight_map\['a'\] must be a file name, got {}"),
        ('{"weight_map": {"a": "x.bin"}}', "must name a \\*.safetensors file, got 'x.bin'"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "'a' occurs twice"),
        ('{"weight_map": {}, "weight_map": {}}', "'weight_map' occurs twice"),
        ('{"weight_map": {}} x', "unexpected text after"),
        ('{"weight_map": {"a": "\\ud800.safetensors"}}', "surrogates not allowed|can't encode"),
        ('{"x": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_index(folder: Path, content: str, message: str) -> None:
    (folder / INDEX).write_text(content)
    refuses(folder, f"index\\.json: .*({message})")


def test_index_and_file_disagree(folder: Path) -> None:
    edit_index(folder, s1="part-0.safetensors")  # it lies in part-1
    refuses(folder, r"part-0\.safetensors: expected .*shard_1\.weight there, as .* says, but it is missing")
    content = json.loads((folder / INDEX).read_text())
    del content["weight_map"][f"{PREFIX}{shard(1)}"]
    (folder / INDEX).write_text(json.dumps(content))
    refuses(folder, r"part-1\.safetensors: has .*shard_1\.weight, which .* does not list")


def test_tensor_in_two_files(folder: Path, source: Source) -> None:
    save_tensors(folder.parent / "more", {shard(1): source.named()[shard(1)]})
    (folder.parent / "more" / "part-0.safetensors").rename(folder / "part-7.safetensors")
    (folder / INDEX).unlink()
    refuses(
        folder, r"part-7\.safetensors: .*shard_1\.weight: expected once, but .*part-1\.safetensors has it too"
    )


def test_no_files(tmp_path: Path) -> None:
    refuses(tmp_path / "nowhere", "nowhere: must be a checkpoint folder, got nothing")
    refuses(tmp_path, r"config\.json: No such file", ConfigError)
    (tmp_path / "config.json").write_text("{}")
    refuses(tmp_path, "expected model.safetensors.index.json, .*, got none")
    refuses(tmp_path / "config.json", "must be a checkpoint folder, got a file")


def test_two_candidates(tmp_path: Path, source: Source) -> None:
    named = {
        f"{p}.layers.1.ple.ple_embedding.{k}": v for p in ("model", "mtp") for k, v in source.named().items()
    }
    save_tensors(tmp_path, named, prefix="")
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"got 2: 'model\.layers\.1\..*', 'mtp\.layers\.1\..*choose one"
    ):
        checkpoint.table(small_config())
    chosen = checkpoint.table(small_config(), prefix="mtp.layers.1.ple.ple_embedding.")
    sink = sink_for(source)
    read_table(chosen, sink, padded_rows=PADDED_ROWS)
    assert_filled(sink, source)


@pytest.mark.parametrize(
    "prefix", ["model.layers.2.ple.ple_embedding.", "model.layers.11.ple.ple_embedding."]
)
def test_other_layer(tmp_path: Path, source: Source, prefix: str) -> None:
    save_tensors(tmp_path, source.named(), prefix=prefix)
    with pytest.raises(CheckpointError, match=rf"must lie under layers\.1\. .*, got '{prefix}'"):
        open_checkpoint(tmp_path).table(small_config())


def test_no_table(tmp_path: Path) -> None:
    save_tensors(tmp_path, {"weight": torch.zeros(3)}, prefix="lm_head.")
    with pytest.raises(CheckpointError, match="got no ngram_embedding tensor at all"):
        open_checkpoint(tmp_path).table(small_config())


def test_prefix_without_a_layer_is_ambiguous_for_several(tmp_path: Path, source: Source) -> None:
    save_tensors(tmp_path, source.named(), prefix="ple_embedding.")
    with pytest.raises(CheckpointError, match=r"PLE layer 0 of ple_layer_ids \[2, 5\]"):
        open_checkpoint(tmp_path).table(small_config(ple_layer_ids=(2, 5)))


def test_unsupported_algorithm(tmp_path: Path, source: Source) -> None:
    config = small_config().to_dict()
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}
    save_tensors(tmp_path, source.named(), config)
    with pytest.raises(ConfigError, match="W4A16_AWQ"):
        load(tmp_path, sink_for(source))


@pytest.mark.parametrize("format", FORMATS)
def test_failed_read_stops_all_threads(tmp_path: Path, format: str) -> None:
    """An error of one thread is the error of the whole, and the others end."""
    source = make_source(format)
    source.write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    stored = checkpoint.table(NGramConfig.from_pretrained(checkpoint.config))
    for file in tmp_path.glob("*.safetensors"):
        os.truncate(file, 100)
    with pytest.raises(CheckpointError, match="truncated"):
        read_table(stored, sink_for(source), padded_rows=PADDED_ROWS, threads=4)
