"""N-gram ids on the CPU against two eager ways. Target: T 8192, R 64 at least 500 x padded and 6 x linear."""

from __future__ import annotations

import torch
from baselines import eager_ids
from common import EOS_TOKEN_ID, batches, config, interleaved_us, parser, plan_tensors, report
from ngram_ple import HashPlan, ops

# The padded way holds [R, T, H] ids several times over: left out where that is above this many elements.
PADDED_LIMIT = 64 * 8192
K = 8


def main() -> None:
    """Time every case and print the table."""
    arguments = parser(__doc__).parse_args()
    cases = [(1, 1), (64, 64), (1024, 1), (1024, 64), (8192, 1), (8192, 64), (8192, 256), (65536, 256)]
    plan = plan_tensors(HashPlan.from_config(config()))
    rows = []
    for tokens, requests in cases[:3] if arguments.quick else cases:
        inputs = batches(tokens, requests)

        def call(function, i, inputs=inputs):  # type: ignore[no-untyped-def]
            return function(*inputs[i % len(inputs)], *plan, EOS_TOKEN_ID, K)

        ways = {"ngram_ids": lambda i: call(ops.ngram_ids, i), "linear": lambda i: call(eager_ids.linear, i)}
        if tokens * requests <= PADDED_LIMIT:
            ways["padded"] = lambda i: call(eager_ids.padded, i)
        expected = call(ops.ngram_ids, 0)
        for name, way in ways.items():
            if not torch.equal(way(0), expected):  # type: ignore[no-untyped-call]
                raise SystemExit(f"{name} gives other ids at T {tokens}, R {requests}")
        times = interleaved_us(ways, rounds=9)
        ours = times["ngram_ids"]
        rows.append(
            {
                "T": tokens,
                "R": requests,
                "ngram_ids µs": ours,
                "ns/token": ours * 1e3 / tokens,
                "linear µs": times["linear"],
                "linear x": times["linear"] / ours,
                "padded µs": times.get("padded", "-"),
                "padded x": times["padded"] / ours if "padded" in times else "-",
            }
        )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
