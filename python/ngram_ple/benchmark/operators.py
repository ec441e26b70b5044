"""`ngram_ids`, `lookup` and `embed` over one table: the calls a benchmark times, and their floor."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ngram_ple.benchmark.cases import INPUT_SETS, Batch, Model, make_batches
from ngram_ple.benchmark.timing import Run
from ngram_ple.tables import Table

OUT_DTYPE = torch.bfloat16


@dataclass
class Operators:
    """The three operators at one batch size, on rotating inputs, into memory of their own."""

    model: Model
    table: Table
    batches: list[Batch]
    plan: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    ids: list[torch.Tensor]
    rows: list[torch.Tensor]

    @classmethod
    def prepare(cls, model: Model, table: Table, tokens: int, requests: int) -> Operators:
        """Make inputs, hash them once, and allocate the results."""
        device = table.slots.device
        batches = make_batches(tokens, requests, device)
        heads, head_dim = model.config.num_heads, model.config.head_dim
        made = cls(
            model,
            table,
            batches,
            model.plan_tensors(device),
            [torch.empty((tokens, heads), dtype=torch.int64, device=device) for _ in batches],
            [torch.empty((tokens, heads * head_dim), dtype=OUT_DTYPE, device=device) for _ in batches],
        )
        for i in range(INPUT_SETS):
            made.ngram_ids(i)
        return made

    @property
    def ways(self) -> dict[str, Run]:
        """Name to call."""
        return {"ngram_ids": self.ngram_ids, "lookup": self.lookup, "embed": self.embed}

    def ngram_ids(self, i: int) -> None:
        """Hash input set i."""
        config = self.model.config
        torch.ops.ngram_ple.ngram_ids.out(
            *self.batches[i], *self.plan, config.eos_token_id, config.heads_per_ngram, out=self.ids[i]
        )

    def lookup(self, i: int) -> None:
        """Look the ids of input set i up."""
        ids = self.ids[i]
        torch.ops.ngram_ple.lookup.out(
            ids,
            self.table.slots,
            None,
            self.table.global_scale,
            out=self._out(i).view(*ids.shape, -1),
            **self._how,
        )

    def embed(self, i: int) -> None:
        """Hash input set i and look its rows up."""
        config = self.model.config
        torch.ops.ngram_ple.embed.out(
            *self.batches[i],
            *self.plan,
            config.eos_token_id,
            config.heads_per_ngram,
            self.table.slots,
            None,
            self.table.global_scale,
            out=self._out(i),
            **self._how,
        )

    def floor_bytes(self) -> int:
        """Bytes that must move: every stored row read once, every result written once."""
        format = self.table.format
        stored = format.row_bytes + format.scale_bytes
        return self.ids[0].numel() * (stored + format.head_dim * OUT_DTYPE.itemsize)

    @property
    def _how(self) -> dict[str, object]:
        return {"format": self.table.format.name, "out_dtype": "bf16", "head_dim": self.table.format.head_dim}

    def _out(self, i: int) -> torch.Tensor:
        return self.rows[i]
