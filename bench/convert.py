"""Encoding and conversion on the CPU, against eager torch and against plain reading.

- encode: `ops.encode` of bf16 rows that lie in memory, and `ops.row_amax`; eager: the same arithmetic in
  eager torch, a tensor operation a step (bench/baselines/eager_encode.py); the floor is a copy that reads and
  writes as many bytes. Results are compared first, byte for byte.
- convert: `convert_checkpoint` of a bf16 checkpoint whose files are in the page cache: both passes, the error
  sums and the files' way to the disk included; eager: the encoder alone (amax, then rows), given its rows for
  nothing; reads: all files twice by as many threads.

Targets: conversion to nvfp4 at 1 GB of input a second on two cores, encoding 10 times as fast as eager torch;
on a GPU (--device cuda) 60 % of the copy floor.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from baselines import eager_encode
from ngram_ple import HashPlan, NGramConfig, ops
from ngram_ple.benchmark.report import table_text, write_json
from ngram_ple.benchmark.timing import copy_rate, timed_in_turn
from ngram_ple.checkpoint import write_checkpoint
from ngram_ple.checkpoint.read import reading_threads
from ngram_ple.convert import convert_checkpoint
from ngram_ple.encoding import global_scale
from ngram_ple.formats import row_format

HEAD_DIM = 160
FORMATS = ["fp8", "fp8-rowwise", "nvfp4"]


def same_bytes(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Tell whether two tensors hold the same bytes."""
    return torch.equal(got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def encoding(device: torch.device, rows: int) -> list[dict[str, Any]]:
    """Time the operators on rows in memory."""
    values = [(torch.randn(rows, HEAD_DIM, device=device) * 0.02).bfloat16() for _ in range(2)]
    rate = copy_rate(device, (4 << 30) if device.type == "cuda" else (256 << 20), tries=5)
    read = rows * HEAD_DIM * 2
    table: list[dict[str, Any]] = []
    amax = {
        "ours": lambda i: ops.row_amax(values[i % 2]).max(),
        "eager": lambda i: eager_encode.amax(values[i % 2]),
    }
    if not torch.equal(amax["ours"](0), amax["eager"](0)):
        raise SystemExit("row_amax and eager torch disagree")
    times = timed_in_turn(amax, device, 2, rounds=7)
    table.append(_line("amax", times, read, (read + 4 * rows) / rate))
    for format in FORMATS:
        geometry = row_format(format, HEAD_DIM)
        whole = global_scale(amax["ours"](0), format) if geometry.has_global_scale else None
        weight, scale = ops.encode(values[0], whole, format=format, scale_dtype="bf16")

        def encode(i: int, format: str = format, whole: torch.Tensor | None = whole) -> Any:
            return ops.encode(values[i % 2], whole, format=format, scale_dtype="bf16")

        def eager(i: int, format: str = format, whole: torch.Tensor | None = whole) -> Any:
            if whole is None:
                return eager_encode.fp8_rowwise(values[i % 2])
            return (
                eager_encode.fp8(values[i % 2], whole)
                if format == "fp8"
                else eager_encode.nvfp4(values[i % 2], whole)
            )

        expected = eager(0)
        expected = expected if isinstance(expected, tuple) else (expected, scale)
        if not same_bytes(weight, expected[0]) or not same_bytes(scale, expected[1]):
            raise SystemExit(f"encode and eager torch disagree for {format}")
        times = timed_in_turn({"ours": encode, "eager": eager}, device, 2, rounds=7)
        moved = read + weight.nbytes + scale.nbytes
        table.append(_line(f"encode {format}", times, read, moved / rate))
    return table


def _line(name: str, times: dict[str, float], read: int, floor: float) -> dict[str, Any]:
    return {
        "what": name,
        "us": times["ours"],
        "GB/s read": read / times["ours"] / 1e3,
        "eager us": times["eager"],
        "eager x": times["eager"] / times["ours"],
        "% of copy floor": 100 * floor * 1e6 / times["ours"],
    }


def make_checkpoint(folder: Path, nbytes: int) -> None:
    """Write a bf16 table of about `nbytes`: a block of Gaussian rows again and again."""
    config = NGramConfig(
        vocab_size=248320, ple_embed_dim=16 * HEAD_DIM, eos_token_id=248044, ple_layer_ids=(2,),
        ngram_vocab_size_base=nbytes // (2 * HEAD_DIM) // 16, split_ngram_parts=128,
    )  # fmt: skip
    block = (torch.randn(1 << 15, HEAD_DIM) * 0.02).bfloat16()

    def fetch(first: int, last: int) -> torch.Tensor:
        return block.repeat(-(-(last - first) // len(block)), 1)[: last - first]

    rows = HashPlan.from_config(config).padded_rows
    write_checkpoint(folder, config, format="bf16", padded_rows=rows, weight=fetch, max_file_bytes=1 << 30)


def read_twice(folder: Path) -> float:
    """Seconds to read every file twice into one block a thread: what no conversion can beat."""
    block = 2 << 20
    pieces = [
        (file, offset)
        for file in sorted(folder.glob("*.safetensors"))
        for offset in range(0, file.stat().st_size, block)
    ]

    def read(part: list[tuple[Path, int]]) -> None:
        memory = memoryview(bytearray(block))
        for file, offset in part:
            with file.open("rb", buffering=0) as opened:
                os.preadv(opened.fileno(), [memory], offset)

    threads = reading_threads()
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(2):
            list(pool.map(read, [pieces[i::threads] for i in range(threads)]))
    return time.perf_counter() - began


def eager_conversion(rows: int, to: str) -> float:
    """Seconds a row of amax and encoding by eager torch, in blocks, rows given."""
    values = (torch.randn(rows, HEAD_DIM) * 0.02).bfloat16()
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        if to == "fp8-rowwise":
            eager_encode.fp8_rowwise(values)
        else:
            whole = global_scale(eager_encode.amax(values), to)
            eager_encode.fp8(values, whole) if to == "fp8" else eager_encode.nvfp4(values, whole)
        best = min(best, time.perf_counter() - began)
    return best / rows


def conversion(folder: Path, gigabytes: float, rounds: int) -> list[dict[str, Any]]:
    """Time whole conversions of a checkpoint in the page cache."""
    source = folder / "source"
    make_checkpoint(source, int(gigabytes * 1e9))
    nbytes = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    read_twice(source)
    table = []
    for to in ("nvfp4", "fp8", "fp8-rowwise", "bf16"):
        times, reads = [], []
        for _ in range(rounds):
            reads.append(read_twice(source))
            began = time.perf_counter()
            convert_checkpoint(source, folder / "out", to)
            times.append(time.perf_counter() - began)
            shutil.rmtree(folder / "out")
        best = sorted(times)[len(times) // 2]
        line = {
            "to": to,
            "s": best,
            "GB/s of input": nbytes / best / 1e9,
            "2 reads GB/s": nbytes / min(reads) / 1e9,
        }
        if to != "bf16":
            eager = eager_conversion(1 << 16, to) * nbytes / (2 * HEAD_DIM)
            line |= {"eager encoder s": eager, "eager x": eager / best}
        else:
            line |= {"eager encoder s": "-", "eager x": "-"}
        table.append(line)
    return table


@torch.inference_mode()
def main() -> None:
    """Time everything and print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--quick", action="store_true", help="small: does it run?")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="cuda: the operators alone")
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, help="for the checkpoints (default: a temporary one)"
    )
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rows = 1 << 12 if arguments.quick else (1 << 22 if device.type == "cuda" else 1 << 18)
    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {load:.1f}")
    figures = encoding(device, rows)
    print(table_text(figures))
    if device.type == "cpu":
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            converted = conversion(Path(folder), 0.05 if arguments.quick else 2, 1 if arguments.quick else 3)
        print(table_text(converted))
        figures += converted
    if arguments.json:
        write_json(arguments.json, {"threads": torch.get_num_threads(), "load": load}, figures)


if __name__ == "__main__":
    main()
