"""N-gram ids on the CPU against two eager ways.

Target: at T 8192, R 64 at least 500 x the padded way and 6 x the O(T) one, on two cores. Ratios are those of
the `out` form, which an engine calls; the form that allocates its result is shown beside it.
"""

from __future__ import annotations

import argparse
import functools

import torch
from baselines import eager_ids
from ngram_ple import ops
from ngram_ple.benchmark.cases import INPUT_SETS, Model, make_batches
from ngram_ple.benchmark.report import table_text, write_json
from ngram_ple.benchmark.timing import timed_in_turn

CASES = [(1, 1), (64, 64), (1024, 1), (1024, 64), (8192, 1), (8192, 64), (8192, 256), (65536, 256)]
# The padded way holds [R, T, H] ids several times over: left out above this many elements of [R, T].
PADDED_LIMIT = 64 * 8192


@torch.inference_mode()
def main() -> None:
    """Time every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--quick", action="store_true", help="small cases only: does it run?")
    arguments = parser.parse_args()
    model = Model()
    plan = (*model.plan_tensors("cpu"), model.config.eos_token_id, model.config.heads_per_ngram)
    rows = []
    for tokens, requests in CASES[:3] if arguments.quick else CASES:
        batches = make_batches(tokens, requests, "cpu")

        def call(function, i, batches=batches):  # type: ignore[no-untyped-def]
            return function(*batches[i], *plan)

        result = torch.empty((tokens, model.config.num_heads), dtype=torch.int64)
        ways = {"allocating": functools.partial(call, ops.ngram_ids)}
        ways["out"] = functools.partial(
            call, functools.partial(torch.ops.ngram_ple.ngram_ids.out, out=result)
        )
        ways["linear"] = functools.partial(call, eager_ids.linear)
        if tokens * requests <= PADDED_LIMIT:
            ways["padded"] = functools.partial(call, eager_ids.padded)
        expected = call(ops.ngram_ids, 0)
        for name, way in ways.items():
            got = way(0)
            if not torch.equal(result if name == "out" else got, expected):
                raise SystemExit(f"{name} gives other ids at T {tokens}, R {requests}")
        times = timed_in_turn(ways, torch.device("cpu"), INPUT_SETS, rounds=15)
        ours = times["out"]
        rows.append(
            {
                "T": tokens,
                "R": requests,
                "ngram_ids.out us": ours,
                "ngram_ids us": times["allocating"],
                "ns/token": ours * 1e3 / tokens,
                "GB/s written": tokens * model.config.num_heads * 8 / ours / 1e3,
                "linear us": times["linear"],
                "linear x": times["linear"] / ours,
                "padded us": times.get("padded", "-"),
                "padded x": times["padded"] / ours if "padded" in times else "-",
            }
        )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(table_text(rows))
    if arguments.json:
        write_json(arguments.json, {"threads": torch.get_num_threads()}, rows)


if __name__ == "__main__":
    main()
