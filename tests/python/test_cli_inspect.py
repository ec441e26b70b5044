"""``ngram-ple inspect``: what it tells of whole and broken checkpoints, and its picture."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import FORMATS, SPLIT, make_source, save_tensors, shard, small_config
from cli_inputs import flat, make_inputs, some_requests
from ngram_ple.checkpoint import stored_config, table_tensors, write_folder
from ngram_ple.cli import main
from ngram_ple.config import NGramConfig
from ngram_ple.formats import row_format
from ngram_ple.hash_plan import HashPlan
from ngram_ple.row_hits import HeadHits, row_hits
from ngram_ple.text import RaggedTokens

PLAN = HashPlan.from_config(small_config())
BUFFERS = {
    "layer_multipliers": PLAN.multipliers,
    "ngram_heads_vocab_sizes": PLAN.head_sizes,
    "ngram_heads_offsets": PLAN.head_offsets,
}


def inspect(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main(["inspect", str(folder), "--json", *more]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1
    facts: dict[str, Any] = json.loads(printed.out)
    assert main(["inspect", str(folder), *more]) == 0
    assert capsys.readouterr().out
    return facts


@pytest.mark.parametrize("format", FORMATS)
def test_whole_checkpoint(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_source(format, PLAN.padded_rows)
    files = source.write(tmp_path, buffers=BUFFERS).glob("*.safetensors")
    facts = inspect(tmp_path, capsys)
    assert facts["problems"] == facts["notes"] == []
    assert [file["bytes"] for file in facts["files"]] == [f.stat().st_size for f in sorted(files)]
    (layer,) = facts["layers"]
    assert layer["problems"] == layer["notes"] == []
    assert layer["format"] == format
    assert layer["configured_format"] in (format.split("-")[0], "unquantized")
    assert layer["configured_by"] in layer["rule"]
    assert layer["plan"] == {
        "heads": 4,
        "multipliers": PLAN.multipliers,
        "head_sizes": PLAN.head_sizes,
        "head_offsets": PLAN.head_offsets,
        "num_rows": PLAN.num_rows,
        "padded_rows": PLAN.padded_rows,
    }
    assert set(layer["buffers"]) == set(BUFFERS)
    assert all(buffer["agrees"] for buffer in layer["buffers"].values())
    weight = layer["tensors"]["weight"]
    assert (weight["shards"], weight["expected_shards"], weight["absent"]) == (SPLIT, SPLIT, [])
    assert weight["rows"] == PLAN.padded_rows
    assert weight["bytes"] == source.weight.nbytes
    stored = [source.weight, source.weight_scale, source.global_scale]
    assert layer["disk_bytes"] == sum(tensor.nbytes for tensor in stored if tensor is not None)
    assert layer["memory_bytes"] == PLAN.padded_rows * row_format(format, 32).slot_bytes
    if source.global_scale is not None:
        scale = layer["tensors"]["weight_scale_2" if format == "nvfp4" else "weight_scale"]
        assert scale["value"] == float(source.global_scale.float())


def test_broken_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = make_source("nvfp4", PLAN.padded_rows).named()
    del tensors[shard(1)], tensors[shard(3, "weight_scale")]
    tensors["layer_multipliers"] = torch.tensor([*PLAN.multipliers[:2], 4])
    tensors["ngram_heads_offsets"] = torch.zeros(3, dtype=torch.int64)
    save_tensors(tmp_path, tensors, stored_config(small_config(), "nvfp4"))
    (layer,) = inspect(tmp_path, capsys)["layers"]
    assert layer["tensors"]["weight"]["absent"] == [1]
    assert layer["tensors"]["weight_scale"]["absent"] == [3]
    assert layer["buffers"]["layer_multipliers"] == {
        "stored": True,
        "agrees": False,
        "differences": [{"index": 2, "stored": 4, "derived": PLAN.multipliers[2]}],
    }
    assert layer["buffers"]["ngram_heads_offsets"] == {"stored": True, "agrees": None, "differences": []}
    assert not layer["buffers"]["ngram_heads_vocab_sizes"]["stored"]
    assert layer["plan"]["multipliers"][2] == 4
    assert len(layer["problems"]) == 4
    assert main(["inspect", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for text in ("ABSENT: shards 1\n", "4 of 5 shards", "DIFFERENT in 1 value, first [2]: 4 stored"):
        assert text in printed


def test_several_layers_and_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = []
    for layer in range(2):
        config = small_config(ple_layer_ids=(2, 5, 11), layer=layer)
        rows = HashPlan.from_config(config).padded_rows
        tensors += table_tensors(
            config, format="bf16", padded_rows=rows, weight=make_source("bf16", rows).weight
        )
        tensors += table_tensors(
            config,
            format="bf16",
            padded_rows=rows,
            weight=make_source("bf16", rows).weight,
            prefix=f"mtp.layers.{layer + 20}.",
        )
    write_folder(tmp_path, config.to_dict(), tensors)
    facts = inspect(tmp_path, capsys)
    assert [layer["format"] for layer in facts["layers"]] == ["bf16", "bf16", None]
    assert [layer["decoder_layer"] for layer in facts["layers"]] == [1, 4, 10]
    assert "must lie under layers.10." in facts["layers"][2]["problems"][0]
    assert len(facts["notes"]) == 2
    assert "'mtp.layers.20.' belong to no PLE layer" in facts["notes"][0]
    (layer,) = inspect(tmp_path, capsys, "--layer", "1")["layers"]
    assert layer["layer"] == 1


def test_shards_without_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_source("bf16", PLAN.padded_rows)
    source.write(tmp_path, small_config(split_ngram_parts=100))
    (layer,) = inspect(tmp_path, capsys)["layers"]
    size = -(-PLAN.padded_rows // 100)
    assert layer["tensors"]["weight"]["shards"] == -(-PLAN.padded_rows // size)
    assert layer["tensors"]["weight"]["shards_without_rows"] == 100 - layer["tensors"]["weight"]["shards"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--layer", "1"], "layer must be an index into the 1 ple_layer_ids"),
        (["--plot", "x.png"], "must be given together, got --plot"),
    ],
)
def test_errors(more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_source("bf16", PLAN.padded_rows).write(tmp_path)
    assert main(["inspect", str(tmp_path), *more]) == 2
    assert message in capsys.readouterr().err
    (tmp_path / "config.json").write_text("[]")
    assert main(["inspect", str(tmp_path)]) == 2
    assert "config.json: must hold a JSON object" in capsys.readouterr().err


def test_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    inputs = make_inputs(tmp_path)
    out = tmp_path / "hits.png"
    files = ["--plot", str(out), "--text", str(inputs.text), "--tokenizer", str(inputs.tokenizer)]
    facts = inspect(inputs.checkpoint, capsys, *files)
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    hits = facts["layers"][0]["hits"]
    assert hits["tokens"] == len(flat(inputs.requests))
    assert [head["order"] for head in hits["heads"]] == [2, 2, 3, 3]


@pytest.mark.parametrize("target", ["text", "tokenizer", "config"])
def test_a_picture_replaces_nothing_that_is_read(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = make_inputs(tmp_path)
    files = {
        "text": inputs.text.rename(tmp_path / "text.png"),
        "tokenizer": inputs.tokenizer.rename(tmp_path / "tokenizer.png"),
        "config": tmp_path / "config.png",
    }
    files["config"].symlink_to(inputs.checkpoint / "config.json")
    before = files[target].read_bytes()
    given = ["--plot", files[target], "--text", files["text"], "--tokenizer", files["tokenizer"]]
    assert main(["inspect", str(inputs.checkpoint), *map(str, given)]) == 2
    assert "--plot must" in capsys.readouterr().err
    assert files[target].read_bytes() == before


def some_hits(config: NGramConfig, plan: HashPlan, tokens: int = 40_000) -> list[HeadHits]:
    """A text with frequent and rare tokens."""
    rng = random.Random(1)
    ids = torch.tensor([int(rng.paretovariate(0.7)) % config.vocab_size for _ in range(tokens)])
    starts = torch.tensor([0, 5, 5, tokens // 3, tokens])
    return row_hits(RaggedTokens(ids, starts), config, plan)


CONFIG = small_config(vocab_size=50_000, ngram_vocab_size_base=20_000, ple_embed_dim=192, ngram_size=4)


def test_even_hash_is_even() -> None:
    for head in some_hits(CONFIG, HashPlan.from_config(CONFIG)):
        assert not head.odd, (head.skew, head.shortfall)
        assert head.hits.sum() == 40_000
        assert len(head.hits) == 256


@pytest.mark.parametrize("broken", ["older token is lost", "rows collect", "few rows", "one row"])
def test_broken_hash_is_seen(broken: str) -> None:
    good = HashPlan.from_config(CONFIG)
    multipliers, sizes = list(good.multipliers), list(good.head_sizes)
    if broken == "older token is lost":
        multipliers[3] = 0
    elif broken == "rows collect":
        multipliers = [1, 1, 1, 1]
    elif broken == "few rows":
        multipliers = [m * 20_000 for m in (4, 4, 4, 4)]
        sizes = [20_000] * len(sizes)
    else:
        multipliers = [0] * 4
    plan = HashPlan(multipliers, sizes, good.head_offsets, good.num_rows, good.padded_rows, 128)
    odd = [head.odd for head in some_hits(CONFIG, plan)]
    assert odd == [False] * 4 + [True] * 2 if broken == "older token is lost" else all(odd)


def test_ngrams_are_counted_as_hashed() -> None:
    requests = some_requests(60)
    config = small_config(ngram_size=4, heads_per_ngram=1, ple_embed_dim=96, ngram_vocab_size_base=10_000_019)
    lengths = np.cumsum([0, *map(len, requests)])
    tokens = RaggedTokens(torch.tensor(flat(requests)), torch.tensor(lengths))
    seen: dict[int, set[tuple[int, ...]]] = {2: set(), 3: set(), 4: set()}
    for request in requests:
        for position in range(len(request)):
            history: list[int] = []
            for step in range(1, 4):
                before = request[position - step] if position >= step else config.eos_token_id
                ended = bool(history) and history[-1] == config.eos_token_id
                history.append(config.eos_token_id if ended else before)
            for order, ngrams in seen.items():
                ngrams.add((request[position], *history[: order - 1]))
    heads = row_hits(tokens, config, HashPlan.from_config(config))
    assert [head.ngrams for head in heads] == [len(seen[order]) for order in (2, 3, 4)]
    for head in heads:  # rows are many: almost no two fall together
        assert head.ngrams - 1 <= head.distinct_rows <= head.ngrams
