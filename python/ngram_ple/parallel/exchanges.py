"""What every exchange of rows offers, and the two that run on any backend's collectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from ngram_ple import ops
from ngram_ple.parallel.group import EtpGroup
from ngram_ple.tables import Table

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Exchange(ABC):
    """Rows of the whole table for the ids of each rank, from the ranks that own them.

    Every call is collective: each rank of the group makes it, with as many tokens as it has, zero included.

    Attributes
    ----------
    name : str
    wire_bytes : int
        Bytes that this rank has sent to others so far (ids, sizes and rows).
    """

    name = ""

    def __init__(self, group: EtpGroup, table: Table) -> None:
        self.group = group
        self.table = table
        self.wire_bytes = 0

    @abstractmethod
    def lookup(self, ids: torch.Tensor, out_dtype: str, slot: int) -> torch.Tensor:
        """Decode rows: ``[T, H]`` to ``[T, H, head_dim]``.

        Parameters
        ----------
        ids : Tensor
            int64 ``[T, H]``, global row numbers. One that no row has gives a row of zeros.
        out_dtype : str
            bf16, fp16 or fp32.
        slot : int
            Tokens of the largest rank, or more; the same on all.
        """

    def embed(
        self,
        batch: Batch,
        plan: Sequence[torch.Tensor],
        eos_token_id: int,
        heads_per_ngram: int,
        out_dtype: str,
        slot: int,
    ) -> torch.Tensor:
        """Hash and look up: ``[T, H·head_dim]``."""
        ids = ops.ngram_ids(*batch, plan[0], plan[1], plan[2], eos_token_id, heads_per_ngram)
        return self.lookup(ids, out_dtype, slot).flatten(1)


class Partial(Exchange):
    """No exchange: rows that this rank does not own are zeros, for a caller that sums over the group."""

    name = "partial"

    def lookup(self, ids: torch.Tensor, out_dtype: str, slot: int) -> torch.Tensor:
        """Look up what this rank owns."""
        return self.table.lookup(ids, out_dtype)

    def embed(
        self,
        batch: Batch,
        plan: Sequence[torch.Tensor],
        eos_token_id: int,
        heads_per_ngram: int,
        out_dtype: str,
        slot: int,
    ) -> torch.Tensor:
        """Hash and look up in one kernel."""
        return self.table.embed(batch, plan, eos_token_id, heads_per_ngram, out_dtype)


class Reduce(Partial):
    """The reference way: everyone looks up everyone's ids, and the rows are summed.

    Each data-parallel rank pads its ids to a slot with -1, which nobody owns; the ids of all are gathered,
    every rank decodes the rows that it owns with zeros between them, and the sum over the group has every
    row. It is taken over integers: each row has one owner, so no bit changes, which a sum of floats would
    not promise (-0.0).
    """

    name = "reduce"

    def lookup(self, ids: torch.Tensor, out_dtype: str, slot: int) -> torch.Tensor:
        """Gather ids, look up, sum, and keep this rank's slot."""
        group = self.group
        if group.dp_size == 1:
            return self._summed(super().lookup(ids, out_dtype, slot))
        tokens, heads = ids.shape
        mine = torch.full((slot, heads), -1, dtype=torch.int64, device=ids.device)
        mine[:tokens] = ids
        everyone = torch.empty((group.dp_size * slot, heads), dtype=torch.int64, device=ids.device)
        group.all_gather_dp(everyone, mine)
        self.wire_bytes += (group.dp_size - 1) * mine.numel() * mine.element_size()
        rows = self._summed(super().lookup(everyone, out_dtype, slot))
        return rows[group.dp * slot : group.dp * slot + tokens]

    def embed(
        self,
        batch: Batch,
        plan: Sequence[torch.Tensor],
        eos_token_id: int,
        heads_per_ngram: int,
        out_dtype: str,
        slot: int,
    ) -> torch.Tensor:
        """Hash and look up in one kernel where all ranks have the same tokens."""
        arguments = (batch, plan, eos_token_id, heads_per_ngram, out_dtype, slot)
        if self.group.dp_size == 1:
            return self._summed(super().embed(*arguments))
        return Exchange.embed(self, *arguments)

    def _summed(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.numel() > 0:  # so on every rank: slots are equal
            nbytes = rows.numel() * rows.element_size()
            self.group.all_reduce(rows.view(-1).view(torch.int32 if nbytes % 4 == 0 else torch.uint8))
            self.wire_bytes += 2 * nbytes * (self.group.size - 1) // self.group.size  # in a ring
        return rows
