"""A prefetch on the side stream while a matrix product of the same length runs on the main stream."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from ngram_ple.benchmark.cases import INPUT_SETS, Model, make_batches
from ngram_ple.prefetch import Prefetcher
from ngram_ple.tables import PinnedTable


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def prefetch_under_product(model: Model, table: PinnedTable, tokens: int, device: torch.device) -> list[str]:
    """Time lookup, product and both together, and return a line for each target.

    Everything of a step is launched while the GPU is kept busy, so no launch is waited for. The hidden share
    is ``(lookup + product - both) / lookup``. The workers are asleep when a step begins, as in a model.
    """
    config, plan = model.config, model.plan_tensors(device)
    prefetcher = Prefetcher(table, config.num_heads, torch.bfloat16, "bf16", device, tokens, 1)
    batches = make_batches(tokens, 64, device, seed=5)

    def start(i: int) -> None:
        def hash_into(ids: torch.Tensor) -> None:
            torch.ops.ngram_ple.ngram_ids.out(
                *batches[i % INPUT_SETS], *plan, config.eos_token_id, config.heads_per_ngram, out=ids
            )

        prefetcher.start(tokens, hash_into)

    def finalize() -> torch.Tensor:
        return prefetcher.finalize(tokens)

    lookup = _step(start, lambda: None, finalize)[0]
    product = _product_of(lookup, device)
    alone = _step(lambda i: None, product, lambda: None)[0]
    both, during = _step(start, product, finalize)
    hidden, slowed = (lookup + alone - both) / lookup, during / alone - 1
    figures = f"lookup {lookup:.0f}, product {alone:.0f}, both {both:.0f}, the product then {during:.0f} us"
    return [
        f"{'met' if met else 'MISSED':6} prefetch behind a product: {what} {value:.3f} ({figures})"
        for what, value, met in (
            ("hidden", hidden, hidden >= 0.9),
            ("product slowed by", slowed, slowed <= 0.05),
        )
    ]


def _step(
    start: Callable[[int], None], product: Callable[[], None], finalize: Callable[[], object]
) -> tuple[float, float]:
    """Median µs of a whole step and of the product inside it."""
    whole, inner = [], []
    for i in range(12):
        events = [_event() for _ in range(4)]
        torch.cuda._sleep(3_000_000)
        events[0].record()
        start(i)
        events[1].record()
        product()
        events[2].record()
        finalize()
        events[3].record()
        torch.cuda.synchronize()
        if i >= 2:
            whole.append(events[0].elapsed_time(events[3]) * 1e3)
            inner.append(events[1].elapsed_time(events[2]) * 1e3)
    return statistics.median(whole), statistics.median(inner)


def _product_of(microseconds: float, device: torch.device) -> Callable[[], None]:
    """Return a bf16 product that takes about so long, by its number of rows."""
    inner, columns = 8192, 8192
    right = torch.randn((inner, columns), dtype=torch.bfloat16, device=device)
    rows = 4096
    for _ in range(4):
        left = torch.randn((rows, inner), dtype=torch.bfloat16, device=device)
        out = torch.empty((rows, columns), dtype=torch.bfloat16, device=device)

        def product(left: torch.Tensor = left, out: torch.Tensor = out) -> None:
            torch.mm(left, right, out=out)

        took = _step(lambda i: None, product, lambda: None)[1]
        if abs(took / microseconds - 1) < 0.05:
            break
        rows = max(256, round(rows * microseconds / took / 256) * 256)
    return product
