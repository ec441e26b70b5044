"""Inputs of a benchmark: a model's shape, a table filled with random rows, fresh random tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ngram_ple.config import NGramConfig
from ngram_ple.formats import RowFormat, row_format
from ngram_ple.hash_plan import HashPlan
from ngram_ple.tables import Table, make_table

INPUT_SETS = 4
"""Batches that runs rotate over, so that no run finds its rows in a cache."""


@dataclass(frozen=True)
class Batch:
    """One ragged batch: what `ops.ngram_ids` and `ops.embed` take first."""

    input_ids: torch.Tensor
    query_start_loc: torch.Tensor
    ngram_context: torch.Tensor

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Unpack in the operators' order."""
        return iter((self.input_ids, self.query_start_loc, self.ngram_context))


@dataclass(frozen=True)
class Model:
    """The published Qwen model's shape (H 16, head_dim 160), with heads of about `base` rows."""

    base: int = 20_000_000

    @property
    def config(self) -> NGramConfig:
        """Its configuration."""
        return NGramConfig(
            vocab_size=248320,
            ple_embed_dim=2560,
            eos_token_id=248044,
            ple_layer_ids=(2,),
            ngram_vocab_size_base=self.base,
        )

    @property
    def plan(self) -> HashPlan:
        """Its hash plan."""
        return HashPlan.from_config(self.config)

    def plan_tensors(self, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return multipliers, head sizes and head offsets as operators take them."""
        plan = self.plan
        return (
            torch.tensor(plan.multipliers, device=device),
            torch.tensor(plan.head_sizes, device=device),
            torch.tensor(plan.head_offsets, device=device),
        )

    def row_format(self, name: str) -> RowFormat:
        """Return the geometry of its rows in a format."""
        return row_format(name, self.config.head_dim)


def make_batches(tokens: int, requests: int, device: torch.device | str, seed: int = 0) -> list[Batch]:
    """Make `INPUT_SETS` batches of fresh random tokens in `requests` chunks of nearly equal length."""
    generator = torch.Generator().manual_seed(seed)
    bounds = torch.linspace(0, tokens, requests + 1).round().to(torch.int32).to(device)
    vocab_size = Model().config.vocab_size

    def randint(*shape: int) -> torch.Tensor:
        return torch.randint(0, vocab_size, shape, generator=generator, device="cpu").to(device)

    return [Batch(randint(tokens), bounds, randint(requests, 2)) for _ in range(INPUT_SETS)]


def make_random_table(format: RowFormat, rows: int, placement: str, device: torch.device) -> Table:
    """Allocate a table and fill it with random rows whose values are finite and of ordinary size."""
    table = make_table(placement, format, 0, rows, device)
    pattern = random_slots(format, 1 << 16).to(device)
    for begin in range(0, rows, len(pattern)):
        part = table.slots[begin : begin + len(pattern)]
        part.copy_(pattern[: len(part)])
    if format.has_global_scale:
        table.set_global_scale(0.0123)
    return table


def random_slots(format: RowFormat, rows: int) -> torch.Tensor:
    """Make uint8 ``[rows, slot_bytes]`` of finite values of ordinary size, on the CPU."""
    values = torch.randn((rows, format.head_dim), device="cpu")
    plain = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if format.name in plain:
        return values.to(plain[format.name]).view(torch.uint8)
    slots = torch.zeros((rows, format.slot_bytes), dtype=torch.uint8, device="cpu")
    if format.name == "nvfp4":
        slots[:, : format.row_bytes] = torch.randint(0, 256, (rows, format.row_bytes), dtype=torch.uint8)
        scales = torch.randint(0x28, 0x48, (rows, format.scale_bytes), dtype=torch.uint8)
    else:
        slots[:, : format.row_bytes] = (values * 64).to(torch.float8_e4m3fn).view(torch.uint8)
        scales = torch.rand((rows, 1), device="cpu").add_(0.01).view(torch.uint8)[:, : format.scale_bytes]
    slots[:, format.scale_offset : format.scale_offset + format.scale_bytes] = scales
    return slots
