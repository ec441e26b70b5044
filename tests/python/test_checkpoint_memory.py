"""Loading takes the table and little more: growth of the peak after import, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import make_source, small_config
from ngram_ple import HashPlan
from ngram_ple.checkpoint import write_checkpoint

ROWS = 500_000
ALLOWED = 64 << 20
READERS = 8
BLOCKS = READERS * 8 << 20  # rows that are no table's rows as they are pass through a block a thread

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[2])
import torch
from checkpoints import FakeSink
from ngram_ple.checkpoint import TableLoader, open_checkpoint, read_table
from ngram_ple.config import NGramConfig
from ngram_ple.formats import row_format

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

torch.zeros(1 << 20).isfinite().all()  # torch's own pools
before = peak()
checkpoint = open_checkpoint(sys.argv[1])
config = NGramConfig.from_pretrained(checkpoint.config)
stored = checkpoint.table(config)
rows = int(sys.argv[3])
stored.check(rows)
sink = FakeSink(row_format(stored.format, config.head_dim), 0, rows, sys.argv[4] == "direct")
read_table(stored, sink, padded_rows=rows, threads=int(sys.argv[5]))
table = rows * sink.format.slot_bytes
print(peak() - before - table, table)
"""


@pytest.mark.parametrize(
    ("format", "way"), [("bf16", "direct"), ("fp8-rowwise", "blocks"), ("nvfp4", "direct")]
)
def test_peak(tmp_path: Path, format: str, way: str) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's VmHWM")
    head_dim = 160
    small = make_source(format, 1000, head_dim)

    def tiled(tensor: torch.Tensor) -> torch.Tensor:
        codes = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
        return codes.repeat(ROWS // len(tensor), 1).view(tensor.dtype)

    write_checkpoint(
        tmp_path,
        small_config(ple_embed_dim=4 * head_dim, split_ngram_parts=16),
        format=format,
        padded_rows=ROWS,
        weight=tiled(small.weight),
        weight_scale=None if small.weight_scale is None else tiled(small.weight_scale),
        global_scale=small.global_scale,
        max_file_bytes=64 << 20,
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SCRIPT,
            str(tmp_path),
            str(Path(__file__).parent),
            str(ROWS),
            way,
            str(READERS),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    over, table = map(int, done.stdout.split())
    assert table > 40 << 20
    allowed = ALLOWED if way == "direct" else ALLOWED + BLOCKS
    assert over < allowed, f"{over >> 20} MiB more than the table of {table >> 20} MiB"


WHOLE = """
import sys
import torch
from ngram_ple import NGramEmbedding

def held(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(field))

torch.zeros(1 << 20).isfinite().all()  # torch's own pools
before = held("VmRSS")
share = sys.argv[2] or None
module = NGramEmbedding.from_pretrained(sys.argv[1], placement="cpu", share=share, progress=True)
print(held("VmHWM") - before - module.table.nbytes, module.table.nbytes)
"""


@pytest.mark.parametrize("share", ["", "node"])
def test_peak_of_a_module(tmp_path: Path, share: str) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's VmHWM")
    config = small_config(ple_embed_dim=640, split_ngram_parts=16, ngram_vocab_size_base=ROWS // 4)
    rows = HashPlan.from_config(config).padded_rows
    weight = make_source("fp8", 1000, 160).weight.view(torch.uint8).repeat(rows // 1000 + 1, 1)[:rows]
    write_checkpoint(
        tmp_path,
        config,
        format="fp8",
        padded_rows=rows,
        weight=weight.view(torch.float8_e4m3fn),
        global_scale=torch.tensor([0.5]),
        max_file_bytes=32 << 20,
    )
    command = [sys.executable, "-c", WHOLE, str(tmp_path), share]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    over, table = map(int, done.stdout.split())
    assert table > 75 << 20
    assert over < ALLOWED, f"{over >> 20} MiB more than the table of {table >> 20} MiB"
    assert "reading fp8 table: 100%" in done.stderr
