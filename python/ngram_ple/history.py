"""The tokens before each chunk: what engines pass as ``ngram_context``, kept where the hash runs."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence

import torch

from ngram_ple.errors import ConfigError, shown


class NGramHistory:
    """The last N - 1 accepted tokens of every request that an engine holds, on the device.

    An engine gives each request a slot for as long as it computes it. A step asks for the contexts of its
    batch, in the batch's order, and afterwards tells how many tokens of each chunk were accepted::

        history.assign([slot], [tokens])           # arrival, resume, prefix hit: what is not computed
        context = history.context(slots)           # [R, N - 1], before the forward pass
        rows = embedding(input_ids, query_start_loc, context)
        history.advance(slots, input_ids, query_start_loc, num_accepted)

    `context` and `advance` read nothing back and allocate no memory whose size depends on values: they run
    inside captured graphs, with `slots` and the batch in static buffers. Rejected drafts never enter the
    history, so nothing has to be rolled back; a negative token (a placeholder) and everything after it in its
    chunk count as rejected.

    Parameters
    ----------
    ngram_size : int
        N.
    max_requests : int
        Slots, numbered from 0.
    eos_token_id : int
        What stands where a request has no token.
    device : torch.device
        Where the batches live.
    dtype : torch.dtype
        int64 or int32.

    Attributes
    ----------
    tokens : Tensor
        ``[max_requests + 1, N - 1]``, newest last; the last row is for padding and holds EOS.

    Raises
    ------
    ConfigError
        N below 2, no slots, a negative EOS, another dtype.
    """

    def __init__(
        self,
        ngram_size: int,
        max_requests: int,
        eos_token_id: int,
        *,
        device: torch.device | str | int = "cpu",
        dtype: torch.dtype = torch.int64,
    ) -> None:
        for name, value, least in (
            ("ngram_size", ngram_size, 2),
            ("max_requests", max_requests, 1),
            ("eos_token_id", eos_token_id, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, got {shown(value)}")
        if dtype not in (torch.int32, torch.int64):
            raise ConfigError(f"dtype must be torch.int32 or torch.int64, got {dtype}")
        self.max_requests = max_requests
        self.eos_token_id = eos_token_id
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device {str(device)!r} needs a GPU that torch can use, got none")
        shape = (max_requests + 1, ngram_size - 1)
        self.tokens = torch.full(shape, eos_token_id, dtype=dtype, device=device)
        self._columns = torch.arange(ngram_size - 1, device=self.tokens.device)

    def __repr__(self) -> str:
        """Return the sizes."""
        tokens = self.tokens
        return (
            f"NGramHistory(ngram_size={tokens.shape[1] + 1}, max_requests={self.max_requests}, "
            f"eos_token_id={self.eos_token_id}, device={str(tokens.device)!r}, dtype={tokens.dtype})"
        )

    def assign(self, slots: Sequence[int], histories: Sequence[Sequence[int]]) -> None:
        """Give requests their slots, with the tokens before the first one that will be computed.

        For a new request these are none; after a prefix-cache hit the cached part of the prompt; after a
        preemption whatever of prompt and output is not computed again. The last N - 1 of each suffice.

        Parameters
        ----------
        slots : sequence of int
        histories : sequence of sequences of int
            Accepted tokens, oldest first.

        Raises
        ------
        ConfigError
            A slot that is none or comes twice, another number of histories, a token that is negative or no
            integer.
        """
        slots = _integers("slots", slots)
        if len(slots) != len(histories):
            raise ConfigError(
                f"histories must be one for each of the {len(slots)} slots, got {len(histories)}"
            )
        if len(set(slots)) != len(slots):
            raise ConfigError(f"slots must not repeat, got {shown(list(slots))}")
        for slot in slots:
            if not 0 <= slot < self.max_requests:
                raise ConfigError(f"slots must be within 0..{self.max_requests - 1}, got {shown(slot)}")
        width = self.tokens.shape[1]
        known = [_integers("histories", history[-width:]) for history in histories]
        rows = [[*([self.eos_token_id] * width), *history][-width:] for history in known]
        for row in rows:
            if min(row) < 0:
                raise ConfigError(
                    f"histories must hold accepted tokens only, got {shown(row)} at the end of one"
                )
        if rows:
            self.tokens.index_copy_(0, self._sent(slots, torch.int64), self._sent(rows, self.tokens.dtype))

    def context(self, slots: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the contexts of a batch, ``[R, N - 1]``.

        Parameters
        ----------
        slots : Tensor
            int32 or int64 ``[R]`` on the device, the slot of each request of the batch; negative ones are
            padding and get EOS. So do those that are none, where only the GPU can see them.
        out : Tensor, optional
            Where to write them, of the history's dtype.

        Raises
        ------
        ConfigError
            No integers; on a CPU also a slot that is none.
        """
        return torch.index_select(self.tokens, 0, self._rows(slots), out=out)

    def advance(
        self,
        slots: torch.Tensor,
        input_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        num_accepted: torch.Tensor | None = None,
    ) -> None:
        """Append what a step computed to the histories of its requests.

        A slot may appear once, but for padding. The new history of a request is the end of its old one and
        the accepted part of its chunk; the token sampled last is in no chunk yet and comes with the next one.

        Parameters
        ----------
        slots : Tensor
            As for `context`.
        input_ids, query_start_loc : Tensor
            int32 or int64 ``[T]``, ``[R + 1]``: the step's batch, as it was hashed.
        num_accepted : Tensor, optional
            int32 or int64 ``[R]``, how many tokens at the beginning of each chunk count: all of a prefill
            chunk, one and the accepted drafts of a speculative one; more than it has count as all. By default
            all before the first negative token, which ends a chunk in any case.

        Raises
        ------
        ConfigError
            Not one boundary more than slots, not one count for each slot, no integers; on a CPU also a slot
            that is none or comes twice, and boundaries that are none of `input_ids`. What only the GPU can
            see never leads outside the buffers.
        """
        rows = self._rows(slots, differ=True)
        _check_vectors(input_ids=input_ids, query_start_loc=query_start_loc)
        tokens, requests = input_ids.shape[0], slots.shape[0]
        if query_start_loc.shape[0] != requests + 1:
            raise ConfigError(
                f"query_start_loc must have one element more than the {requests} slots, got "
                f"{query_start_loc.shape[0]}"
            )
        if num_accepted is not None:
            _check_vectors(num_accepted=num_accepted)
            if num_accepted.shape[0] != requests:
                raise ConfigError(
                    f"num_accepted must have one element for each of the {requests} slots, got "
                    f"{num_accepted.shape[0]}"
                )
        if tokens == 0 or requests == 0:
            return
        if _is_readable(query_start_loc):
            _check_bounds(query_start_loc, tokens)
        bounds = query_start_loc.long().clamp(0, tokens)
        begin = bounds[:-1]
        accepted = bounds[1:] - begin
        if num_accepted is not None:
            accepted = torch.minimum(accepted, num_accepted)
        accepted = torch.minimum(accepted, _next_negative(input_ids)[begin] - begin).clamp_min(0)
        width = self.tokens.shape[1]
        at = accepted.unsqueeze(1) + self._columns  # in the old context and the chunk, one after the other
        old = self.tokens[rows].gather(1, at.clamp_max(width - 1))
        new = input_ids[(begin.unsqueeze(1) + at - width).clamp(0, tokens - 1)]
        self._write(rows, torch.where(at < width, old, new.to(old.dtype)))

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Let the requests in `target` slots go on from those in `source` slots: forks, reordered beams.

        Parameters
        ----------
        source, target : Tensor
            int32 or int64 ``[n]`` on the device; targets differ, but for negative ones, which are padding.
            Everything is read before it is written.

        Raises
        ------
        ConfigError
            Not as many sources as targets, no integers; on a CPU also a slot that is none, or a target twice.
        """
        read, written = self._rows(source), self._rows(target, differ=True)
        if read.shape != written.shape:
            raise ConfigError(
                f"target must have one slot for each of the {read.shape[0]} sources, got {written.shape[0]}"
            )
        self._write(written, self.tokens[read])

    def _write(self, rows: torch.Tensor, histories: torch.Tensor) -> None:
        """Write rows; that of padding stays EOS."""
        padding = (rows == self.max_requests).unsqueeze(1)
        self.tokens.index_copy_(0, rows, histories.masked_fill(padding, self.eos_token_id))

    def _rows(self, slots: torch.Tensor, differ: bool = False) -> torch.Tensor:
        _check_vectors(slots=slots)
        if _is_readable(slots):
            used = slots[slots >= 0].tolist()
            if any(slot >= self.max_requests for slot in used):
                raise ConfigError(f"slots must be within 0..{self.max_requests - 1}, got {max(used)}")
            if differ and len(set(used)) < len(used):
                raise ConfigError(f"slots must not repeat, got {shown(used)}")
        outside = (slots < 0) | (slots >= self.max_requests)
        return torch.where(outside, self.max_requests, slots).long()

    def _sent(self, values: object, dtype: torch.dtype) -> torch.Tensor:
        """Send values without waiting for what the device does."""
        there = self.tokens.device
        held = torch.tensor(values, dtype=dtype, device="cpu", pin_memory=there.type == "cuda")
        return held.to(there, non_blocking=True)


def _integers(name: str, values: Iterable[object]) -> list[int]:
    """Take integers of any kind, tensors' elements too."""
    try:
        given = values.tolist() if isinstance(values, torch.Tensor) else values
        return [operator.index(value) for value in given]  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} must be integers, got {shown(values)}") from None


def _is_readable(tensor: torch.Tensor) -> bool:
    """Whether values can be looked at without a sync."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _check_bounds(query_start_loc: torch.Tensor, tokens: int) -> None:
    bounds = query_start_loc.tolist()
    if bounds[0] < 0 or bounds[-1] > tokens or any(a > b for a, b in itertools.pairwise(bounds)):
        raise ConfigError(
            f"query_start_loc must rise from 0 or more to {tokens} (input_ids) at most, got {shown(bounds)}"
        )


def _check_vectors(**tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ConfigError(f"{name} must be an int32 or int64 tensor [n], got {shown(tensor)}")
        if tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != 1:
            raise ConfigError(
                f"{name} must be an int32 or int64 tensor [n], got {tensor.dtype} {list(tensor.shape)}"
            )


def _next_negative(input_ids: torch.Tensor) -> torch.Tensor:
    """Return, for each position and one past them, the first position from there on of a negative token."""
    tokens = input_ids.shape[0]
    positions = torch.arange(tokens + 1, device=input_ids.device)
    here = torch.where(input_ids < 0, positions[:-1], tokens)
    ends = torch.cat((here, positions[-1:]))
    return ends.flip(0).cummin(0).values.flip(0)
