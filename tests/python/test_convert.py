"""convert: from every dialect to every target, what it writes and what it says of the error."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from checkpoints import PREFIX, Source, make_source, save_tensors, small_config
from ngram_ple import HashPlan, NGramConfig, NGramEmbedding
from ngram_ple.checkpoint import open_checkpoint
from ngram_ple.cli import main
from ngram_ple.convert import TARGETS, convert_checkpoint
from ngram_ple.convert.head_errors import pieces
from ngram_ple.encoding import global_scale
from ngram_ple.errors import CheckpointError, NgramPleWarning
from ngram_ple.ops import row_amax
from reference import TORCH_DTYPES
from safetensors import safe_open

PLAN = HashPlan.from_config(small_config())
ROWS = PLAN.padded_rows
SOURCES = ("bf16", "fp16", "fp32", "fp8", "fp8-rowwise", "nvfp4")


def source_of(format: str, seed: int = 0) -> Source:
    """A table without NaN codes."""
    source = make_source(format, ROWS, seed=seed, scale_dtype=torch.bfloat16)
    if format.startswith("fp8"):
        codes = source.weight.view(torch.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0x31
    return source


def as_numbers(source: Source) -> torch.Tensor:
    """What convert encodes: plain values as they are, others decoded to fp32."""
    if source.format in TORCH_DTYPES:
        return source.weight
    return reference.decode(source.weight, source.weight_scale, source.global_scale, source.format, "fp32")


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the folder, where the index says, by the safetensors package."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors = {}
    for name, file in index["weight_map"].items():
        with safe_open(folder / file, framework="pt") as opened:
            assert name in opened.keys()  # noqa: SIM118 (no mapping)
            tensors[name] = opened.get_tensor(name)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    return tensors


def joined(tensors: dict[str, torch.Tensor], leaf: str, shards: int) -> torch.Tensor:
    parts = [tensors.get(f"{PREFIX}ngram_embedding.shard_{shard}.{leaf}") for shard in range(shards)]
    return torch.cat([part.view(torch.uint8) for part in parts if part is not None])


def expect_tables(folder: Path, source: Source, to: str, shards: int, scale_dtype: str = "bf16") -> None:
    """The tensors are those of the reference encoder, split into shards."""
    tensors = read_all(folder)
    if source.format == to and to not in TORCH_DTYPES:
        weight, scale, whole = source.weight, source.weight_scale, source.global_scale
    else:
        numbers = as_numbers(source)
        addressed = numbers[: PLAN.num_rows]
        whole = global_scale(row_amax(addressed), to, scale_dtype) if to in ("fp8", "nvfp4") else None
        weight, scale = reference.encode(numbers, whole, to, scale_dtype)
        if whole is not None and to == "fp8":
            whole = whole.to(TORCH_DTYPES[scale_dtype])
    assert torch.equal(joined(tensors, "weight", shards), weight.contiguous().view(torch.uint8))
    if to in ("fp8-rowwise", "nvfp4"):
        assert scale is not None
        assert torch.equal(joined(tensors, "weight_scale", shards), scale.contiguous().view(torch.uint8))
    name = {"fp8": "weight_scale", "nvfp4": "weight_scale_2"}.get(to)
    if name is not None:
        assert whole is not None
        stored = tensors[f"{PREFIX}ngram_embedding.{name}"]
        assert stored.dtype == whole.dtype
        assert torch.equal(stored, whole)


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("format", SOURCES)
def test_every_source_to_every_target(format: str, to: str, tmp_path: Path) -> None:
    source = source_of(format)
    read = source.write(tmp_path / "source")
    done = convert_checkpoint(read, tmp_path / "out", to, shards=7, max_file_bytes=1500)
    assert (done.source_format, done.format) == (format, to)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == done.files > 1
    expect_tables(tmp_path / "out", source, to, 7)
    assert {entry.name[0] for entry in (tmp_path / "out").iterdir()} == {"n", "m", "c"}  # no record, no parts
    stored = open_checkpoint(tmp_path / "out")
    config = NGramConfig.from_pretrained(stored.config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stored.table(config).format == to
        NGramEmbedding.from_pretrained(tmp_path / "out", placement="cpu")
    assert config.split_ngram_parts == 7
    assert main(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("scale_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("to", ["fp8", "fp8-rowwise"])
def test_scale_dtype(to: str, scale_dtype: str, tmp_path: Path) -> None:
    source = source_of("bf16")
    convert_checkpoint(source.write(tmp_path / "source"), tmp_path / "out", to, scale_dtype=scale_dtype)
    expect_tables(tmp_path / "out", source, to, 5, scale_dtype)


@pytest.mark.parametrize("to", TARGETS)
def test_the_errors_it_reports(to: str, tmp_path: Path) -> None:
    source = source_of("fp32", seed=3)
    source.weight[4] *= 1e-4  # becomes zero under scales of others
    source.weight[-1] = 1e9  # of no head: counts nowhere
    done = convert_checkpoint(source.write(tmp_path / "source"), tmp_path / "out", to, threads=1)
    module = NGramEmbedding.from_pretrained(tmp_path / "out", placement="cpu", dtype=torch.float32)
    decoded = module.sync_lookup(torch.arange(ROWS).unsqueeze(1)).view(ROWS, -1).double()
    for head, (offset, size) in enumerate(zip(PLAN.head_offsets, PLAN.head_sizes, strict=True)):
        rows = slice(offset, offset + size)
        value, error = source.weight[rows].double(), source.weight[rows].double() - decoded[rows]
        got = done.errors[0][head]
        assert got.count == value.numel()
        assert got.relative_rms == pytest.approx(float(error.norm() / value.norm()), rel=1e-4)
        assert got.largest_error == pytest.approx(float(error.abs().max()), rel=1e-6)
        assert got.zeroed == int(((decoded[rows] == 0) & (value != 0)).sum())
        assert got.not_finite == 0
        if to in ("fp8", "bf16"):
            assert got.saturated == 0


def test_pieces_where_heads_share_rows_or_leave_some_out() -> None:
    """A checkpoint's own offsets may do both: every row comes once, with all heads that address it."""
    size = PLAN.head_sizes[0]
    offsets = [0, size // 2, *PLAN.head_offsets[2:]]
    plan = PLAN.with_buffers({"ngram_heads_offsets": offsets}, "a test")
    for first, last in ((0, ROWS), (3, size + 3), (size // 2, size), (7, 8), (ROWS - 1, ROWS)):
        found = [(row, heads) for heads, begin, end in pieces(plan, first, last) for row in range(begin, end)]
        assert found == [
            (row, [h for h in range(len(offsets)) if 0 <= row - offsets[h] < plan.head_sizes[h]])
            for row in range(first, last)
        ]


def test_every_dialect(tmp_path: Path) -> None:
    """compressed-tensors names and reciprocal, unsplit tensors, no index, no prefix, other shards."""
    source = source_of("nvfp4")
    assert source.global_scale is not None
    whole = source.named(split=None)
    packed = {
        "ngram_embedding.weight_packed": whole["ngram_embedding.weight"],
        "ngram_embedding.weight_scale": whole["ngram_embedding.weight_scale"],
        "ngram_embedding.weight_global_scale": 1 / source.global_scale,
    }
    read = save_tensors(tmp_path / "source", packed, prefix="", index=False)
    convert_checkpoint(read, tmp_path / "out", "nvfp4", shards=3)
    source.global_scale = (1 / source.global_scale).reciprocal()
    expect_tables(tmp_path / "out", source, "nvfp4", 3)
    convert_checkpoint(tmp_path / "out", tmp_path / "bf16", "bf16")
    expect_tables(tmp_path / "bf16", source, "bf16", 3)


def test_more_shards_than_rows_and_one(tmp_path: Path) -> None:
    source = source_of("bf16")
    convert_checkpoint(source.write(tmp_path / "source"), tmp_path / "many", "nvfp4", shards=4 * ROWS)
    expect_tables(tmp_path / "many", source, "nvfp4", 4 * ROWS)
    convert_checkpoint(tmp_path / "source", tmp_path / "one", "fp8", shards=1)
    expect_tables(tmp_path / "one", source, "fp8", 1)


def test_several_layers_with_buffers(tmp_path: Path) -> None:
    """Each has its own scale and its buffers, in one folder."""
    configs = [small_config(ple_layer_ids=(2, 5), layer=layer) for layer in (0, 1)]
    tensors, sources = {}, []
    for config in configs:
        plan = HashPlan.from_config(config)
        source = make_source("bf16", plan.padded_rows, seed=config.layer)
        source.weight *= 1 + 9 * config.layer
        sources.append(source)
        prefix = PREFIX.replace("layers.1.", f"layers.{config.decoder_layer}.")
        tensors |= {f"{prefix}{name}": tensor for name, tensor in source.named().items()}
        tensors[f"{prefix}layer_multipliers"] = torch.tensor(plan.multipliers)
        tensors[f"{prefix}hashstats_seen"] = torch.zeros(3)
    read = save_tensors(tmp_path / "source", tensors, configs[0].to_dict(), prefix="", files=3)
    done = convert_checkpoint(read, tmp_path / "out", "fp8", max_file_bytes=1000)
    assert len(done.errors) == 2
    written = read_all(tmp_path / "out")
    assert not any("hashstats" in name for name in written)
    for config, source in zip(configs, sources, strict=True):
        prefix = PREFIX.replace("layers.1.", f"layers.{config.decoder_layer}.")
        assert torch.equal(written[f"{prefix}layer_multipliers"], tensors[f"{prefix}layer_multipliers"])
        rows = source.weight[: HashPlan.from_config(config).num_rows]
        scale = global_scale(row_amax(rows), "fp8").bfloat16()
        assert torch.equal(written[f"{prefix}ngram_embedding.weight_scale"], scale)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            NGramEmbedding.from_pretrained(tmp_path / "out", layer=config.layer, placement="cpu")


OTHER = {"quant_method": "fp8", "weight_block_size": [128, 128], "ignored_layers": ["lm_head"]}
MIXED = {
    "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "exclude_modules": ["lm_head"],
    "quantized_layers": {f"{PREFIX}ngram_embedding": {"quant_algo": "NVFP4"}},
}  # fmt: skip


def converted_config(tmp_path: Path, config: dict[str, Any], to: str, format: str = "bf16") -> dict[str, Any]:
    read = save_tensors(tmp_path / "source", source_of(format).named(), config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NgramPleWarning)
        convert_checkpoint(read, tmp_path / "out", to)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NgramPleWarning)
        stored = open_checkpoint(tmp_path / "out")
        assert stored.table(NGramConfig.from_pretrained(stored.config)).format == to
    result: dict[str, Any] = json.loads((tmp_path / "out" / "config.json").read_text())
    return result


@pytest.mark.parametrize(
    ("to", "dtype"), [("nvfp4", "nvfp4"), ("fp8", "float8_e4m3fn"), ("fp8-rowwise", "float8_e4m3fn")]
)
def test_config_of_quantized_tables(to: str, dtype: str, tmp_path: Path) -> None:
    config = {
        **small_config().to_dict(),
        "quantization_config": OTHER,
        "architectures": ["Some"],
        "own": {"x": 1},
    }
    config["ple_embedding_dtype"] = None
    got = converted_config(tmp_path, config, to)
    assert got.pop("text_config") == {**config.pop("text_config"), "ple_embedding_dtype": dtype}
    config.pop("ple_embedding_dtype")
    assert got == config


@pytest.mark.parametrize(
    "quantization", [OTHER, {**OTHER, "ignored_layers": [], "modules_to_not_convert": ["x"]}, MIXED]
)
def test_config_of_unquantized_tables(quantization: dict[str, Any], tmp_path: Path) -> None:
    """What would claim the table as quantized excludes it; nothing else changes."""
    config = {**small_config().to_dict(), "quantization_config": quantization}
    config["text_config"]["ple_embedding_dtype"] = "nvfp4"
    got = converted_config(tmp_path, config, "bf16", "nvfp4")
    assert "ple_embedding_dtype" not in got["text_config"]
    key = next(
        k for k in ("exclude_modules", "modules_to_not_convert", "ignored_layers") if quantization.get(k)
    )
    assert got["quantization_config"].pop(key) == [*quantization[key], f"{PREFIX}ngram_embedding"]
    assert got["quantization_config"] == {k: v for k, v in quantization.items() if k != key}


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("format", ["bf16", "fp8-rowwise"])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_what_is_not_finite(format: str, to: str, bad: str, tmp_path: Path) -> None:
    if format == to:
        return  # copied as it is
    source = source_of(format)
    if format == "bf16":
        source.weight[37, 5] = source.weight[50, 1] = float(bad)
    else:
        if bad != "nan":
            return  # E4M3 has no infinity
        source.weight.view(torch.uint8)[37, 5] = 0xFF
    read = source.write(tmp_path / "source")
    with pytest.raises(CheckpointError, match="row 37 has a NaN or an infinity"):
        convert_checkpoint(read, tmp_path / "out", to)
    assert not list((tmp_path / "out").glob("*.safetensors")) or to not in ("fp8", "nvfp4")
    assert not (tmp_path / "out" / "config.json").exists()
    done = convert_checkpoint(read, tmp_path / "saturated", to, saturate=True)
    assert sum(head.not_finite for head in done.errors[0]) == (2 if format == "bf16" else 1)
    expect_saturated = as_numbers(source)
    whole = (
        global_scale(row_amax(expect_saturated[: PLAN.num_rows], finite_only=True), to)
        if to in ("fp8", "nvfp4")
        else None
    )
    weight, _ = reference.encode(expect_saturated, whole, to, "bf16")
    got = joined(read_all(tmp_path / "saturated"), "weight", 5)
    assert torch.equal(got, weight.contiguous().view(torch.uint8))


def test_rows_of_no_head_may_be_anything(tmp_path: Path) -> None:
    """The tail is often never initialised: it sets no scale and is refused by nobody."""
    assert PLAN.num_rows < ROWS
    source = source_of("bf16")
    read = source.write(tmp_path / "plain")
    source.weight[PLAN.num_rows] = float("nan")
    source.weight[PLAN.num_rows + 1] = 1e30
    odd = source.write(tmp_path / "odd")
    for to in TARGETS:
        errors = [
            convert_checkpoint(folder, tmp_path / f"{to}-{folder.name}", to).errors for folder in (read, odd)
        ]
        assert errors[0] == errors[1]
        plain, got = (joined(read_all(tmp_path / f"{to}-{name}"), "weight", 5) for name in ("plain", "odd"))
        assert torch.equal(got[: PLAN.num_rows], plain[: PLAN.num_rows])


def test_nothing_is_lost_between_plain_formats(tmp_path: Path) -> None:
    source = source_of("bf16")
    done = convert_checkpoint(source.write(tmp_path / "source"), tmp_path / "out", "bf16", shards=9)
    expect_tables(tmp_path / "out", source, "bf16", 9)
    assert all(head.squared_error == 0 and head.squared_value > 0 for head in done.errors[0])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = source_of("bf16").write(tmp_path / "source")
    arguments = ["convert", str(read), str(tmp_path / "out"), "--to", "nvfp4", "--shards", "3"]
    assert main([*arguments, "--json", "--plot", str(tmp_path / "error.png")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["from"], facts["to"], facts["files"]) == ("bf16", "nvfp4", 1)
    heads = facts["layers"][0]["heads"]
    assert [head["head"] for head in heads] == [0, 1, 2, 3]
    for facts_of_head in (facts["layers"][0], *heads):
        assert 0.05 < facts_of_head["relative_rms"] < 0.12
        assert facts_of_head["saturated_share"] < 0.1
    mean = sum(head["relative_rms"] ** 2 for head in heads) / 4
    assert facts["layers"][0]["relative_rms"] == pytest.approx(math.sqrt(mean), rel=0.05)
    assert (tmp_path / "error.png").read_bytes().startswith(b"\x89PNG")
    arguments[2] = str(tmp_path / "again")
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("written")
    assert lines[-1].split()[0] == "all"
    assert float(lines[-1].split()[1]) == pytest.approx(100 * facts["layers"][0]["relative_rms"], rel=0.01)
