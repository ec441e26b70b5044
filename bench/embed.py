"""`embed` and `lookup` on the CPU over a table of at least 4 GiB, against eager torch and a plain C++ gather.

Targets at T 8192 on two cores: embed at least 85 % of the plain gather's rate (rows a second, bf16), at
least 1.3 x index_select (bf16) and 4 x index_select + eager dequantisation (fp8, nvfp4). The baselines and
the limit are given their ids; `embed` hashes them.
"""

from __future__ import annotations

import torch
from baselines.eager_rows import select_and_decode
from baselines.gather import plain_gather
from common import (
    EOS_TOKEN_ID,
    HEAD_DIM,
    HEADS,
    batches,
    config,
    interleaved_us,
    parser,
    plan_tensors,
    report,
)
from ngram_ple import HashPlan, ops, row_format
from ngram_ple.tables import CpuTable

TABLE_BYTES = 4 << 30
K = 8


def fill(slots: torch.Tensor, format: str) -> None:
    """Random codes, scales and values that are finite and of ordinary size."""
    flat = slots.flatten()
    pattern = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8)
    if format == "bf16":
        pattern = torch.randn(1 << 19).to(torch.bfloat16).view(torch.uint8)
    elif format == "fp8":
        pattern &= 0xBF  # no NaN
    for begin in range(0, flat.numel(), pattern.numel()):
        part = flat[begin : begin + pattern.numel()]
        part.copy_(pattern[: part.numel()])
    if format == "nvfp4":
        slots[:, HEAD_DIM // 2 : HEAD_DIM // 2 + HEAD_DIM // 16] &= 0x7F
        slots[:, HEAD_DIM // 2 : HEAD_DIM // 2 + HEAD_DIM // 16].clamp_(8, 0x70)


def stored(table: CpuTable) -> torch.Tensor:
    """Return the same rows as a checkpoint would hold them, for the eager baseline."""
    if table.format.name == "bf16":
        return table.slots.view(torch.bfloat16)
    if table.format.name == "fp8":
        return table.slots.view(torch.float8_e4m3fn)
    return table.slots[:, : table.format.row_bytes + table.format.scale_bytes].contiguous()


def run_format(name: str, tokens: list[int], table_bytes: int) -> list[dict[str, object]]:
    """Every T for one format."""
    format = row_format(name, HEAD_DIM)
    base = max(1000, table_bytes // format.slot_bytes // HEADS)
    settings = config(base)
    hash_plan = HashPlan.from_config(settings)
    plan = plan_tensors(hash_plan)
    table = CpuTable(format, 0, hash_plan.padded_rows)
    fill(table.slots, name)
    weight = stored(table)
    scale = torch.tensor([0.0123])
    table.global_scale = scale if format.has_global_scale else None
    rows: list[dict[str, object]] = []
    for count in tokens:
        inputs = batches(count, max(1, count // 128))
        ids = [ops.ngram_ids(*batch, *plan, EOS_TOKEN_ID, K).flatten() for batch in inputs]
        eager = select_and_decode(name, weight, count * HEADS, scale)
        gathered = torch.empty((count * HEADS, format.slot_bytes), dtype=torch.uint8)
        out = torch.empty((count, HEADS * HEAD_DIM), dtype=torch.bfloat16)

        def embed(i, out=out, inputs=inputs):  # type: ignore[no-untyped-def]
            torch.ops.ngram_ple.embed.out(
                *inputs[i % len(inputs)], *plan, EOS_TOKEN_ID, K, table.slots, None, table.global_scale,
                format=name, out_dtype="bf16", head_dim=HEAD_DIM, out=out,
            )  # fmt: skip

        def lookup(i, out=out, ids=ids):  # type: ignore[no-untyped-def]
            torch.ops.ngram_ple.lookup.out(
                ids[i % len(ids)], table.slots, None, table.global_scale,
                format=name, out_dtype="bf16", head_dim=HEAD_DIM, out=out.view(-1, HEAD_DIM),
            )  # fmt: skip

        embed(0)
        if not torch.equal(out.view(-1, HEAD_DIM), eager(ids[0])):
            raise SystemExit(f"embed and eager torch disagree for {name} at T {count}")
        times = interleaved_us(
            {
                "embed": embed,
                "lookup": lookup,
                "eager": lambda i, eager=eager, ids=ids: eager(ids[i % len(ids)]),
                "gather": lambda i, ids=ids, out=gathered: plain_gather(table.slots, ids[i % len(ids)], out),
            },
            rounds=11 if count >= 1024 else 51,
        )
        rows.append(
            {
                "format": name,
                "T": count,
                "table GiB": table.nbytes / 2**30,
                "embed µs": times["embed"],
                "GB/s read": count * HEADS * format.slot_bytes / times["embed"] / 1e3,
                "lookup µs": times["lookup"],
                "gather µs": times["gather"],
                "% of gather": 100 * times["gather"] / times["embed"],
                "eager µs": times["eager"],
                "eager x": times["eager"] / times["embed"],
            }
        )
    return rows


def main() -> None:
    """Time every case and print the table."""
    options = parser(__doc__)
    options.add_argument("--format", action="append", choices=["bf16", "fp8", "nvfp4"])
    arguments = options.parse_args()
    tokens = [1, 64] if arguments.quick else [1, 16, 64, 1024, 8192, 65536]
    table_bytes = 64 << 20 if arguments.quick else TABLE_BYTES
    rows = []
    for name in arguments.format or ["bf16", "fp8", "nvfp4"]:
        rows += run_format(name, tokens, table_bytes)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
