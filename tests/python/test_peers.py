"""lookup_peers and embed_peers: tables in blocks, against the same rows in one."""

from __future__ import annotations

import random

import pytest
import torch
from batches import FORMATS, OUT_DTYPES, random_batch, random_rows
from ngram_ple import ops, peer_ops
from reference import assert_same
from seeds import for_seeds


def in_blocks(slots: torch.Tensor, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Equal blocks in memory of their own, the last ones padded, and their addresses."""
    rows = -(-len(slots) // count)
    padded = torch.cat([slots, slots.new_full((count * rows - len(slots), slots.shape[1]), 0xA5)])
    blocks = [block.clone() for block in padded.split(rows)]
    return blocks, torch.tensor([block.data_ptr() for block in blocks], device=slots.device)


@pytest.mark.parametrize("format", FORMATS)
@for_seeds(12)
def test_rows_are_those_of_one_block(format: str, device: torch.device, rng: random.Random) -> None:
    batch = random_batch(rng)
    rows = sum(batch.plan[1])
    table = random_rows(rng, format, 16 * rng.randint(1, 4), rows, device)
    blocks, addresses = in_blocks(table.slots, rng.randint(1, 5))
    scale = table.global_scale
    for out_dtype in (*OUT_DTYPES, "bytes"):
        how = {"format": format, "out_dtype": out_dtype, "head_dim": table.head_dim}
        got = peer_ops.embed_peers(
            *batch.arguments(device), blocks[0], addresses, scale, num_rows=rows, **how
        )
        assert_same(got, ops.embed(*batch.arguments(device), table.slots, None, scale, **how))
        ids = torch.tensor([[rng.randint(-2, rows + 1) for _ in range(5)] for _ in range(7)], device=device)
        ids = ids.to(rng.choice([torch.int32, torch.int64]))
        got = peer_ops.lookup_peers(ids, blocks[0], addresses, scale, num_rows=rows, **how)
        assert_same(got, ops.lookup(ids, table.slots, None, scale, **how))


def test_what_is_refused(device: torch.device) -> None:
    table = random_rows(random.Random(0), "bf16", 16, 10, device)
    blocks, addresses = in_blocks(table.slots, 2)
    ids = torch.zeros(3, dtype=torch.int64, device=device)

    def call(block: torch.Tensor, at: torch.Tensor, num_rows: int) -> torch.Tensor:
        return peer_ops.lookup_peers(
            ids, block, at, None, format="bf16", out_dtype="bf16", head_dim=16, num_rows=num_rows
        )

    call(blocks[0], addresses, 0)
    with pytest.raises(RuntimeError, match="num_rows must be within 0 and the rows of 2 blocks of 5, got 11"):
        call(blocks[0], addresses, 11)
    with pytest.raises(RuntimeError, match=r"block_addresses must be int64 \[blocks\], got int32"):
        call(blocks[0], addresses.int(), 10)
    with pytest.raises(RuntimeError, match="block must hold a row"):
        call(blocks[0][:0], addresses, 0)


def test_opcheck(device: torch.device) -> None:
    rng = random.Random(1)
    batch = random_batch(rng)
    rows = sum(batch.plan[1])
    table = random_rows(rng, "bf16", 16, rows, device)
    table.weight = torch.randn(rows, 16).to(device, torch.bfloat16)
    blocks, addresses = in_blocks(table.slots, 3)
    how = {"format": "bf16", "out_dtype": "bf16", "head_dim": 16, "num_rows": rows}
    torch.library.opcheck(
        torch.ops.ngram_ple.embed_peers, (*batch.arguments(device), blocks[0], addresses, None), how
    )
    ids = torch.arange(6, device=device)
    torch.library.opcheck(torch.ops.ngram_ple.lookup_peers, (ids, blocks[0], addresses, None), how)
