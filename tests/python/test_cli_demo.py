"""``ngram-ple demo``: the folder it makes, and its own proof."""

from __future__ import annotations

import json
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import FORMATS
from cli_inputs import some_requests, write_text, write_tokenizer
from ngram_ple.cli import demo, main
from ngram_ple.cli.demo_check import check_result
from ngram_ple.cli.demo_table import DemoTable
from ngram_ple.config import NGramConfig
from ngram_ple.errors import NgramPleError
from safetensors.torch import load_file, save_file


def small(tmp_path: Path, *more: str) -> list[str]:
    """A demo of 16 x 50 rows on a few words."""
    text = write_text(tmp_path / "words.txt", some_requests())
    tokenizer = write_tokenizer(tmp_path / "words.json")
    files = ["--text", str(text), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "demo")]
    return ["demo", *files, "--rows-per-head", "50", *more]


@pytest.mark.parametrize("format", FORMATS)
def test_every_format(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(small(tmp_path, "--format", format, "--json")) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    report = json.loads(printed.out)
    assert report["embed"]["format"] == format
    assert report["embed"]["requests"] == 40
    assert (report["checked_tokens"], report["checked_rows"]) == (256, 16 * 256)
    folder = tmp_path / "demo"
    names = ["checkpoint", "demo.json", "embeddings.safetensors", "text.txt", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert len(list((folder / "checkpoint").glob("model-*.safetensors"))) >= 4
    index = json.loads((folder / "checkpoint" / "model.safetensors.index.json").read_text())
    prefix = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_"
    assert {f"{prefix}{shard}.weight" for shard in range(8)} <= set(index["weight_map"])
    # What was made from Gaussian numbers still looks like them.
    embeddings = load_file(folder / "embeddings.safetensors")["embeddings"].float()
    assert embeddings.shape[1] == 2560
    assert abs(float(embeddings.mean())) < 1e-3
    assert 0.018 < float(embeddings.std()) < 0.022


def test_a_difference_is_found(tmp_path: Path) -> None:
    assert main(small(tmp_path)) == 0
    out = tmp_path / "demo" / "embeddings.safetensors"
    config = NGramConfig.from_pretrained(tmp_path / "demo" / "checkpoint")
    table = DemoTable("bf16", config.head_dim, 0)
    tensors = load_file(out)
    assert check_result(out, table, config, 10**6, 0) == len(tensors["input_ids"])
    for name, at in (("ngram_ids", (5, 3)), ("embeddings", (9, 2000))):
        spoiled = {key: tensor.clone() for key, tensor in tensors.items()}
        spoiled[name][at] += 1
        save_file(spoiled, out)
        with pytest.raises(NgramPleError, match=f"{name} of token {at[0]} must be"):
            check_result(out, table, config, 10**6, 0)


def test_rows_do_not_depend_on_how_they_are_fetched() -> None:
    table = DemoTable("bf16", 160, 3)
    whole = table.weight(0, 300)
    assert torch.equal(table.weight(70, 257), whole[70:257])
    assert torch.equal(table.decoded([299, 5], torch.bfloat16), whole[[299, 5]])
    assert not torch.equal(DemoTable("bf16", 160, 4).weight(0, 300), whole)


def test_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for format in ("bf16", "nvfp4"):  # the second in place of the first, its files gone
        assert main(small(tmp_path, "--format", format)) == 0
    index = json.loads((tmp_path / "demo" / "checkpoint" / "model.safetensors.index.json").read_text())
    stored = {path.name for path in (tmp_path / "demo" / "checkpoint").glob("*.safetensors")}
    assert stored == set(index["weight_map"].values())
    printed = capsys.readouterr().out
    assert "equal bit for bit" in printed
    assert re.search("(ngram-ple|-m ngram_ple) embed", printed)  # the program may lie nowhere on the path
    (tmp_path / "demo" / "demo.json").unlink()
    assert main(small(tmp_path)) == 2
    assert "earlier demo's folder" in capsys.readouterr().err
    assert main(small(tmp_path, "--out", str(tmp_path / "words.txt"))) == 2
    assert "words.txt: File exists" in capsys.readouterr().err


WRITTEN = {"demo.json": 10, "text.txt": 100, "tokenizer.json": 5000, "checkpoint": 30_000}


@pytest.mark.parametrize("name", WRITTEN)
def test_full_disk_names_the_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = small(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN[name], limits[1]))
    try:
        assert main(arguments) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err == f"ngram-ple demo: {tmp_path / 'demo' / name}: File too large\n"


def test_next_steps_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of an environment that is not activated are named by their path."""
    beside = Path(sys.executable).parent
    if not (beside / "ngram-ple").exists():
        pytest.skip("ngram-ple is not installed beside this Python")
    for path, named in ((str(beside), "ngram-ple"), ("/usr/bin:/bin", str(beside / "ngram-ple"))):
        monkeypatch.setenv("PATH", path)
        assert main(small(tmp_path)) == 0
        steps = capsys.readouterr().out.split("To try next:\n")[1].splitlines()
        assert [shlex.split(step)[0] for step in steps[:2]] == [named, named]
        assert Path(shlex.split(steps[2])[0]).parent in (Path(), beside)
    for step in (steps[0], steps[2]):
        subprocess.run(["sh", "-c", step], check=True, capture_output=True)


def test_no_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda _: None)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    assert "pip install 'ngram_ple[demo]'" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_real_text_and_tokenizer(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ngram_ple", "demo", "--out", "d", "--rows-per-head", "500", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["embed"]["tokens"] > 50_000
    assert report["embed"]["requests"] > 1000
    config = NGramConfig.from_pretrained(tmp_path / "d" / "checkpoint")
    assert (config.vocab_size, config.eos_token_id) == (129280, 1)
    (tmp_path / "d" / "embeddings.safetensors").unlink()  # half a GiB, which pytest would keep
