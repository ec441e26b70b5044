"""A table over the ranks of a group: which exchange a step takes, and the step."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence

import torch

from ngram_ple.errors import ConfigError, ExchangeError, NgramPleWarning
from ngram_ple.formats import RowFormat
from ngram_ple.parallel.all_to_all import AllToAll
from ngram_ple.parallel.exchanges import Batch, Exchange, Partial, Reduce
from ngram_ple.parallel.group import EtpGroup
from ngram_ple.parallel.peer import Peer, PeerTable, make_peer_table
from ngram_ple.tables import Table

_log = logging.getLogger("ngram_ple")

TokenCounts = Sequence[int] | torch.Tensor


class ShardedTable:
    """A rank's rows, and how it gets the others'.

    Construction is collective; so is every lookup, by whichever exchange.

    Parameters
    ----------
    group : EtpGroup
    format : RowFormat
    placement : str
    padded_rows : int
        Rows of the whole table.
    device : torch.device
        Of ids and results.
    make : callable
        Allocates a table for the rows ``[start, end)`` that it is given.
    reduce_results : bool
        False: lookups return this rank's own rows and zeros, for a caller that sums over the group.

    Attributes
    ----------
    table : ngram_ple.tables.Table
        This rank's rows.
    exchange : str
        ``"reduce"``, ``"exchange"``, ``"peer"``, ``"partial"`` (`reduce_results` False), or
        ``"reduce or exchange"``, by the size of a batch.
    last_exchange : str
        What the last step took.

    Raises
    ------
    ConfigError
        `reduce_results` is False for ranks with different tokens.
    ExchangeError
        Another rank could not allocate its rows.
    """

    def __init__(
        self,
        group: EtpGroup,
        format: RowFormat,
        placement: str,
        padded_rows: int,
        device: torch.device,
        make: Callable[[int, int], Table],
        reduce_results: bool,
    ) -> None:
        if not reduce_results and group.dp_size != 1:
            raise ConfigError(
                "reduce_results=False needs ranks that embed the same tokens, an ETP group of the size of "
                f"its TP groups, got etp_size {group.size} and tp_size {group.tp_size}"
            )
        how = (
            format.name, format.head_dim, padded_rows, placement, reduce_results, group.tp_size,
            group.exchange, group.slot_tokens,
        )  # fmt: skip
        group.agree("the construction of the table", lambda: how, same=lambda facts: facts)
        self.group = group
        self._head_dim = format.head_dim
        start, end = group.row_range(padded_rows)
        peer = None
        if reduce_results and group.exchange in ("auto", "peer") and device.type != "meta":
            peer = _try_peer(group, format, placement, padded_rows, device)
        self.table = peer or group.agree("allocating the table", lambda: make(start, end))
        self.table.is_shard = True
        self._exchanges = self._choose(padded_rows, device, reduce_results)
        self._most_reduced = _most_reduced_bytes(device, len(set(group.hosts)) == 1)
        self.exchange = " or ".join(each.name for each in self._exchanges)
        self.last_exchange = ""
        _log.info(
            "ETP rank %d of %d: rows [%d, %d), exchange %s (asked for %s)",
            group.rank, group.size, start, end, self.exchange, group.exchange,
        )  # fmt: skip

    def _choose(self, padded_rows: int, device: torch.device, reduce_results: bool) -> list[Exchange]:
        group, table = self.group, self.table
        if not reduce_results:
            return [Partial(group, table)]
        if isinstance(table, PeerTable):
            return [Peer(group, table, padded_rows)]
        reduce, exchange = Reduce(group, table), AllToAll(group, table, padded_rows, device)
        if group.exchange == "auto":
            # a fixed slot is for graphs, which no exchange of sizes fits into
            return [reduce] if group.slot_tokens is not None else [reduce, exchange]
        return [reduce] if group.exchange == "reduce" else [exchange]

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank has sent to others in lookups so far."""
        return sum(each.wire_bytes for each in self._exchanges)

    def lookup(
        self,
        ids: torch.Tensor,
        out_dtype: str,
        out: torch.Tensor | None = None,
        token_counts: TokenCounts | None = None,
    ) -> torch.Tensor:
        """Decode rows: int64 ``[T, H]`` to ``[T, H, head_dim]``; collective.

        Parameters
        ----------
        ids : Tensor
        out_dtype : str
        out : Tensor, optional
            Takes the rows.
        token_counts : sequence of int, optional
            Tokens of each data-parallel rank of the group, where they are known.

        Raises
        ------
        ExchangeError
            A rank has ended or does not answer; counts that are not this rank's; more tokens than the slot;
            a graph capture of what cannot be captured.
        """
        exchange, slot = self._step(ids.shape[0], ids.shape[1], out_dtype, token_counts, ids.device)
        rows = exchange.lookup(ids, out_dtype, slot)
        return rows if out is None else out.copy_(rows)

    def embed(
        self,
        batch: Batch,
        plan: Sequence[torch.Tensor],
        eos_token_id: int,
        heads_per_ngram: int,
        out_dtype: str,
        out: torch.Tensor | None = None,
        token_counts: TokenCounts | None = None,
    ) -> torch.Tensor:
        """Hash and look up: ``[T, H·head_dim]``; see `lookup`."""
        tokens, heads = batch[0].shape[0], plan[1].shape[0]
        exchange, slot = self._step(tokens, heads, out_dtype, token_counts, batch[0].device)
        rows = exchange.embed(batch, plan, eos_token_id, heads_per_ngram, out_dtype, slot)
        return rows if out is None else out.copy_(rows)

    def _step(
        self,
        tokens: int,
        heads: int,
        out_dtype: str,
        token_counts: TokenCounts | None,
        device: torch.device,
    ) -> tuple[Exchange, int]:
        """Return the exchange and the slot of a step, the same on all ranks."""
        group, first = self.group, self._exchanges[0]
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        chosen, slot = first, tokens
        if isinstance(first, Reduce):
            slot = self._slot(tokens, token_counts, capturing)
            if len(self._exchanges) == 2 and not capturing:
                out_bytes = 4 if out_dtype == "fp32" else 2
                summed = group.dp_size * slot * heads * self._head_dim * out_bytes
                chosen = self._exchanges[summed > self._most_reduced]
        elif token_counts is not None:
            group.token_counts(tokens, token_counts)
        if capturing and isinstance(chosen, AllToAll):
            raise ExchangeError(
                "the exchange 'exchange' waits for sizes, which a graph capture cannot: use 'peer', or "
                "'reduce' with slot_tokens"
            )
        self.last_exchange = chosen.name
        return chosen, slot

    def _slot(self, tokens: int, token_counts: TokenCounts | None, capturing: bool) -> int:
        group, most = self.group, self.group.slot_tokens
        if group.dp_size == 1:
            return max(group.token_counts(tokens, token_counts))
        if most is None:
            if capturing:
                raise ExchangeError(
                    "a graph capture of the exchange 'reduce' needs a fixed slot: construct EtpGroup with "
                    "slot_tokens"
                )
            return max(group.token_counts(tokens, token_counts))
        if token_counts is not None:
            group.token_counts(tokens, token_counts)
        if tokens > most:
            raise ExchangeError(f"a step may have slot_tokens={most} tokens, got {tokens}")
        return most


def _most_reduced_bytes(device: torch.device, one_host: bool) -> int:
    """Bytes of decoded rows up to which ``auto`` sums them, and beyond which it asks for each row once.

    Few bytes cost less than the further collectives and the wait for sizes. From measurements on GPUs of
    one host (docs/etp.md); across hosts, where bytes cost more, an estimate.
    """
    if device.type != "cuda":
        return 64 << 10
    return 256 << 20 if one_host else 32 << 20


def _try_peer(
    group: EtpGroup, format: RowFormat, placement: str, padded_rows: int, device: torch.device
) -> PeerTable | None:
    """Make a table that peers can read, or say why not."""
    try:
        if placement != "device":
            raise ExchangeError(f"a table with placement {placement!r} is not in a GPU's memory")
        return make_peer_table(group, format, padded_rows, device)
    except ExchangeError as error:
        if group.exchange == "peer":
            warnings.warn(
                f"the exchange 'peer' is not possible, 'exchange' is used: {error}",
                NgramPleWarning,
                stacklevel=3,
            )
        _log.info("ETP: no peer reads: %s", error)
    return None
