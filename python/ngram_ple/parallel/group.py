"""The ranks that share one table: who they are, which rows each owns, and how they talk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ngram_ple.errors import ConfigError, ExchangeError, shown
from ngram_ple.parallel.communicators import (
    as_exchange_error,
    host,
    know_as_many_groups,
    new_group,
    timeout_of,
)

EXCHANGES = ("auto", "reduce", "exchange", "peer")
"""How rows get from their owners to who asked for them; see docs/etp.md."""

_T = TypeVar("_T")


class RankGaveUpError(ExchangeError):
    """Another rank gave up before it came to what the ranks were to do together."""


class EtpGroup:
    """Ranks that shard one table by rows, each of which embeds tokens of its own or of its TP group.

    Rank r of the group is rank `tp` of the tensor parallel group of the data-parallel rank `dp`, where
    ``dp, tp = divmod(r, tp_size)``: ranks of one `dp` embed the same tokens. Several ETP groups inside one DP
    are several groups of processes.

    Construction is collective, and makes communicators of its own over the same ranks: what is done here
    never takes turns with the caller's collectives.

    Parameters
    ----------
    process_group : torch.distributed.ProcessGroup, optional
        The ranks, one a shard; the default group by default. NCCL for tables that a GPU reads, gloo for the
        CPU.
    tp_size : int
        Size of the tensor parallel groups; divides the group's size.
    exchange : {"auto", "reduce", "exchange", "peer"}
        How rows come from their owners.
    slot_tokens : int, optional
        For ``"reduce"``: the most tokens that a rank ever embeds at once. Every step is then padded to it,
        and needs no token counts: what a CUDA graph can hold.
    timeout : datetime.timedelta, optional
        How long a rank waits for the others; as in `process_group` by default.

    Attributes
    ----------
    rank, size : int
        This rank in the group, and the group's size.
    dp, tp : int
        This rank's place.
    dp_size : int
        Data-parallel ranks in the group, ``size // tp_size``.
    hosts : list of str
        Which machine each rank runs on.

    Raises
    ------
    ConfigError
        A size that does not divide, an unknown exchange, a slot that is not positive.
    ExchangeError
        torch.distributed is not initialized, or this process is not in the group.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        tp_size: int = 1,
        *,
        exchange: str = "auto",
        slot_tokens: int | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ExchangeError("EtpGroup needs torch.distributed.init_process_group first, got none")
        group = dist.group.WORLD if process_group is None else process_group
        if group is None or dist.get_rank(group) < 0:
            raise ExchangeError("EtpGroup needs a process_group that this process is in, got another")
        ranks = dist.get_process_group_ranks(group)
        if exchange not in EXCHANGES:
            raise ConfigError(f"exchange must be one of {', '.join(EXCHANGES)}, got {shown(exchange)}")
        _check_positive("tp_size", tp_size)
        if slot_tokens is not None:
            _check_positive("slot_tokens", slot_tokens)
        if len(ranks) % tp_size != 0:
            raise ConfigError(
                f"tp_size must divide the {len(ranks)} ranks of process_group (etp_size), got {tp_size}"
            )
        if ranks != sorted(ranks):
            raise ConfigError(f"process_group must have its ranks in ascending order, got {shown(ranks)}")
        self.rank = dist.get_rank(group)
        self.size = len(ranks)
        self.tp_size = tp_size
        self.dp_size = self.size // tp_size
        self.dp, self.tp = divmod(self.rank, tp_size)
        self.exchange = exchange
        self.slot_tokens = slot_tokens
        self.timeout = timeout_of(group) if timeout is None else timeout
        # What carries rows, what carries counts and errors between hosts' CPUs, and ranks of the same tp.
        backend = dist.get_backend_config(group)
        know_as_many_groups(group)
        self.rows_group = new_group(ranks, backend, self.timeout)
        self._control = new_group(ranks, "gloo", self.timeout)
        across = ranks[self.tp :: tp_size]
        self.dp_group = self.rows_group if tp_size == 1 else new_group(across, backend, self.timeout)
        self.hosts = self.gather(host())

    @classmethod
    def from_mesh(cls, mesh: Any, dim: str | int | None = None, tp_size: int = 1, **options: Any) -> EtpGroup:
        """Make the group of one dimension of a DeviceMesh: one ETP group for each index of the others.

        Parameters
        ----------
        mesh : torch.distributed.device_mesh.DeviceMesh
        dim : str or int, optional
            The dimension that shards the table; may be left out of a mesh of one.
        tp_size, **options
            As for the class.
        """
        return cls(mesh.get_group(dim), tp_size, **options)

    # --- rows -----------------------------------------------------------------------------------------

    def rows_per_rank(self, padded_rows: int) -> int:
        """Rows that a rank owns at most, ``ceil(padded_rows / size)``."""
        return -(-padded_rows // self.size)

    def row_range(self, padded_rows: int, rank: int | None = None) -> tuple[int, int]:
        """Return the rows ``[start, end)`` that a rank owns, this one by default; the last may own none."""
        step = self.rows_per_rank(padded_rows)
        start = min((self.rank if rank is None else rank) * step, padded_rows)
        return start, min(start + step, padded_rows)

    # --- agreement, over the CPU ------------------------------------------------------------------------

    def agree(self, what: str, call: Callable[[], _T], same: Callable[[_T], object] | None = None) -> _T:
        """Do something on every rank; when it fails on one it fails on all, with that one's message.

        Parameters
        ----------
        what : str
            What is being done, for messages.
        call : callable
            This rank's part.
        same : callable, optional
            Of `call`'s result, what must be equal on all ranks; comparable and picklable.

        Raises
        ------
        Exception
            What this rank's `call` raised.
        ExchangeError
            Another rank failed, or the ranks disagree about `same`.
        """
        error: Exception | None = None
        fact: object = None
        try:
            result = call()
            fact = same(result) if same is not None else None
        except Exception as raised:
            error = raised
        told = self.gather((None if error is None else f"{type(error).__name__}: {error}", fact, False))
        if error is not None:
            raise error
        for rank, (message, _, gave_up) in enumerate(told):
            if message is not None:
                kind = RankGaveUpError if gave_up else ExchangeError
                raise kind(f"{what} failed on rank {rank} of the ETP group: {message}")
        for rank, (_, other, _) in enumerate(told):
            if other != told[0][1]:
                raise ExchangeError(
                    f"{what}: ranks of the ETP group must agree, got {shown(told[0][1])} on rank 0 and "
                    f"{shown(other)} on rank {rank}"
                )
        return result

    def fail(self, error: BaseException) -> None:
        """Tell the ranks that are, or will be, in `agree` that this one gave up: `RankGaveUpError`."""
        with contextlib.suppress(ExchangeError):  # this rank's own error is the one to raise
            self.gather((f"{type(error).__name__}: {error}", None, True))

    def gather(self, value: _T) -> list[_T]:
        """Return every rank's value, picklable and small."""
        values: list[Any] = [None] * self.size
        with as_exchange_error("an exchange of statuses"):
            dist.all_gather_object(values, value, group=self._control)
        return values

    def token_counts(self, tokens: int, given: Sequence[int] | torch.Tensor | None) -> list[int]:
        """Return the tokens of each data-parallel rank of the group: the caller's, or gathered by the CPUs.

        Raises
        ------
        ExchangeError
            The counts given are not one a data-parallel rank, or not this rank's own `tokens`.
        """
        if given is not None:
            counts = [int(count) for count in given]
            if len(counts) != self.dp_size or counts[self.dp] != tokens or min(counts) < 0:
                raise ExchangeError(
                    f"token_counts must hold the tokens of the group's {self.dp_size} data-parallel ranks, "
                    f"{tokens} for rank {self.dp}, got {shown(counts)}"
                )
            return counts
        if self.dp_size == 1:
            return [tokens]
        mine = torch.tensor([tokens], dtype=torch.int64, device="cpu")
        each = [torch.empty_like(mine) for _ in range(self.size)]
        with as_exchange_error("the exchange of token counts"):
            dist.all_gather(each, mine, group=self._control)
        return [int(count) for count in each[:: self.tp_size]]

    # --- rows' collectives ------------------------------------------------------------------------------

    def all_reduce(self, values: torch.Tensor) -> None:
        """Sum over the group, in place."""
        with as_exchange_error("all-reduce"):
            dist.all_reduce(values, group=self.rows_group)

    def all_gather_dp(self, gathered: torch.Tensor, mine: torch.Tensor) -> None:
        """Put every data-parallel rank's values one after another."""
        # the name that torch 2.13 deprecates is the only one that 2.11 has
        call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        with as_exchange_error("all-gather"):
            call(gathered, mine, group=self.dp_group)

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        received_sizes: list[int] | None = None,
        sent_sizes: list[int] | None = None,
    ) -> None:
        """Send a part of `sent` to each rank, and get one from each; equal parts without sizes."""
        with as_exchange_error("all-to-all"):
            dist.all_to_all_single(received, sent, received_sizes, sent_sizes, group=self.rows_group)


def on_all_ranks(
    group: EtpGroup | None, what: str, call: Callable[[], _T], same: Callable[[_T], object] | None = None
) -> _T:
    """`EtpGroup.agree`, or the call alone where there is no group."""
    return call() if group is None else group.agree(what, call, same)


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a positive int, got {shown(value)}")
