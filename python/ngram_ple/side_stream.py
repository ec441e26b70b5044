"""The streams beside the caller's, and the buffers that prefetches on them fill."""

from __future__ import annotations

import threading
import weakref

import torch

from ngram_ple import _core


class SideStreams:
    """The two streams on which one GPU's prefetches run, of all layers, in the order they were started.

    One is for work that is captured and one for work that runs: a stream in the middle of one thread's
    capture would take another thread's prefetch into that graph. Neither is of torch's pool, whose streams
    anyone may be given.
    """

    def __init__(self, device: torch.device) -> None:
        self.lock = threading.Lock()
        self.running, self.captured = (
            torch.cuda.ExternalStream(  # type: ignore[no-untyped-call]
                _core.new_stream(device.index), device=device
            )
            for _ in range(2)
        )


_streams: dict[torch.device, SideStreams] = {}
_streams_lock = threading.Lock()


def side_streams(device: torch.device) -> SideStreams:
    """Return the streams of a GPU, the same ones every time."""
    with _streams_lock:
        if device not in _streams:
            _streams[device] = SideStreams(device)
        return _streams[device]


class Started:
    """A prefetch between start and finalize; its thread alone holds it."""

    def __init__(self, buffer: Buffer, tokens: int, capture: int, brought: bool) -> None:
        self.buffer = buffer
        self.tokens = tokens
        self.capture = capture
        self.brought = brought


class Buffer:
    """Ids and rows of one prefetch, decoded or as they are stored, and the last work that used them."""

    def __init__(self) -> None:
        self.ids = torch.empty(0, device="cpu")  # int64 [max_tokens, H]
        self.places = torch.empty(0, device="cpu")  # int32 [max_tokens, H]: of stored rows
        self.rows = torch.empty(0, device="cpu")  # [max_tokens, H, head_dim]
        self.was_captured = False  # then a graph knows the addresses
        self._used: torch.cuda.Event | None = None
        self._used_in = 0
        self._started: weakref.ref[Started] | None = None

    @property
    def max_tokens(self) -> int:
        """Tokens that fit."""
        return self.ids.shape[0]

    @property
    def is_free(self) -> bool:
        """Whether nothing started in it can still be finalized: its thread may have ended, too."""
        return self._started is None or self._started() is None

    def start(self, tokens: int, capture: int, brought: bool = False) -> Started:
        """Take the buffer until it is released, or until nobody holds what this returns."""
        started = Started(self, tokens, capture, brought)
        self._started = weakref.ref(started)
        self.was_captured |= capture != 0
        return started

    def release(self) -> None:
        """Make it free; what is under way in it is still waited for before it is used again."""
        self._started = None

    def allocate(
        self, ids: torch.Tensor, places: torch.Tensor, rows: torch.Tensor, stream: torch.cuda.Stream
    ) -> None:
        """Take memory that `stream` may have been given with earlier work on it."""
        self.ids, self.places, self.rows = ids, places, rows
        self.record(stream, 0)

    def record(self, stream: torch.cuda.Stream, capture: int) -> torch.cuda.Event:
        """Note that work of `stream` up to here uses the buffer."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        self._used, self._used_in = event, capture
        if capture == 0:  # its memory, given up, is not handed out before that work's end
            self.ids.record_stream(stream)
            self.places.record_stream(stream)
            self.rows.record_stream(stream)
        return event

    def wait_until_used(self, stream: torch.cuda.Stream, capture: int) -> None:
        """Let `stream` wait for the last such work.

        An event of a capture means nothing outside of it, nor the other way around: what a graph does is
        ordered by the stream that it is replayed on.
        """
        if self._used is not None and self._used_in == capture:
            stream.wait_event(self._used)
