"""The GPU kernels over a table in device memory, against the way public engines do it and the copy floor.

Baselines: a Triton id kernel (8 tokens a program), then one Triton program a row (bf16, nvfp4) or
`F.embedding`, ``.to(bf16)`` and ``* scale`` (fp8). Floor: stored bytes read once and results written once, at
the rate of a large copy in the same run. The run fails when a baseline is more than 15 % slower, relative to
the copy, than it was when the targets were set.
"""

from __future__ import annotations

import argparse
import gc
import sys

import torch
import torch.nn.functional as F
from baselines import triton_kernels
from ngram_ple.benchmark.cases import INPUT_SETS, Model, make_random_table
from ngram_ple.benchmark.operators import Operators
from ngram_ple.benchmark.report import plot, table_text, write_json
from ngram_ple.benchmark.timing import Run, copy_rate, timed_in_turn
from ngram_ple.tables import Table

FORMATS = ["bf16", "fp8", "nvfp4"]
TOKENS = [1, 8, 64, 1024, 8192, 32768]
DEVICE = torch.device("cuda")

# Baselines when the targets were set, us on an H200 whose copy ran at RECORDED_RATE (ids, then lookup).
RECORDED_RATE = 4271e9
RECORDED = {
    ("bf16", 1): 3.7, ("bf16", 64): 4.9, ("bf16", 1024): 13.9, ("bf16", 8192): 89, ("bf16", 32768): 332,
    ("fp8", 1): 10.1, ("fp8", 64): 11.8, ("fp8", 1024): 30.3, ("fp8", 8192): 206, ("fp8", 32768): 767,
    ("nvfp4", 1): 3.7, ("nvfp4", 64): 4.9, ("nvfp4", 1024): 13.9, ("nvfp4", 8192): 90, ("nvfp4", 32768): 334,
}  # fmt: skip
# (least baseline / embed, most embed / floor); None where there is no target.
TARGETS = {
    ("bf16", 8192): (3.5, 1.35), ("bf16", 32768): (None, 1.2),
    ("fp8", 8192): (8, 1.5), ("fp8", 32768): (None, 1.3),
    ("nvfp4", 8192): (4.5, 1.6), ("nvfp4", 32768): (None, 1.5),
    **{("bf16", t): (1.5, None) for t in (1, 8, 64)},
    **{("fp8", t): (3.5, None) for t in (1, 8, 64)},
    **{("nvfp4", t): (1.4, None) for t in (1, 8, 64)},
}  # fmt: skip


def baseline_lookup(operators: Operators) -> Run:
    """Return the public way to look ids up and decode them."""
    table = operators.table
    flat = [ids.flatten() for ids in operators.ids]
    out = [rows.view(-1, table.format.head_dim) for rows in operators.rows]
    name = table.format.name
    if name == "bf16":
        weight = table.slots.view(torch.bfloat16)
        return lambda i: triton_kernels.lookup_bf16(flat[i], weight, out[i])
    assert table.global_scale is not None
    scale = table.global_scale
    if name == "fp8":
        codes = table.slots.view(torch.float8_e4m3fn)
        return lambda i: F.embedding(flat[i], codes).to(torch.bfloat16) * scale.to(torch.bfloat16)
    packed, scales = _apart(table)
    return lambda i: triton_kernels.lookup_nvfp4(flat[i], packed, scales, scale, out[i])


def _apart(table: Table) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales as checkpoints (and public engines) hold them, two tensors."""
    format = table.format
    end = format.scale_offset + format.scale_bytes
    packed = table.slots[:, : format.row_bytes].contiguous()
    return packed, table.slots[:, format.scale_offset : end].contiguous().view(torch.float8_e4m3fn)


def check(operators: Operators, baseline: dict[str, Run]) -> None:
    """Both ways must give the same bits."""
    ids = operators.ids[0].clone()
    operators.ids[0].fill_(-7)
    baseline["ids"](0)
    if not torch.equal(ids, operators.ids[0]):
        raise SystemExit("the baseline's ids differ")
    operators.rows[0].fill_(float("nan"))
    result = baseline["lookup"](0)
    expected = result if isinstance(result, torch.Tensor) else operators.rows[0].clone()
    for way in ("embed", "lookup"):
        operators.rows[0].fill_(float("nan"))
        operators.ways[way](0)
        if not torch.equal(operators.rows[0].view(-1), expected.view(-1)):
            raise SystemExit(f"{way} and its baseline differ for {operators.table.format.name}")


def measure(model: Model, table: Table, tokens: int, rate: float) -> dict[str, object]:
    """Time one format at one batch size."""
    operators = Operators.prepare(model, table, tokens, min(64, tokens))
    config = model.config

    def ids_way(i: int) -> None:
        batch = operators.batches[i]
        triton_kernels.ngram_ids(
            (batch.input_ids, batch.query_start_loc, batch.ngram_context),
            operators.plan, config.eos_token_id, config.heads_per_ngram, operators.ids[i],
        )  # fmt: skip

    lookup_way = baseline_lookup(operators)

    def both(i: int) -> None:
        ids_way(i)
        lookup_way(i)

    check(operators, {"ids": ids_way, "lookup": lookup_way})
    ways = {**operators.ways, "ids base": ids_way, "lookup base": lookup_way, "base": both}
    times = timed_in_turn(ways, DEVICE, INPUT_SETS, rounds=15)
    floor = operators.floor_bytes() / rate * 1e6
    row: dict[str, object] = {"format": table.format.name, "T": tokens, "floor us": floor}
    row |= {f"{name} us": times[name] for name in ways}
    row["base/embed"] = times["base"] / times["embed"]
    row["embed/floor"] = times["embed"] / floor
    row["base vs recorded"] = "-"
    recorded = RECORDED.get((table.format.name, tokens))
    if recorded is not None:
        row["base vs recorded"] = times["base"] / recorded * rate / RECORDED_RATE
    return row


def verdicts(rows: list[dict[str, object]]) -> list[str]:
    """One line a target: what it asks, what came."""
    lines = []
    for row in rows:
        name, tokens = str(row["format"]), int(str(row["T"]))
        if (name, tokens) not in TARGETS:
            continue
        least, most = TARGETS[name, tokens]
        for key, bound, met in (
            ("base/embed", least, least is None or float(str(row["base/embed"])) >= least),
            ("embed/floor", most, most is None or float(str(row["embed/floor"])) <= most),
        ):
            if bound is not None:
                word = "met" if met else "MISSED"
                lines.append(f"{word:6} {name} T {tokens}: {key} {float(str(row[key])):.2f}, target {bound}")
    return lines


@torch.inference_mode()
def main() -> int:
    """Time every case, print table and targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--plot", metavar="FILE", help="also draw them there (PNG)")
    parser.add_argument("--format", action="append", choices=FORMATS)
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument(
        "--base", type=int, default=20_000_000, help="rows of a head (default: the real model's)"
    )
    arguments = parser.parse_args()
    rate = copy_rate(DEVICE)
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, copy {rate / 1e9:.0f} GB/s read + written")
    model = Model(arguments.base)
    rows = []
    for format in arguments.format or FORMATS:
        gc.collect()
        torch.cuda.empty_cache()
        table = make_random_table(model.row_format(format), model.plan.padded_rows, "device", DEVICE)
        rows += [measure(model, table, tokens, rate) for tokens in arguments.tokens or TOKENS]
        del table
    print(table_text(rows))
    print("\n".join(verdicts(rows)))
    if arguments.json:
        write_json(arguments.json, {"device": name, "torch": torch.__version__, "copy bytes/s": rate}, rows)
    if arguments.plot:
        plot(arguments.plot, f"{name}: tables in device memory", rows)
    slow = [
        row for row in rows if isinstance(row["base vs recorded"], float) and row["base vs recorded"] > 1.15
    ]
    for row in slow:
        print(f"the {row['format']} baseline at T {row['T']} is too slow to compare with", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
