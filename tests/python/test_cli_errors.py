"""What goes wrong ends in one sentence, exit status 2, and nothing half-written."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_inputs import VOCAB, Inputs, make_inputs, write_text, write_tokenizer
from ngram_ple.cli import embed, main


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(tmp_path_factory.mktemp("made"))


@pytest.fixture
def inputs(made: Inputs, tmp_path: Path) -> Inputs:
    """A copy that a test may spoil."""
    folder = tmp_path / "inputs"
    shutil.copytree(made.folder, folder)
    return Inputs(
        folder,
        folder / "checkpoint",
        folder / "text.txt",
        folder / "tokenizer.json",
        made.source,
        made.requests,
    )


def write(text: bytes) -> Callable[[Inputs], object]:
    return lambda inputs: inputs.text.write_bytes(text)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def edit_config(inputs: Inputs, **fields: object) -> None:
    file = inputs.checkpoint / "config.json"
    config = json.loads(file.read_text())
    config["text_config"].update(fields)
    file.write_text(json.dumps(config))


SPOILED: dict[str, tuple[Callable[[Inputs], object], list[str]]] = {
    "empty text": (write(b""), ["{text}: must have a paragraph", "nothing"]),
    "blank text": (write(b" \n\t\r\n\n"), ["{text}: must have a paragraph"]),
    "mark alone": (write(b"\xef\xbb\xbf"), ["{text}: must have a paragraph"]),
    "not UTF-8": (write(b"w1\n\xffw2"), ["{text}: must be UTF-8 text", "0xff at offset 3"]),
    "missing text": (lambda i: i.text.unlink(), ["{text}: No such file"]),
    "folder as text": (lambda i: replace_by_folder(i.text), ["{text}: Is a directory"]),
    "missing tokenizer": (lambda i: i.tokenizer.unlink(), ["{tokenizer}: No such file"]),
    "folder as tokenizer": (lambda i: replace_by_folder(i.tokenizer), ["{tokenizer}: Is a directory"]),
    "no tokenizer": (lambda i: i.tokenizer.write_text("{}"), ["{tokenizer}: must be a tokenizer.json"]),
    "binary tokenizer": (lambda i: i.tokenizer.write_bytes(b"\xff\x00"), ["{tokenizer}: must be a"]),
    "another vocabulary": (
        lambda i: (write_tokenizer(i.tokenizer, VOCAB + 5), write_text(i.text, [[1], [2, VOCAB + 3]])),
        [f"vocab_size {VOCAB}", f"got {VOCAB + 3} ('w{VOCAB + 3}')", "{tokenizer}", "paragraph 2"],
    ),
    "missing checkpoint": (lambda i: shutil.rmtree(i.checkpoint), ["{checkpoint}: must be a checkpoint"]),
    "missing config": (lambda i: (i.checkpoint / "config.json").unlink(), ["config.json: No such file"]),
    "wrong config": (lambda i: edit_config(i, ngram_size=1), ["ngram_size must be within 2..64, got 1"]),
    "missing shards": (
        lambda i: min(i.checkpoint.glob("*.safetensors")).unlink(),
        ["model-00001-of", "No such file"],
    ),
}


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run, expect a one-sentence failure, return the sentence."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("ngram-ple embed: ")
    return printed.err


@pytest.mark.parametrize("what", SPOILED)
def test_spoiled_input(what: str, inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, expected = SPOILED[what]
    spoil(inputs)
    sentence = fails(inputs.arguments(tmp_path / "out"), capsys)
    for part in expected:
        names = {"text": inputs.text, "tokenizer": inputs.tokenizer, "checkpoint": inputs.checkpoint}
        assert part.format(**names) in sentence
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]


def test_out_that_cannot_be(inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken"
    taken.write_text("precious")
    cases = [
        (taken, "exists; --force overwrites it"),
        (tmp_path, "must be a regular file"),
        (Path("/dev/null"), "must be a regular file"),
        (tmp_path / "nowhere" / "out", "in a folder that exists"),
        (taken / "out", "in a folder that exists"),
        (inputs.checkpoint / "out.safetensors", "outside the checkpoint folder"),
        (inputs.checkpoint / "more" / "deep" / "out", "outside the checkpoint folder"),
        (tmp_path / "link" / "out", "outside the checkpoint folder"),
    ]
    (inputs.checkpoint / "more" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(inputs.checkpoint / "more")
    for out, expected in cases:
        assert expected in fails(inputs.arguments(out), capsys)
    for read in (inputs.text, inputs.tokenizer):
        assert "must not be a file that is read" in fails(inputs.arguments(read, "--force"), capsys)
    assert "File name too long" in fails(inputs.arguments(tmp_path / ("x" * 255)), capsys)
    shard = min(inputs.checkpoint.glob("*.safetensors"))
    blob = shard.rename(tmp_path / "blob")  # as in a cache of the Hugging Face hub
    shard.symlink_to(blob)
    assert "must not be a file that is read" in fails(inputs.arguments(blob, "--force"), capsys)
    assert taken.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blob", "inputs", "link", "taken"]


def test_folder_that_cannot_be_written(
    inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # root may write everywhere, so the answer is made up
    monkeypatch.setattr(embed.os, "access", lambda *_: False)
    assert "in a folder that can be written to" in fails(inputs.arguments(tmp_path / "out"), capsys)


def test_full_disk(
    inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))  # the file takes three times that
    try:
        sentence = fails(inputs.arguments(out, "--force"), capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sentence == f"ngram-ple embed: {out}: File too large\n"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    assert "but its disk has 4.9 KiB left" in fails(inputs.arguments(out, "--force"), capsys)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs", "out"]


def test_interrupt(
    inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(embed.NGramEmbedding, "forward", interrupt)
    assert main(inputs.arguments(tmp_path / "out")) == 130
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "ngram-ple embed: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]


OUT_OF_MEMORY = [
    MemoryError(),
    RuntimeError("[x] can't allocate memory: 9 bytes"),
    RuntimeError("embed: could not allocate the result, float32 [9] on cpu: torch_call_dispatcher( x) API"),
    RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
    RuntimeError("std::bad_alloc"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_too_little_memory(
    error: Exception,
    inputs: Inputs,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(embed.NGramEmbedding, "from_pretrained", fail)
    sentence = fails(inputs.arguments(tmp_path / "out"), capsys)
    assert "not enough memory" in sentence
    assert "torch_call" not in sentence


def test_without_the_tokenizers_package(
    inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "pip install 'ngram_ple[cli]'" in fails(inputs.arguments(tmp_path / "out"), capsys)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--batch-tokens", "0"],
        ["--batch-tokens", "99999999999999999999"],
        ["--layer", "-1"],
        ["--threads", "x"],
        ["--threads", "0"],
        ["--threads", "1025"],
        ["--threads", "99999999999999999999"],
        ["--threads", "9" * 5000],
        ["--dtype", "fp8"],
        ["--placement", "moon"],
    ],
)
def test_wrong_options(
    wrong: list[str], inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(inputs.arguments(tmp_path / "out", *wrong)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    last = printed.err.splitlines()[-1]
    assert wrong[0] in last
    assert len(last) < 250


def test_many_threads(inputs: Inputs, tmp_path: Path) -> None:
    """A process of its own: threads stay."""
    arguments = inputs.arguments(tmp_path / "out", "--threads", "1024", "--json")
    done = subprocess.run([sys.executable, "-m", "ngram_ple", *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_layer_that_is_none(inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "layer must be an index" in fails(inputs.arguments(tmp_path / "out", "--layer", "1"), capsys)


def test_warning_is_a_line(inputs: Inputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(inputs, ple_embedding_dtype="nvfp4")
    assert main(inputs.arguments(tmp_path / "out", "--json")) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["format"] == "bf16"
    assert printed.err.startswith("ngram-ple embed: warning: ")
    assert printed.err.count("\n") == 1
