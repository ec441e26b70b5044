"""Random batches and tables for the operator tests."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import reference
import torch
from seeds import torch_generator

FORMATS = ("bf16", "fp16", "fp32", "fp8", "fp8-rowwise", "nvfp4")
OUT_DTYPES = ("bf16", "fp16", "fp32")
INT64X3 = (torch.int64, torch.int64, torch.int64)


@dataclass
class Batch:
    """A ragged batch with its plan, as plain lists."""

    input_ids: list[int]
    query_start_loc: list[int]
    contexts: list[list[int]]
    plan: tuple[list[int], list[int], list[int]]
    eos: int
    heads_per_ngram: int

    def expected(self) -> torch.Tensor:
        ids = reference.ngram_ids(
            self.input_ids, self.query_start_loc, self.contexts, self.plan, self.eos, self.heads_per_ngram
        )
        return torch.tensor(ids, dtype=torch.int64).view(len(self.input_ids), len(self.plan[1]))

    def arguments(
        self, device: torch.device, dtypes: tuple[torch.dtype, torch.dtype, torch.dtype] = INT64X3
    ) -> list[torch.Tensor | int]:
        """The eight arguments of ngram_ids."""
        columns = len(self.plan[0]) - 1
        context = torch.tensor(self.contexts, dtype=dtypes[2], device=device).view(-1, columns)
        return [
            torch.tensor(self.input_ids, dtype=dtypes[0], device=device),
            torch.tensor(self.query_start_loc, dtype=dtypes[1], device=device),
            context,
            *(torch.tensor(values, dtype=torch.int64, device=device) for values in self.plan),
            self.eos,
            self.heads_per_ngram,
        ]


def small_plan(ngram_size: int, heads: int, base: int = 11) -> tuple[list[int], list[int], list[int]]:
    sizes = reference.head_sizes(base, (ngram_size - 1) * heads, 0)
    offsets = [sum(sizes[:h]) for h in range(len(sizes))]
    return reference.multipliers(ngram_size, 100, 7, 0), sizes, offsets


def random_batch(rng: random.Random, *, requests: int | None = None, padding: int = 0) -> Batch:
    """Few tokens, so that EOS and repeats are frequent; empty requests included."""
    ngram_size, heads = rng.randint(2, 5), rng.randint(1, 5)
    count = rng.randint(1, 6) if requests is None else requests
    tokens = rng.choice([4, 50, 2**31 - 1])
    eos = rng.randrange(min(tokens, 50))

    def token() -> int:
        return eos if rng.random() < 0.15 else rng.randrange(tokens)

    bounds = [0]
    for _ in range(count):
        bounds.append(bounds[-1] + rng.choice([0, 1, 2, 5, 9]))
    contexts = [[token() for _ in range(ngram_size - 1)] for _ in range(count)]
    ids = [token() for _ in range(bounds[-1] + padding)]
    return Batch(ids, bounds, contexts, small_plan(ngram_size, heads), eos, heads)


@dataclass
class Rows:
    """A table as checkpoints store it."""

    format: str
    head_dim: int
    weight: torch.Tensor
    scale: torch.Tensor | None = None
    global_scale: torch.Tensor | None = None
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, object]:
        return {"format": self.format, "head_dim": self.head_dim, **self.extra}

    @property
    def slots(self) -> torch.Tensor:
        return reference.slots(self.weight, self.scale, self.format)

    def decoded(self, out_dtype: str) -> torch.Tensor:
        if out_dtype == "bytes":
            return self.slots
        return reference.decode(self.weight, self.scale, self.global_scale, self.format, out_dtype)

    def expected(self, ids: torch.Tensor, out_dtype: str, row_start: int = 0) -> torch.Tensor:
        """Rows by id, zeros where there is none."""
        rows = self.decoded(out_dtype)
        local = ids.long() - row_start
        owned = (local >= 0) & (local < len(rows))
        if len(rows) == 0:
            return rows.new_zeros((*ids.shape, rows.shape[1]))
        return torch.where(owned.unsqueeze(-1), rows[local.clamp(0, len(rows) - 1)], rows.new_zeros(()))


def random_rows(
    rng: random.Random,
    format: str,
    head_dim: int,
    rows: int,
    device: torch.device | str = "cpu",
    scale_dtype: torch.dtype = torch.float32,
) -> Rows:
    """Any bits as values and codes; scales near 1e-3, of every sign."""
    generator = torch_generator(rng)

    def some_bytes(width: int) -> torch.Tensor:
        return torch.randint(0, 256, (rows, width), dtype=torch.uint8, generator=generator).to(device)

    def scales(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 1e-3).to(device=device)

    if format in reference.TORCH_DTYPES:
        dtype = reference.TORCH_DTYPES[format]
        return Rows(format, head_dim, some_bytes(head_dim * dtype.itemsize).view(dtype))
    if format == "nvfp4":
        block_scales = some_bytes(head_dim // 16).view(torch.float8_e4m3fn)
        return Rows(format, head_dim, some_bytes(head_dim // 2), block_scales, scales(1))
    weight = some_bytes(head_dim).view(torch.float8_e4m3fn)
    if format == "fp8":
        return Rows(format, head_dim, weight, None, scales(1))
    return Rows(format, head_dim, weight, scales(rows, 1).to(scale_dtype))


def finite_rows(
    rng: random.Random, format: str, head_dim: int, rows: int, device: torch.device | str = "cpu"
) -> Rows:
    """`random_rows` without NaN, as bytes: for tools that compare by value or copy by arithmetic."""
    table = random_rows(rng, format, head_dim, rows, device)
    if format in reference.TORCH_DTYPES:
        generator = torch_generator(rng)
        table.weight = torch.randn((rows, head_dim), generator=generator).to(device, table.weight.dtype)
    elif format != "nvfp4":
        table.weight = table.weight.view(torch.uint8) & 0xBF  # the upper exponents have the NaN
    elif table.scale is not None:
        table.scale = table.scale.view(torch.uint8) & 0x3F
    return table


def allowed(format: str, head_dim: int) -> bool:
    return format != "nvfp4" or head_dim % 16 == 0
