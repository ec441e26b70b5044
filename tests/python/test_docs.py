"""The Python in README.md and docs/*.md runs as it is printed, and the commands in them are commands.

A page is one program: a block goes on where the one before ended. ``print(...)  # text`` promises its output.
Blocks below a line ``<!-- needs a GPU -->`` run only where there is one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ngram_ple
import ngram_ple.tables
import pytest
import torch
from cli_inputs import some_requests, write_text, write_tokenizer
from modules import CONFIG, rows_of, tensors_of
from ngram_ple import build_info
from ngram_ple.cli import main
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(<!-- needs a GPU -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def has_gpu() -> bool:
    return torch.cuda.is_available() and bool({"cuda", "hip"} & set(build_info()["backends"]))


def blocks(page: Path, language: str) -> list[tuple[bool, str]]:
    """Whether a block needs a GPU, and the block."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(bool(marked), text) for marked, name, text in found if name == language]


def names_before(page: Path) -> dict[str, Any]:
    """What a page's program takes for granted."""
    if page.name == "howto.md":
        from test_accelerate import tiny_model

        model = tiny_model(torch.bfloat16, torch.device("cpu"), ple_layer_ids=[2])
        return {"model": model, "weights": stored_weights(Path("build/demo/checkpoint"))}
    if page.name != "host_memory.md":
        return {}
    return {
        "NGramEmbedding": ngram_ple.NGramEmbedding,
        "ngram_ple": ngram_ple,
        "folder": "build/demo/checkpoint",
        "config": CONFIG,
        "tensors": tensors_of(rows_of("fp8")).items(),
        "identity": f"documentation {os.getpid()}",
    }


def stored_weights(checkpoint: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The shards of a checkpoint, by names relative to the embedding's prefix."""
    for file in sorted(checkpoint.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if ".ngram_embedding.shard_" in name:
                yield name.rpartition(".ple_embedding.")[2], tensor


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where ``make demo`` was called."""
    folder = tmp_path_factory.mktemp("docs")
    text = write_text(folder / "text.txt", some_requests())
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    files = ["--text", str(text), "--tokenizer", str(tokenizer)]
    demo = str(folder / "build" / "demo")
    assert main(["demo", "--out", demo, "--rows-per-head", "50", *files]) == 0
    return folder


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_python(
    page: Path, work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    names = names_before(page)
    for needs_gpu, block in blocks(page, "python"):
        code = compile(block, str(page), "exec")
        if needs_gpu and not has_gpu():
            continue
        capsys.readouterr()
        exec(code, names)
        promised = [line.split("  # ")[1] for line in block.splitlines() if line.startswith("print(")]
        assert capsys.readouterr().out.splitlines() == promised


COMMANDS = sorted(
    {
        line.removeprefix("$ ")
        for page in PAGES
        for _, block in blocks(page, "")
        for line in block.splitlines()
        if line.removeprefix("$ ").startswith("ngram-ple ")
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The subcommand exists and knows the options."""
    assert main([command.split()[1], "--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    assert set(re.findall(r"--[a-z][a-z-]*", command)) <= known


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links(page: Path) -> None:
    """Links to files of this repository lead somewhere."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def source_text() -> str:
    """Everything that raises, with literals that go on in the next line made one."""
    native = [file for part in ("bindings", "host_memory") for file in (ROOT / "csrc" / part).glob("*.cpp")]
    files = [*(ROOT / "python").rglob("*.py"), *native]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.mark.parametrize(
    "message", re.findall(r"^## `(.*)`$", (ROOT / "docs/faq.md").read_text(encoding="utf-8"), re.MULTILINE)
)
def test_messages_of_the_faq_exist(message: str) -> None:
    source = source_text()
    for part in message.split("…"):
        words = part.strip().strip("()`;:,").strip()
        assert words in source, words
