"""The README's Python runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from cli_inputs import some_requests, write_text, write_tokenizer
from ngram_ple import build_info
from ngram_ple.cli import main


def has_gpu() -> bool:
    return torch.cuda.is_available() and bool({"cuda", "hip"} & set(build_info()["backends"]))


README = Path(__file__).resolve().parents[2] / "README.md"


def test_snippets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = write_text(tmp_path / "text.txt", some_requests())
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    files = ["--text", str(text), "--tokenizer", str(tokenizer)]
    assert main(["demo", "--out", "build/demo", "--rows-per-head", "50", *files]) == 0
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert snippets
    names: dict[str, object] = {}  # a snippet may go on where the one before ended
    for snippet in snippets:
        if 'placement="pinned"' in snippet and not has_gpu():
            continue
        capsys.readouterr()
        exec(compile(snippet, str(README), "exec"), names)
        promised = [line.split("  # ")[1] for line in snippet.splitlines() if line.startswith("print(")]
        assert capsys.readouterr().out.splitlines() == promised
