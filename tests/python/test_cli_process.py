"""The command as a process: streams that are closed or full, signals that end it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_inputs import Inputs, make_inputs
from ngram_ple.cli import embed, main, process
from safetensors import safe_open

MODULE = [sys.executable, "-m", "ngram_ple"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def shell(arguments: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    """Run the command with its streams redirected."""
    command = f"exec {shlex.join(MODULE + arguments)} {redirection}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True)


CLOSED = [">&-", "2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("streams", CLOSED)
def test_closed_streams(streams: str, inputs: Inputs, tmp_path: Path) -> None:
    """What would be printed is dropped; status and result are as ever."""
    out = tmp_path / "out"
    done = shell(inputs.arguments(out), streams)
    assert (done.returncode, done.stderr) == (0, "")
    with safe_open(out, framework="pt") as file:
        assert set(file.keys()) == {"embeddings", "input_ids", "ngram_ids", "query_start_loc"}
    failed = shell(["verify", str(tmp_path / "nothing")], streams)
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == (0 if "2>" in streams else 1)


@pytest.mark.parametrize(
    ("command", "unbuffered"),  # the first write fails, or the last flush
    [("verify {checkpoint}", "1"), ("inspect {checkpoint} --json", ""), ("--version", "")],
)
def test_full_stdout(command: str, unbuffered: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = shell(command.format(checkpoint=inputs.checkpoint).split(), ">/dev/full")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("standard output: No space left on device\n")


def test_full_stderr(tmp_path: Path) -> None:
    assert shell(["verify", str(tmp_path / "nothing")], "2>/dev/full").returncode == 2


def test_missing_streams_in_process(inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["verify", str(inputs.checkpoint)]) == 0
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert main(["verify"]) == 2
    assert main(["--help"]) == 0


@pytest.fixture(autouse=True)
def _ending_signals_are_heard() -> Iterator[None]:
    """``nohup`` ignores SIGHUP, and so would what runs under it."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ending_signal(
    number: signal.Signals,
    inputs: Inputs,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def end(*_: object) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())
        os.kill(os.getpid(), number)
        time.sleep(10)

    monkeypatch.setattr(embed.NGramEmbedding, "forward", end)
    assert main(inputs.arguments(tmp_path / "out")) == 128 + number
    assert seen == [f".out.{os.getpid()}.part"]
    assert list(tmp_path.iterdir()) == []
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"ngram-ple embed: stopped by {number.name}\n")
    assert signal.getsignal(number) is signal.SIG_DFL


def test_handled_signals_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """``nohup`` ignores SIGHUP; a program that calls `main` may have a handler."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with process.ending_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_terminated_process(inputs: Inputs, tmp_path: Path) -> None:
    """SIGTERM from outside, while the command waits for a text that comes through a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = inputs.arguments(tmp_path / "out")
    arguments[arguments.index("--text") + 1] = str(pipe)
    with subprocess.Popen([*MODULE, *arguments], stderr=subprocess.PIPE, text=True) as running:
        with pipe.open("w"):  # opens once the command reads
            running.terminate()
            assert running.stderr is not None
            assert running.stderr.read() == "ngram-ple embed: stopped by SIGTERM\n"
        assert running.wait() == 143
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
