"""A compiled package with the table as an input."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from big_table import BIG, big_module
from modules import batch
from ngram_ple import ops
from reference import assert_same


class Program(torch.nn.Module):
    """What is exported: the table comes as an input."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        *hashing, table = inputs
        return ops.embed(
            *hashing,
            BIG.eos_token_id,
            BIG.heads_per_ngram,
            table,
            format="bf16",
            out_dtype="bf16",
            head_dim=64,
        )  # type: ignore[call-arg, misc, arg-type]


PLAIN_PACKAGE = """
import sys, torch
class Plain(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1
program = torch.export.export(Plain(), (torch.ones(4, 16),))
torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1]))
"""


@pytest.fixture(scope="module")
def packages_load(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Some builds of torch end with SIGSEGV when they load any package, which no test survives."""
    command = [sys.executable, "-c", PLAIN_PACKAGE, str(tmp_path_factory.mktemp("plain") / "plain.pt2")]
    if subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGSEGV:
        pytest.skip("this torch cannot load a package of plain arithmetic")


@pytest.mark.usefixtures("packages_load")
def test_aot_inductor_package(device: torch.device, tmp_path: Path) -> None:
    module = big_module("cpu" if device.type == "cpu" else "device")
    held = (
        module.layer_multipliers,
        module.ngram_heads_vocab_sizes,
        module.ngram_heads_offsets,
        module.table.slots,
    )
    tokens, requests = (
        torch.export.Dim("tokens", min=2, max=4096),
        torch.export.Dim("requests", min=2, max=64),
    )
    boundaries = torch.tensor([0, 3, 8], device=device)
    example = (torch.arange(8, device=device), boundaries, torch.full((2, 2), 7, device=device), *held)
    shapes = ({0: tokens}, {0: requests + 1}, {0: requests}, *[None] * 4)
    program = torch.export.export(Program(), example, dynamic_shapes={"inputs": shapes})
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "embed.pt2"))
    assert Path(package).stat().st_size < 10 << 20
    run = torch._inductor.aoti_load_package(package)
    other = (torch.tensor([5, 7, 2, 2, 900, 3], device=device), torch.tensor([0, 0, 4, 6], device=device))
    context = torch.tensor([[1, 2], [3, 4], [7, 6]], device=device)
    for given in (example[:3], (*other, context), batch(device)):
        assert_same(run(*given, *held), module(*given))
