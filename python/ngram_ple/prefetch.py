"""Lookups ahead of time, on a stream beside the caller's."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from ngram_ple import _core
from ngram_ple.errors import PrefetchError
from ngram_ple.side_stream import Buffer, Started, side_streams
from ngram_ple.tables import Table

Hash = Callable[[torch.Tensor], object]
LookUp = Callable[[torch.Tensor, torch.Tensor], object]


class Prefetcher:
    """The prefetches of one table.

    ``start`` lets the caller's stream hash the batch, so its inputs may be overwritten in stream order as
    soon as it returns, and a side stream look the ids up. ``finalize`` lets the caller's stream wait and
    copies the rows out. Where a table can have its rows brought by copies, ``start`` finds the distinct rows
    and ``finalize`` decodes them, on the caller's stream: what fills the GPU in between holds nothing up.
    Events alone join the streams. Each thread finalizes what it started itself, oldest first. What is
    captured has buffers of its own: a graph may be replayed at any time.

    Parameters
    ----------
    table : Table
    heads : int
        H.
    dtype : torch.dtype
        Of the rows.
    out_dtype : str
        The same as operators call it.
    device : torch.device
    max_tokens : int, optional
        Tokens of the largest batch: the buffers are allocated for it at once. By default they are allocated,
        and grow, when a batch needs it, which cannot be inside a capture or after one used them.
    depth : int
        How many prefetches may be started before the first is finalized: buffers, inside captures as outside.
    sms : int
        At most so many multiprocessors read rows; 0 for no limit.
    """

    def __init__(
        self,
        table: Table,
        heads: int,
        dtype: torch.dtype,
        out_dtype: str,
        device: torch.device,
        max_tokens: int | None,
        depth: int,
        sms: int = 0,
    ) -> None:
        self._table = table
        self._sms = sms
        self._heads = heads
        self._dtype = dtype
        self._out_dtype = out_dtype
        self._device = device
        self._max_tokens = max_tokens
        self._side = side_streams(device)
        self._mine = threading.local()
        self._running, self._captured = ([Buffer() for _ in range(depth)] for _ in range(2))
        if max_tokens is not None:
            self._allocate(max_tokens)

    @property
    def started(self) -> list[Started]:
        """What this thread started and did not finalize, oldest first."""
        if not hasattr(self._mine, "started"):
            self._mine.started = []
        found: list[Started] = self._mine.started
        return found

    def start(self, tokens: int, hash_into: Hash, look_up: LookUp | None = None) -> None:
        """Hash on the current stream and look up on the side stream.

        Parameters
        ----------
        tokens : int
        hash_into : callable
            Writes the ids of the batch into the int64 ``[tokens, H]`` that it is given.
        look_up : callable, optional
            Fills ``[tokens, H, head_dim]`` with the rows of ids, in place of the table alone.

        Raises
        ------
        PrefetchError
            Every buffer is taken, the batch is larger than one, or there is none yet inside a capture.
        """
        current = torch.cuda.current_stream(self._device)
        capture = _core.capture_id(current.cuda_stream)
        with self._side.lock, torch.cuda.device(self._device):
            self._forget_given_up(capture)
            buffer = self._take(max(tokens, 1), capture)
            side = self._side.captured if capture else self._side.running
            buffer.wait_until_used(current, capture)
            ids, rows = buffer.ids[:tokens], buffer.rows[:tokens]
            hash_into(ids)
            brings = look_up is None and self._table.brings(ids.numel(), self._out_dtype)
            # A table brings one batch at a time: the caller's stream is not to wait for another one.
            if brings and self._nothing_is_under_way(capture):
                self._table.bring(ids, side, *self._brought(buffer, tokens))
                started = buffer.start(tokens, capture, brings)
                buffer.record(side, capture)
                self.started.append(started)
                return
            side.wait_event(buffer.record(current, capture))
            started = buffer.start(tokens, capture, brings)
            with torch.cuda.stream(side):
                if brings:
                    self._table.bring(ids, side, *self._brought(buffer, tokens))
                elif look_up is None:
                    self._table.lookup_ahead(ids, self._out_dtype, rows, self._sms)
                else:
                    look_up(ids, rows)
                buffer.record(side, capture)
            self.started.append(started)

    def finalize(self, total_tokens: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """Wait for the oldest prefetch on the current stream and return its rows, ``[T, H·head_dim]``.

        They are copied into `out` when it is given.

        Raises
        ------
        PrefetchError
            Nothing was started by this thread, or for another count of tokens, or on the other side of a
            capture's begin or end. All of its prefetches are dropped then.
        """
        if not self.started:
            raise PrefetchError("finalize_prefetch needs start_prefetch first, by the same thread, got none")
        current = torch.cuda.current_stream(self._device)
        capture = _core.capture_id(current.cuda_stream)
        oldest = self.started[0]
        if oldest.tokens != total_tokens:
            self.drop()
            raise PrefetchError(
                f"finalize_prefetch must get the {oldest.tokens} tokens that were started, got "
                f"{total_tokens}; what this thread started is dropped"
            )
        if oldest.capture != capture:
            self.drop()
            raise PrefetchError(
                "start_prefetch and finalize_prefetch must both be inside one graph capture or both outside, "
                f"got start {'inside one' if oldest.capture else 'outside'} and finalize "
                f"{'inside one' if capture else 'outside'}; what this thread started is dropped"
            )
        buffer = oldest.buffer
        if out is not None:
            _check_out(out, buffer.rows[:total_tokens].flatten(1))
        with self._side.lock, torch.cuda.device(self._device):
            buffer.wait_until_used(current, capture)
            if oldest.brought:
                room = None if out is None else out.view(total_tokens, self._heads, -1)
                brought = self._brought(buffer, total_tokens)
                rows = self._table.decode(*brought, self._out_dtype, room).flatten(1)
            else:
                rows = buffer.rows[:total_tokens].flatten(1)
                rows = rows.clone() if out is None else out.copy_(rows)
            buffer.record(current, capture)
            buffer.release()
            del self.started[0]
        return rows

    def drop(self) -> None:
        """Forget what this thread started; the current stream waits for it."""
        current = torch.cuda.current_stream(self._device)
        capture = _core.capture_id(current.cuda_stream)
        for started in self.started:
            started.buffer.wait_until_used(current, capture)
            started.buffer.release()
        self.started.clear()

    def _forget_given_up(self, capture: int) -> None:
        """Release what was started inside a capture that ended without it."""
        for started in self.started[:]:
            if started.capture not in (0, capture):
                started.buffer.release()
                self.started.remove(started)

    def _nothing_is_under_way(self, capture: int) -> bool:
        return all(buffer.is_free for buffer in (self._captured if capture else self._running))

    def _brought(self, buffer: Buffer, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return places, int32 ``[tokens, H]``, and slots, in the memory of decoded rows."""
        slots, slot_bytes = tokens * self._heads, self._table.format.slot_bytes
        stored = buffer.rows.view(-1).view(torch.uint8)[: slots * slot_bytes]
        return buffer.places[:tokens], stored.view(slots, slot_bytes)

    def _take(self, tokens: int, capture: int) -> Buffer:
        """Return a free buffer that holds so many tokens."""
        buffers = self._captured if capture else self._running
        buffer = next((buffer for buffer in buffers if buffer.is_free), None)
        if buffer is None:
            raise PrefetchError(
                f"start_prefetch needs a free buffer, got {len(buffers)} prefetches that were started and "
                "not finalized: call finalize_prefetch or drop_prefetch, or construct with a larger "
                "prefetch_depth"
            )
        if tokens <= buffer.max_tokens:
            return buffer
        if self._max_tokens is not None:
            raise PrefetchError(f"start_prefetch takes max_tokens={self._max_tokens} tokens, got {tokens}")
        if capture:
            raise PrefetchError(
                f"start_prefetch inside a graph capture needs a buffer of {tokens} tokens, got one of "
                f"{buffer.max_tokens}: construct with max_tokens, or prefetch the largest batch once before "
                "the first capture"
            )
        self._allocate(tokens)
        return buffer

    def _allocate(self, tokens: int) -> None:
        """Give every buffer that is free, and known to no graph, room for so many tokens."""
        stream = torch.cuda.current_stream(self._device)
        shape = (tokens, self._heads)
        for buffer in (*self._running, *self._captured):
            if buffer.is_free and not buffer.was_captured and buffer.max_tokens < tokens:
                ids = torch.empty(shape, dtype=torch.int64, device=self._device)
                rows = torch.empty(
                    (*shape, self._table.format.head_dim), dtype=self._dtype, device=self._device
                )
                buffer.allocate(ids, torch.empty(shape, dtype=torch.int32, device=self._device), rows, stream)


def _check_out(out: torch.Tensor, rows: torch.Tensor) -> None:
    wanted, got = ((t.dtype, list(t.shape), t.device) for t in (rows, out))
    if got != wanted:
        raise PrefetchError("out must be {} {} on {}, got ".format(*wanted) + "{} {} on {}".format(*got))
