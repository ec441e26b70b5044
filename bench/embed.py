"""`embed` and `lookup` on the CPU over a table of at least 4 GiB, against eager torch and a plain C++ gather.

Targets at T 8192 on two cores: embed at least 85 % of the plain gather's rate (rows a second, bf16), at
least 1.3 x index_select (bf16) and 4 x index_select + eager dequantisation (fp8, nvfp4). The baselines and
the limit are given their ids; `embed` hashes them.
"""

from __future__ import annotations

import argparse

import torch
from baselines.eager_rows import select_and_decode
from baselines.gather import plain_gather
from ngram_ple.benchmark.cases import INPUT_SETS, Model, make_random_table
from ngram_ple.benchmark.operators import Operators
from ngram_ple.benchmark.report import table_text, write_json
from ngram_ple.benchmark.timing import timed_in_turn
from ngram_ple.tables import Table

TABLE_BYTES = 4 << 30
FORMATS = ["bf16", "fp8", "nvfp4"]


def stored(table: Table) -> torch.Tensor:
    """Return the rows as a checkpoint has them, for the eager way."""
    if table.format.name == "bf16":
        return table.slots.view(torch.bfloat16)
    if table.format.name == "fp8":
        return table.slots.view(torch.float8_e4m3fn)
    return table.slots[:, : table.format.row_bytes + table.format.scale_bytes].contiguous()


def measure(model: Model, table: Table, weight: torch.Tensor, tokens: int) -> dict[str, object]:
    """Time one batch size."""
    operators = Operators.prepare(model, table, tokens, max(1, tokens // 128))
    ids = [one.flatten() for one in operators.ids]
    scale = torch.ones(1) if table.global_scale is None else table.global_scale
    eager = select_and_decode(table.format.name, weight, len(ids[0]), scale)
    gathered = torch.empty((len(ids[0]), table.format.slot_bytes), dtype=torch.uint8)

    operators.embed(0)
    if not torch.equal(operators.rows[0].view(len(ids[0]), -1), eager(ids[0])):
        raise SystemExit(f"embed and eager torch disagree for {table.format.name} at T {tokens}")
    ways = {
        "embed": operators.embed,
        "lookup": operators.lookup,
        "eager": lambda i: eager(ids[i]),
        "gather": lambda i: plain_gather(table.slots, ids[i], gathered),
    }
    times = timed_in_turn(ways, torch.device("cpu"), INPUT_SETS, rounds=11 if tokens >= 1024 else 51)
    return {
        "format": table.format.name,
        "T": tokens,
        "table GiB": table.nbytes / 2**30,
        "embed us": times["embed"],
        "GB/s read": len(ids[0]) * table.format.slot_bytes / times["embed"] / 1e3,
        "lookup us": times["lookup"],
        "gather us": times["gather"],
        "% of gather": 100 * times["gather"] / times["embed"],
        "eager us": times["eager"],
        "eager x": times["eager"] / times["embed"],
    }


@torch.inference_mode()
def main() -> None:
    """Time every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--quick", action="store_true", help="a small table and small T: does it run?")
    parser.add_argument("--format", action="append", choices=FORMATS)
    arguments = parser.parse_args()
    tokens = [1, 64] if arguments.quick else [1, 16, 64, 1024, 8192, 65536]
    table_bytes = 64 << 20 if arguments.quick else TABLE_BYTES
    rows = []
    for name in arguments.format or FORMATS:
        slot_bytes = Model().row_format(name).slot_bytes
        model = Model(base=table_bytes // slot_bytes // Model().config.num_heads + 1)
        table = make_random_table(model.row_format(name), model.plan.padded_rows, "cpu", torch.device("cpu"))
        weight = stored(table)
        rows += [measure(model, table, weight, count) for count in tokens]
        del table, weight
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(table_text(rows))
    if arguments.json:
        write_json(arguments.json, {"threads": torch.get_num_threads()}, rows)


if __name__ == "__main__":
    main()
