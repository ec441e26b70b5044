"""Ranks that end or stop in the middle of a step."""

from __future__ import annotations

import etp_tasks
import pytest
from etp_world import World


@pytest.mark.parametrize("exchange", ["reduce", "exchange"])
@pytest.mark.parametrize("how", ["ends", "stops"])
def test_the_others_get_an_error_in_time(exchange: str, how: str) -> None:
    world = World(3, timeout=8)
    try:
        world.start(range(3), etp_tasks.end_in_step, exchange, how)
        for rank in (0, 2):
            error, seconds = world.answer(rank)
            assert error.startswith("ExchangeError: ")
            assert "over the ETP group failed, has a rank ended?" in error
            assert seconds < 40
    finally:
        world.stop()
