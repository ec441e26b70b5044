"""Timers: GPU work as captured graphs, CPU work by the clock, several ways always in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

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
    if device.type != "cuda":
        return _clock(ways, sets, rounds)
    graphs = {name: _captured(run, sets) for name, run in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (graph, calls) in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            graph.replay()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / calls)
    return {name: statistics.median(spent) for name, spent in times.items()}


def copy_rate(device: torch.device, nbytes: int = 4 << 30, tries: int = 10) -> float:
    """Best rate of a copy inside `device`'s memory, bytes read and written a second."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    if device.type == "cuda":
        best = min(
            timed_in_turn({"copy": lambda i: target.copy_(source)}, device, 1, 1)["copy"]
            for _ in range(tries)
        )
    else:
        best = min(_clock({"copy": lambda i: target.copy_(source)}, 1, 1)["copy"] for _ in range(tries))
    return 2 * nbytes / best * 1e6


def _captured(run: Run, sets: int) -> tuple[torch.cuda.CUDAGraph, int]:
    for i in range(sets):
        run(i)
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    run(0)
    end.record()
    end.synchronize()
    # Enough calls in a graph that its own start does not count; few when one call is long.
    calls = sets * max(1, min(16, round(400 / sets / max(1.0, start.elapsed_time(end) * 1e3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            run(i % sets)
    graph.replay()
    torch.cuda.synchronize()
    return graph, calls


def _clock(ways: Mapping[str, Run], sets: int, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        run(0)
    for i in range(rounds):
        for name, run in ways.items():
            start = time.perf_counter()
            run((i + 1) % sets)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(spent) * 1e6 for name, spent in times.items()}
