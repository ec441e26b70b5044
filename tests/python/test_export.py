"""Compiled and exported programs and the table's memory: never a constant, never a copy."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from modules import CONFIG, batch, loaded
from ngram_ple import NGramConfig, NGramEmbedding, ops
from reference import assert_same

TABLE_BYTES = 256 << 20
BIG = NGramConfig(
    vocab_size=1000, ple_embed_dim=256, eos_token_id=CONFIG.eos_token_id, ple_layer_ids=(2,),
    heads_per_ngram=2, ngram_vocab_size_base=TABLE_BYTES // (4 * 128),
)  # fmt: skip
"""Four heads of 64 bf16 values, 256 MiB."""


def big_module(placement: str) -> NGramEmbedding:
    module = NGramEmbedding(BIG, placement=placement)
    rows = module.table.slots.shape[0]
    parts = BIG.split_ngram_parts
    size = -(-rows // parts)
    module.load_weights(
        (
            f"ngram_embedding.shard_{part}.weight",
            torch.full((max(0, min(size, rows - part * size)), 64), part, dtype=torch.bfloat16),
        )
        for part in range(parts)
    )
    module.finish_loading()
    return module


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


SCRIPT = """
import resource, sys
import torch
from modules import batch, loaded
from test_export import TABLE_BYTES, big_module

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
