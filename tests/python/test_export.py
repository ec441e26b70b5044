"""Compiled programs and the table's memory: never a constant, never a copy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from big_table import TABLE_BYTES, big_module
from modules import batch, loaded
from ngram_ple import NGramEmbedding
from reference import assert_same

SCRIPT = """
import resource, sys
import torch
from modules import batch, loaded
from big_table import TABLE_BYTES, big_module

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

device = torch.device("cpu")
first = torch.compile(loaded(device), fullgraph=True, dynamic=True)
first(*batch(device))  # the compiler's own memory
module = big_module("cpu")
before = peak()
assert before > TABLE_BYTES, before
compiled = torch.compile(lambda *given: module(*given) * 2, fullgraph=True, dynamic=True)
assert torch.equal(compiled(*batch(device)), module(*batch(device)) * 2)
grown = peak() - before
assert grown < TABLE_BYTES / 4, grown
"""


def test_compiling_copies_no_table() -> None:
    """Peak memory of a process of its own, as the kernel counts it."""
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r})\n{SCRIPT}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.needs_gpu
@pytest.mark.parametrize("placement", ["device", "pinned"])
@torch.inference_mode()
def test_graphs_copy_no_table(placement: str) -> None:
    """CUDA graphs copy what they take for inputs that change."""
    module, device = big_module(placement), torch.device("cuda", 0)

    def grown_by(module: NGramEmbedding) -> int:
        torch._dynamo.reset()
        compiled = torch.compile(lambda *given: module(*given) * 2, fullgraph=True, mode="reduce-overhead")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            assert_same(compiled(*batch(device)), module(*batch(device)) * 2)
        return torch.cuda.max_memory_reserved() - before

    # The compiler's own memory: what it clears the cache with (60 MiB on an H200) while it times kernels.
    own = grown_by(loaded(device))
    assert grown_by(module) - own < TABLE_BYTES / 4
