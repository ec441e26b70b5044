"""What ranks do in the tests of ETP: functions of (process group, ...) that processes can be told to call."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from modules import CONFIG, rows_of, tensors_of
from ngram_ple import NGramEmbedding
from ngram_ple.parallel import EtpGroup, ShardedTable

_modules: dict[str, NGramEmbedding] = {}


def make_batch(seed: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Few different tokens, so that n-grams repeat."""
    rng = random.Random(seed)
    bounds = sorted([0, tokens, *(rng.randint(0, tokens) for _ in range(rng.randint(0, 3)))])
    ids = [rng.choice([7, 1, 2, 3, 400, 900]) for _ in range(tokens)]
    contexts = [[rng.choice([7, 1, 2]) for _ in range(2)] for _ in bounds[1:]]
    return torch.tensor(ids, dtype=torch.int64), torch.tensor(bounds), torch.tensor(contexts).view(-1, 2)


def module_of(
    group: dist.ProcessGroup, format: str, tp_size: int, exchange: str, slot: int | None, dtype: torch.dtype,
    **options: Any,
) -> NGramEmbedding:  # fmt: skip
    """A loaded module over the group, made once."""
    key = repr((dist.get_process_group_ranks(group), format, tp_size, exchange, slot, dtype, options))
    if key not in _modules:
        etp = EtpGroup(group, tp_size, exchange=exchange, slot_tokens=slot)
        module = NGramEmbedding(CONFIG, format=format, placement="cpu", dtype=dtype, etp=etp, **options)
        module.load_weights(tensors_of(rows_of(format)).items())
        module.finish_loading()
        _modules[key] = module
    return _modules[key]


def step(
    group: dist.ProcessGroup, how: dict[str, Any], seeds: list[int], counts: list[int], tell_counts: bool
) -> dict[str, Any]:
    """One forward and one lookup of the batch of this rank's data-parallel rank."""
    module = module_of(group, **how)
    etp = module.etp
    assert etp is not None
    batch = make_batch(seeds[etp.dp], counts[etp.dp])
    told = counts if tell_counts else None
    sharded = module._rows
    assert isinstance(sharded, ShardedTable)
    before = sharded.wire_bytes
    rows = module(*batch, token_counts=told)
    sent = sharded.wire_bytes - before
    ids = module.compute_ngram_ids(*batch)
    ids = torch.where(torch.arange(ids.numel()).view(ids.shape) % 5 == 3, -1, ids)  # padding
    return {
        "rows": rows.view(torch.uint8).clone(),
        "lookup": module.sync_lookup(ids, token_counts=told).view(torch.uint8).clone(),
        "sent": sent,
        "exchange": sharded.last_exchange,
        "range": (module.table.row_start, module.table.row_end),
    }


def from_pretrained(group: dist.ProcessGroup, folders: list[str], exchange: str) -> dict[str, Any]:
    """Load a folder of this rank's own, and what a batch gives."""
    etp = EtpGroup(group, exchange=exchange)
    module = NGramEmbedding.from_pretrained(folders[etp.rank], placement="cpu", etp=etp)
    rows = module(*make_batch(3, 20 + etp.rank))
    return {"slots": module.table.slots.clone(), "start": module.table.row_start, "rows": rows.clone()}


def load_with(group: dist.ProcessGroup, fault: str, again: bool) -> torch.Tensor:
    """load_weights and finish_loading with something wrong on the last rank; then perhaps a whole load."""
    etp = EtpGroup(group, exchange="exchange")
    module = NGramEmbedding(CONFIG, format="fp8", placement="cpu", etp=etp)
    tensors = tensors_of(rows_of("fp8"))
    if etp.rank == etp.size - 1:
        if fault == "unknown":
            tensors["ngram_embedding.shard_0.wrong"] = torch.zeros(1)
        if fault == "missing":
            del tensors["ngram_embedding.shard_4.weight"]
        if fault == "other scale":
            tensors["ngram_embedding.weight_scale"] = torch.tensor([2.0])
    try:
        module.load_weights(tensors.items())
        module.finish_loading()
    except Exception:
        if not again:
            raise
        if fault == "missing":  # the others have all they need
            if etp.rank == etp.size - 1:
                module.load_weights([("ngram_embedding.shard_4.weight", rows_of("fp8").weight[104:])])
        else:
            module.load_weights(tensors_of(rows_of("fp8")).items())
        module.finish_loading()
    return module(*make_batch(5, 9)).clone()


def construct(group: dist.ProcessGroup, options: list[dict[str, Any]], **etp_options: Any) -> str:
    """Construct with options of this rank's own."""
    etp = EtpGroup(group, **etp_options)
    module = NGramEmbedding(CONFIG, etp=etp, **{"placement": "cpu", **options[etp.rank]})
    return repr(module)


def refusals(group: dist.ProcessGroup) -> list[str]:
    """What a module over a group refuses, without a word to the others."""
    module = module_of(group, "bf16", 1, "exchange", None, torch.bfloat16)
    slots = module_of(group, "bf16", 1, "reduce", 4, torch.bfloat16)

    def state_dict() -> None:
        module.table_in_state_dict = True
        try:
            module.state_dict()
        finally:
            module.table_in_state_dict = False

    calls = [
        lambda: module(*make_batch(0, 3), token_counts=[4, 4]),
        lambda: module(*make_batch(0, 3), token_counts=[3]),
        lambda: slots(*make_batch(0, 5)),
        state_dict,
        lambda: module.load_state_dict({**module.state_dict(), "ngram_embedding.slots": module.table.slots}),
    ]
    told = []
    for call in calls:
        try:
            call()
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


def over_mesh(group: dist.ProcessGroup) -> torch.Tensor:
    """Two ETP groups of two inside a DP of four."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("groups", "etp"))
    etp = EtpGroup.from_mesh(mesh, "etp", exchange="exchange")
    module = NGramEmbedding(CONFIG, placement="cpu", etp=etp)
    module.load_weights(tensors_of(rows_of("bf16")).items())
    module.finish_loading()
    return module(*make_batch(dist.get_rank(), 3 * dist.get_rank())).clone()


def on_meta(group: dist.ProcessGroup) -> torch.Tensor:
    """A module made on meta, then allocated."""
    module = NGramEmbedding(CONFIG, placement="cpu", device="meta", etp=EtpGroup(group, exchange="exchange"))
    module.to_empty(device="cpu")
    module.load_weights(tensors_of(rows_of("bf16")).items())
    module.finish_loading()
    return module(*make_batch(1, 6)).clone()


def end_in_step(group: dist.ProcessGroup, exchange: str, how: str) -> tuple[str, float]:
    """Rank 1 ends, or stops taking part, while the others are in a step: what they get, after how long."""
    module = module_of(group, "bf16", 1, exchange, None, torch.bfloat16)
    module(*make_batch(0, 5))
    if dist.get_rank(group) == 1:
        if how == "ends":
            os._exit(3)
        time.sleep(60)
    began = time.monotonic()
    try:
        for seed in range(5):
            module(*make_batch(seed, 6))
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    return "no error", time.monotonic() - began


def paths(folder: Path, count: int) -> list[str]:
    return [str(folder)] * count
