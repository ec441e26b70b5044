"""What every benchmark shares: the real model's shape, its inputs, one timer, one table printer."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ngram_ple import HashPlan, NGramConfig

VOCAB_SIZE = 248320
EOS_TOKEN_ID = 248044
HEADS = 16
HEAD_DIM = 160
INPUT_SETS = 8


@dataclass(frozen=True)
class Batch:
    """One ragged batch: what `ngram_ids` and `embed` take first."""

    input_ids: torch.Tensor
    query_start_loc: torch.Tensor
    ngram_context: torch.Tensor

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Unpack in the operators' order."""
        return iter((self.input_ids, self.query_start_loc, self.ngram_context))


def config(base: int = 20_000_000) -> NGramConfig:
    """Return the published model's configuration, with heads of `base` rows or a little more."""
    return NGramConfig(
        vocab_size=VOCAB_SIZE,
        ple_embed_dim=HEADS * HEAD_DIM,
        eos_token_id=EOS_TOKEN_ID,
        ple_layer_ids=(2,),
        ngram_vocab_size_base=base,
    )


def plan_tensors(plan: HashPlan, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """Multipliers, head sizes and head offsets as the operators take them."""
    return tuple(
        torch.tensor(values, device=device)
        for values in (plan.multipliers, plan.head_sizes, plan.head_offsets)
    )


def batches(tokens: int, requests: int, device: str = "cpu", seed: int = 0) -> list[Batch]:
    """Several sets of fresh random tokens in `requests` chunks of nearly equal length."""
    generator = torch.Generator().manual_seed(seed)
    bounds = torch.linspace(0, tokens, requests + 1).round().to(torch.int32)

    def randint(*shape: int) -> torch.Tensor:
        return torch.randint(0, VOCAB_SIZE, shape, generator=generator).to(device)

    return [Batch(randint(tokens), bounds.to(device), randint(requests, 2)) for _ in range(INPUT_SETS)]


def median_us(run: Callable[[int], object], seconds: float = 0.5, least: int = 5, most: int = 200) -> float:
    """Median wall-clock µs of ``run(i)``; `i` counts up so that a run can rotate its inputs."""
    run(0)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < least or (time.perf_counter() - began < seconds and len(times) < most):
        start = time.perf_counter()
        run(len(times) + 1)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def interleaved_us(runs: dict[str, Callable[[int], object]], rounds: int = 9) -> dict[str, float]:
    """Medians of several ways timed in turn, so that a drift of the machine meets all of them."""
    for run in runs.values():
        run(0)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(1, rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run(i)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(spent) * 1e6 for name, spent in times.items()}


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", metavar="FILE", help="also write the figures there")
    made.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    return made


def report(rows: Sequence[dict[str, Any]], json_file: str | None) -> None:
    """Print rows of figures as a table and, when asked, write them as JSON."""
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(columns)]
    for line in [columns, *cells]:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    if json_file is not None:
        Path(json_file).write_text(json.dumps(list(rows), indent=1), encoding="utf-8")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
    return str(value)
