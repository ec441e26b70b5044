"""``ngram-ple embed`` started by torchrun: the same file as from one process, written by the first rank."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_inputs import make_inputs
from ngram_ple.cli import main
from ngram_ple.cli.ranks import cut


def torchrun(ranks: int, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *launcher, "-m", "ngram_ple", *arguments],
        capture_output=True, text=True, timeout=240, env=environment, check=False,
    )  # fmt: skip


def test_ranks_write_what_one_process_writes(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path, "nvfp4")
    assert main([*inputs.arguments(tmp_path / "one.safetensors"), "--batch-tokens", "100"]) == 0
    done = torchrun(3, [*inputs.arguments(tmp_path / "three.safetensors", "--json"), "--batch-tokens", "100"])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)  # the first rank alone
    assert told["ranks"] == 3
    assert told["distinct_rows"] > 0
    one, three = (tmp_path / f"{name}.safetensors" for name in ("one", "three"))
    assert one.read_bytes() == three.read_bytes()
    again = torchrun(2, inputs.arguments(three))
    assert again.returncode != 0
    assert "--out must be a new file" in again.stderr
    assert "ngram_ple/" not in again.stderr  # sentences, no traceback of ours


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_parts_are_whole_and_even(ranks: int) -> None:
    for count in range(12):
        parts = cut(7, 7 + count, ranks)
        assert [parts[0][0], parts[-1][1], len(parts)] == [7, 7 + count, ranks]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
        assert max(end - begin for begin, end in parts) == -(-count // ranks)
