"""Each id to its owner once, each row back once, as it is stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ngram_ple import ops
from ngram_ple.formats import RowFormat
from ngram_ple.parallel.exchanges import Exchange
from ngram_ple.parallel.group import EtpGroup
from ngram_ple.tables import Table

_MOST_PADDING = 1 / 12
"""Of a slot. So much of it travels with the row; more is cut off before and put back after."""


class AllToAll(Exchange):
    """Rows are asked of their owners, and decoded by who asked.

    A batch's ids are sorted and each distinct one goes to its owner once, as an int32 where the table has
    fewer than 2^31 rows; the owner sends the row back as it is stored, and the receiver decodes it as often
    as its batch has it. Nothing is padded to another rank's size. The sizes are exchanged first, and the host
    waits for them: the one wait of a step, which no graph can hold.
    """

    name = "exchange"

    def __init__(self, group: EtpGroup, table: Table, padded_rows: int, device: torch.device) -> None:
        super().__init__(group, table)
        self._padded_rows = padded_rows
        self._format = table.format
        ends = [group.row_range(padded_rows, rank)[1] for rank in range(group.size)]
        wide = padded_rows > torch.iinfo(torch.int32).max
        self._bounds = torch.tensor([0, *ends], dtype=torch.int64 if wide else torch.int32, device=device)

    def lookup(self, ids: torch.Tensor, out_dtype: str, slot: int) -> torch.Tensor:
        """Ask for each distinct row once and decode what comes."""
        requests = distinct_rows(ids.reshape(-1), self._bounds, self._padded_rows)
        asked_of_me = torch.empty_like(requests.counts)
        self.group.all_to_all(asked_of_me, requests.counts)
        asked, answered = torch.stack((requests.counts, asked_of_me)).tolist()
        rows = requests.rows.new_empty(sum(answered))
        self.group.all_to_all(rows, requests.rows[: sum(asked)], answered, asked)
        answers = _packed(self.table.lookup(rows, "bytes"), self._format)
        packed = answers.new_empty((sum(asked), answers.shape[1]))
        self.group.all_to_all(packed, answers, asked, answered)
        self._count(asked, answered, rows.element_size(), answers.shape[1])
        return ops.lookup(
            requests.index.view(ids.shape),
            _unpacked(packed, self._format),
            None,
            self.table.global_scale,
            format=self._format.name,
            out_dtype=out_dtype,
            head_dim=self._format.head_dim,
        )

    def _count(self, asked: list[int], answered: list[int], id_bytes: int, row_bytes: int) -> None:
        me, others = self.group.rank, self.group.size - 1
        self.wire_bytes += 8 * others + id_bytes * (sum(asked) - asked[me])
        self.wire_bytes += row_bytes * (sum(answered) - answered[me])


@dataclass(frozen=True)
class Requests:
    """The distinct rows of a batch in ascending order.

    Attributes
    ----------
    rows : Tensor
        ``[n]``, the row numbers; what follows the last one means nothing.
    counts : Tensor
        int64 ``[ranks]``, how many of them each rank owns.
    index : Tensor
        int64 ``[n]``: which of the rows each id of the batch is, -1 for ids that are no row.
    """

    rows: torch.Tensor
    counts: torch.Tensor
    index: torch.Tensor


def distinct_rows(ids: torch.Tensor, bounds: torch.Tensor, padded_rows: int) -> Requests:
    """Find the distinct rows among ids, in memory of fixed size: the host need not know how many there are.

    Parameters
    ----------
    ids : Tensor
        int64 ``[n]``.
    bounds : Tensor
        ``[ranks + 1]``, where each rank's rows begin, and `padded_rows`; its dtype is the rows'.
    padded_rows : int
    """
    count = ids.shape[0]
    every, order = torch.sort(ids.clamp(-1, padded_rows).to(bounds.dtype))
    is_row = (every >= 0) & (every < padded_rows)
    is_first = is_row.clone()
    is_first[1:] &= every[1:] != every[:-1]
    before = torch.zeros(count + 1, dtype=torch.int64, device=ids.device)
    torch.cumsum(is_first, 0, out=before[1:])  # distinct rows up to each place
    at_bounds = before[torch.searchsorted(every, bounds)]
    rows = every.new_empty(count + 1)
    rows[torch.where(is_first, before[:-1], count)] = every  # repeats go to the end
    index = torch.empty_like(ids)
    index[order] = torch.where(is_row, before[1:] - 1, -1)
    return Requests(rows[:count], at_bounds[1:] - at_bounds[:-1], index)


def _packed(slots: torch.Tensor, format: RowFormat) -> torch.Tensor:
    """Cut padding off slots where it is much."""
    if _travels_whole(format):
        return slots
    scales = slots[:, format.scale_offset : format.scale_offset + format.scale_bytes]
    return torch.cat((slots[:, : format.row_bytes], scales), 1)


def _unpacked(packed: torch.Tensor, format: RowFormat) -> torch.Tensor:
    """Undo `_packed`."""
    if _travels_whole(format):
        return packed
    slots = packed.new_zeros((packed.shape[0], format.slot_bytes))
    slots[:, : format.row_bytes] = packed[:, : format.row_bytes]
    slots[:, format.scale_offset : format.scale_offset + format.scale_bytes] = packed[:, format.row_bytes :]
    return slots


def _travels_whole(format: RowFormat) -> bool:
    return format.slot_bytes - format.row_bytes - format.scale_bytes <= _MOST_PADDING * format.slot_bytes
