"""Ctrl-C while a table is read: the reading threads stop at their next block."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from checkpoints import make_source, sink_for
from ngram_ple.checkpoint.read import Hands, read_blocks


@dataclass
class SlowBlock:
    copied: list[int] = field(default_factory=list)
    nbytes: int = 1

    def copy(self, hands: Hands) -> None:
        time.sleep(0.02)
        self.copied.append(1)


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard() -> Iterator[None]:
    """A shell's background jobs ignore it, and so would Python in one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_threads_stop(threads: int) -> None:
    block = SlowBlock()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        read_blocks(iter([block] * 3000), sink_for(make_source("bf16")), threads)
    assert time.monotonic() - began < 10
    assert len(block.copied) < 2000
