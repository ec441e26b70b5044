"""NGRAM_PLE_CHECK=1 on a GPU: faults that only the GPU can see become errors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs_gpu

PROGRAM = """
import torch
from ngram_ple import ops

plan = [torch.tensor(v, device="cuda") for v in ([3, 5, 7], [11, 13], [0, 11])]
ids = torch.arange(6, device="cuda")
bounds = torch.tensor([0, 4, 6], device="cuda")
context = torch.zeros(2, 2, dtype=torch.int64, device="cuda")
out = torch.empty(6, 2, dtype=torch.int64, device="cuda")

def fault(run):
    try:
        run()
    except RuntimeError as error:
        return str(error)
    return ""

def hash_into(out):
    torch.ops.ngram_ple.ngram_ids.out(ids, bounds, context, *plan, 1, 1, out=out)

assert fault(lambda: hash_into(out)) == ""
bounds.copy_(torch.tensor([0, 7, 6]))
assert "must not decrease" in fault(lambda: hash_into(out))
bounds.copy_(torch.tensor([0, 4, 6]))
assert fault(lambda: hash_into(out)) == ""

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    hash_into(out)
graph.replay()
torch.cuda.synchronize()
assert fault(lambda: hash_into(out)) == ""
bounds.copy_(torch.tensor([0, 4, 9]))
graph.replay()
torch.cuda.synchronize()
bounds.copy_(torch.tensor([0, 4, 6]))
text = fault(lambda: hash_into(out))
assert "must end within input_ids [6], got 9" in text and "earlier call" in text, text
assert fault(lambda: hash_into(out)) == ""

table = torch.zeros(5, 4, device="cuda")
how = {"format": "fp32", "out_dtype": "fp32", "head_dim": 4}
assert fault(lambda: ops.lookup(torch.tensor([0, 4, -1], device="cuda"), table, **how)) == ""
assert "got 5 at index 1" in fault(lambda: ops.lookup(torch.tensor([0, 5], device="cuda"), table, **how))
assert fault(lambda: ops.lookup(torch.tensor([0, 5], device="cuda"), table, row_end=5, **how)) == ""
print("done")
"""


def test_faults_are_raised_at_once_or_at_the_next_call() -> None:
    environment = {**os.environ, "NGRAM_PLE_CHECK": "1"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert run.stdout == "done\n", run.stderr
