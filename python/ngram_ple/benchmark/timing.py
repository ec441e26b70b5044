"""Timers: GPU work as captured graphs, CPU work by the clock, several ways always in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

Run = Callable[[int], object]
"""Does its work on input set i."""


def timed_in_turn(
    ways: Mapping[str, Run], device: torch.device, sets: int, rounds: int = 11
) -> dict[str, float]:
    """Median µs of one call of each way.

    Parameters
    ----------
    ways : mapping
        Calls that write to memory allocated before.
    device : torch.device
        On a GPU every way is captured once, `sets` calls over rotating inputs in one CUDA graph (several
        times over for short calls), and replayed; elsewhere single calls are timed.
    sets : int
        Input sets to rotate over.
    rounds : int
        Measurements of each way, A B C A B C …, so that a drift of the machine meets all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    if device.type != "cuda":
        for run in ways.values():
            run(0)
        for i in range(rounds):
            for name, run in ways.items():
                times[name].append(_by_clock(partial(run, (i + 1) % sets)))
        return {name: statistics.median(spent) for name, spent in times.items()}
    graphs = {name: _captured(run, sets) for name, run in ways.items()}
    for graph, _ in graphs.values():  # clocks fall while tables are made: 20 ms of work each raise them
        spent = 0.0
        while spent < 20_000:
            spent += _between_events(graph.replay)
    for _ in range(rounds):
        for name, (graph, calls) in graphs.items():
            graph.replay()
            times[name].append(_between_events(graph.replay) / calls)
    return {name: statistics.median(spent) for name, spent in times.items()}


def copy_rate(device: torch.device, nbytes: int = 4 << 30, tries: int = 10) -> float:
    """Best rate of a copy inside `device`'s memory, bytes read and written a second."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    # Not captured: as a node of a graph a copy runs at two thirds of this rate on an H200.
    time_once = _between_events if device.type == "cuda" else _by_clock
    return 2 * nbytes / min(time_once(lambda: target.copy_(source)) for _ in range(tries)) * 1e6


def _between_events(call: Callable[[], object]) -> float:
    """µs between two events around one call."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _by_clock(call: Callable[[], object]) -> float:
    """µs of one call by the clock."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def _captured(run: Run, sets: int) -> tuple[torch.cuda.CUDAGraph, int]:
    """Capture some 1 ms of calls, so that the 2 µs by which a graph starts late do not count."""
    for i in range(sets):
        run(i)
    torch.cuda.synchronize()
    rotation = _graph_of(run, sets, sets)
    rotations = max(1, min(_MOST_CALLS // sets, round(1000 / _between_events(rotation.replay))))
    return _graph_of(run, sets, sets * rotations), sets * rotations


_MOST_CALLS = 256


def _graph_of(run: Run, sets: int, calls: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            run(i % sets)
    graph.replay()
    torch.cuda.synchronize()
    return graph
