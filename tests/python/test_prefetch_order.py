"""What a Prefetcher takes and refuses, and which work waits for which, on a stand-in for CUDA's streams."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch
from modules import loaded
from ngram_ple import PrefetchError, _core
from ngram_ple.prefetch import Prefetcher
from ngram_ple.side_stream import side_streams
from ngram_ple.tables import Table

CPU = torch.device("cpu")


class Stream:
    """Runs everything at once and notes what it was told to wait for."""

    def __init__(self, handle: int, device: torch.device = CPU) -> None:
        self.cuda_stream = handle
        self.device = device
        self.waited: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.waited.append(event)


class Event:
    stream: Stream

    def record(self, stream: Stream) -> None:
        self.stream = stream


class Cuda:
    """The state of the stand-in: the caller's stream and the capture under way."""

    def __init__(self) -> None:
        self.main = Stream(1)
        self.capture = 0
        self.streams = 1

    def new_stream(self, device: int | None) -> int:
        self.streams += 1
        return self.streams


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    state = Cuda()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: state.main)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: Stream(handle, device))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(_core, "new_stream", state.new_stream, raising=False)
    monkeypatch.setattr(_core, "capture_id", lambda stream: state.capture, raising=False)
    monkeypatch.setattr("ngram_ple.side_stream._streams", {})
    return state


@pytest.fixture
def table() -> Table:
    return loaded(CPU).table


def prefetcher(table: Table, max_tokens: int | None = 8, depth: int = 1) -> Prefetcher:
    return Prefetcher(table, 4, torch.bfloat16, "bf16", CPU, max_tokens, depth)


def start(prefetches: Prefetcher, row: int, tokens: int = 3) -> None:
    """Look the same row up for every head of every token."""
    prefetches.start(tokens, lambda ids: ids.fill_(row))


def assert_rows(got: torch.Tensor, table: Table, row: int, tokens: int = 3) -> None:
    wanted = table.lookup(torch.full((tokens, 4), row), "bf16").flatten(1)
    assert torch.equal(got.view(torch.int16), wanted.view(torch.int16))


def test_order_sizes_and_memory(cuda: Cuda, table: Table) -> None:
    prefetches = prefetcher(table, depth=3)
    for row, tokens in ((5, 3), (6, 0), (7, 8)):
        start(prefetches, row, tokens)
    with pytest.raises(PrefetchError, match="needs a free buffer, got 3 prefetches"):
        start(prefetches, 8)
    first = prefetches.finalize(3)
    start(prefetches, 9)  # in the buffer that became free
    assert_rows(first, table, 5)
    for row, tokens in ((6, 0), (7, 8), (9, 3)):
        assert_rows(prefetches.finalize(tokens), table, row, tokens)
    with pytest.raises(PrefetchError, match="by the same thread, got none"):
        prefetches.finalize(3)
    assert prefetches.started == []


def test_a_wrong_count_drops_everything(cuda: Cuda, table: Table) -> None:
    prefetches = prefetcher(table, depth=2)
    start(prefetches, 1)
    start(prefetches, 2)
    with pytest.raises(PrefetchError, match="must get the 3 tokens that were started, got 4") as kept:
        prefetches.finalize(4)
    for row in (3, 4):  # although the error still holds its frames
        start(prefetches, row)
    assert "dropped" in str(kept.value)
    assert_rows(prefetches.finalize(3), table, 3)
    prefetches.drop()
    with pytest.raises(PrefetchError, match="got none"):
        prefetches.finalize(3)


def test_a_failed_hash_leaves_nothing_started(cuda: Cuda, table: Table) -> None:
    prefetches = prefetcher(table)

    def fail(ids: torch.Tensor) -> Any:
        raise RuntimeError("no ids")

    with pytest.raises(RuntimeError, match="no ids"):
        prefetches.start(3, fail)
    with pytest.raises(PrefetchError, match="got none"):
        prefetches.finalize(3)
    start(prefetches, 4)
    assert_rows(prefetches.finalize(3), table, 4)


def test_streams_wait_for_the_work_before_them(cuda: Cuda, table: Table) -> None:
    prefetches, side = prefetcher(table), side_streams(CPU).running
    start(prefetches, 1)
    assert [event.stream for event in side.waited] == [cuda.main]  # for the ids
    cuda.main.waited.clear()
    prefetches.finalize(3)
    assert [event.stream for event in cuda.main.waited] == [side]  # for the rows
    before, cuda.main = cuda.main, Stream(99)
    start(prefetches, 2)
    assert [event.stream for event in cuda.main.waited] == [before]  # for the copy out of the same buffer
    assert side_streams(CPU) is side_streams(torch.device("cpu"))


def test_captures_have_streams_and_buffers_of_their_own(cuda: Cuda, table: Table) -> None:
    prefetches, side = prefetcher(table, None), side_streams(CPU)
    cuda.capture = 17
    with pytest.raises(PrefetchError, match="a buffer of 3 tokens, got one of 0: construct with max_tokens"):
        start(prefetches, 1)
    cuda.capture = 0
    start(prefetches, 1)
    cuda.capture, cuda.main = 18, Stream(50)
    with pytest.raises(PrefetchError, match="got start outside and finalize inside one"):
        prefetches.finalize(3)
    start(prefetches, 2)
    assert [event.stream for event in side.captured.waited] == [cuda.main]
    assert cuda.main.waited == []  # nothing from outside
    assert_rows(prefetches.finalize(3), table, 2)
    start(prefetches, 3)
    cuda.capture = 19  # the other one ended without finalize: an error somewhere in its step
    start(prefetches, 4)
    assert_rows(prefetches.finalize(3), table, 4)
    cuda.capture = 0
    start(prefetches, 5, 6)  # larger than what graphs know
    assert_rows(prefetches.finalize(6), table, 5, 6)
    cuda.capture = 20
    with pytest.raises(PrefetchError, match="a buffer of 6 tokens, got one of 3"):
        start(prefetches, 6, 6)


def test_a_batch_must_fit(cuda: Cuda, table: Table) -> None:
    prefetches = prefetcher(table, 8)
    with pytest.raises(PrefetchError, match="takes max_tokens=8 tokens, got 9"):
        start(prefetches, 1, 9)
    start(prefetches, 1, 8)
    assert_rows(prefetches.finalize(8), table, 1, 8)


def test_threads_have_prefetches_of_their_own(cuda: Cuda, table: Table) -> None:
    prefetches, failures = prefetcher(table, depth=4), []

    def work(row: int) -> None:
        for _ in range(50):
            start(prefetches, row)
            try:
                assert_rows(prefetches.finalize(3), table, row)
            except (AssertionError, PrefetchError) as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for row in range(4):  # left behind by threads that ended
        thread = threading.Thread(target=start, args=(prefetches, row))
        thread.start()
        thread.join()
    start(prefetches, 9)
    assert_rows(prefetches.finalize(3), table, 9)
