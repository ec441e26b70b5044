"""Rates of a machine for `ngram_ple.planning`, as `ngram-ple bench --save` measures them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ngram_ple import ops
from ngram_ple.benchmark.cases import Model, make_random_table
from ngram_ple.benchmark.timing import timed_in_turn
from ngram_ple.planning import Rates

_LOOKED_UP = 131072  # rows: 8192 tokens of 16 heads
_COPIED = 1 << 30


def measured_rates(
    hardware: str, placement: str, rows: Iterable[Mapping[str, Any]], device: torch.device, host_bytes: int
) -> Rates:
    """Measure what the operators' figures do not tell, and put all together.

    Parameters
    ----------
    hardware : str
    placement : str
        Of the operators' figures, "device" or "cpu".
    rows : iterable of mapping
        Those figures: format, T and "embed us".
    device : torch.device
    host_bytes : int
        Host memory that may be pinned for a while.
    """
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        times.setdefault(row["format"], {})[row["T"]] = row["embed us"]
    if device.type != "cuda":
        return Rates(hardware, "measured", {placement: times})
    return Rates(
        hardware,
        "measured",
        {placement: times},
        host_to_device=_host_to_device(device, min(_COPIED, host_bytes // 4)),
        peer=_peer(device),
        pinned_row_ns=_pinned_row_ns(device, host_bytes),
    )


def _host_to_device(device: torch.device, nbytes: int) -> float:
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return _copy_rate(target, source)


def _peer(device: torch.device) -> float | None:
    others = [i for i in range(torch.cuda.device_count()) if i != device.index]
    if not others or not torch.cuda.can_device_access_peer(device.index, others[0]):
        return None
    source = torch.empty(_COPIED, dtype=torch.uint8, device=torch.device("cuda", others[0]))
    return _copy_rate(torch.empty_like(source, device=device), source)


def _copy_rate(target: torch.Tensor, source: torch.Tensor) -> float:
    best = float("inf")
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        best = min(best, float(start.elapsed_time(end)) / 1e3)
    return source.nbytes / best


def _pinned_row_ns(device: torch.device, host_bytes: int) -> float:
    """Random rows of a pinned table of 12 GiB, or what there is room for."""
    format = Model().row_format("fp8")
    count = min(12 << 30, host_bytes // 2) // format.slot_bytes
    table = make_random_table(format, count, "pinned", device)
    ids = [torch.randint(0, count, (_LOOKED_UP,), device=device) for _ in range(4)]
    scale = table.global_scale

    def lookup(i: int) -> torch.Tensor:
        return ops.lookup(
            ids[i], table.slots, None, scale, format="fp8", out_dtype="bf16", head_dim=format.head_dim
        )

    spent = timed_in_turn({"lookup": lookup}, device, len(ids), rounds=5)["lookup"]
    return spent / _LOOKED_UP * 1e3
