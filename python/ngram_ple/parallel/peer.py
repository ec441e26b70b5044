"""Rows read where they are: in the memory of the GPU that owns them, over NVLink or PCIe."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from ngram_ple import peer_ops
from ngram_ple.errors import ExchangeError
from ngram_ple.formats import RowFormat
from ngram_ple.parallel.exchanges import Batch, Exchange
from ngram_ple.parallel.group import EtpGroup
from ngram_ple.tables import DeviceTable


class PeerTable(DeviceTable):
    """A rank's rows in memory that the other GPUs of the host have mapped too.

    Parameters
    ----------
    format : RowFormat
    row_start, row_end : int
        The global rows held.
    block : Tensor
        uint8 ``[rows_per_rank, slot_bytes]``, of which the first rows are they: all ranks' are equal.
    block_addresses : Tensor
        int64 ``[ranks]`` on the block's device: where it finds each rank's block.
    mapping : object
        What keeps the others' blocks mapped.
    """

    def __init__(
        self,
        format: RowFormat,
        row_start: int,
        row_end: int,
        block: torch.Tensor,
        block_addresses: torch.Tensor,
        mapping: object,
    ) -> None:
        super().__init__(format, row_start, row_end, block.device, block[: row_end - row_start])
        self.block = block
        self.block_addresses = block_addresses
        self._mapping = mapping


class Peer(Exchange):
    """One kernel reads every row from its owner: no collective, no wait, nothing to pad.

    Whoever reads must know that the others' tables are whole: `finish_loading` ends on all ranks together.
    """

    name = "peer"
    table: PeerTable

    def __init__(self, group: EtpGroup, table: PeerTable, padded_rows: int) -> None:
        super().__init__(group, table)
        self._padded_rows = padded_rows

    def lookup(self, ids: torch.Tensor, out_dtype: str, slot: int) -> torch.Tensor:
        """Read and decode rows of any rank."""
        table = self.table
        return peer_ops.lookup_peers(
            ids,
            table.block,
            table.block_addresses,
            table.global_scale,
            format=table.format.name,
            out_dtype=out_dtype,
            head_dim=table.format.head_dim,
            num_rows=self._padded_rows,
        )

    def embed(
        self,
        batch: Batch,
        plan: Sequence[torch.Tensor],
        eos_token_id: int,
        heads_per_ngram: int,
        out_dtype: str,
        slot: int,
    ) -> torch.Tensor:
        """Hash, read and decode in one kernel."""
        table = self.table
        return peer_ops.embed_peers(
            *batch,
            plan[0],
            plan[1],
            plan[2],
            eos_token_id,
            heads_per_ngram,
            table.block,
            table.block_addresses,
            table.global_scale,
            format=table.format.name,
            out_dtype=out_dtype,
            head_dim=table.format.head_dim,
            num_rows=self._padded_rows,
        )


def make_peer_table(group: EtpGroup, format: RowFormat, padded_rows: int, device: torch.device) -> PeerTable:
    """Allocate this rank's block where the others can read it; collective.

    Raises
    ------
    ExchangeError
        Why it cannot be, the same on all ranks: no GPUs of one host, no symmetric memory or peer access.
    """
    _check_topology(group, device)
    start, end = group.row_range(padded_rows)
    rows = max(1, group.rows_per_rank(padded_rows))
    block, addresses, mapping = group.agree(
        "mapping the table's memory on all ranks",
        lambda: _symmetric_block(group, (rows, format.slot_bytes), device),
    )
    return PeerTable(format, start, end, block, addresses, mapping)


def _check_topology(group: EtpGroup, device: torch.device) -> None:
    """Find out, before anyone waits for anyone, whether mapping can be tried at all."""
    is_gpu = device.type == "cuda"
    gpu = str(torch.cuda.get_device_properties(device).uuid) if is_gpu else str(device)
    has_memory = importlib.util.find_spec("torch.distributed._symmetric_memory") is not None
    missing = None if is_gpu and has_memory else "no symmetric memory in torch" if is_gpu else "no GPU"
    places = group.gather((gpu, missing, _namespace()))
    for rank, (gpu, missing, namespace) in enumerate(places):
        if missing is not None:
            raise ExchangeError(f"rank {rank} of the ETP group has {missing}")
        if group.hosts[rank] != group.hosts[0]:
            raise ExchangeError(f"ranks 0 and {rank} of the ETP group are on different hosts")
        if namespace != places[0][2]:  # processes that cannot see each other cannot hand memory over
            raise ExchangeError(f"ranks 0 and {rank} of the ETP group are in different containers")
        if gpu in [other for other, *_ in places[:rank]]:
            raise ExchangeError(f"rank {rank} of the ETP group shares its GPU with another")


def _namespace() -> str:
    link = Path("/proc/self/ns/pid")
    return str(link.readlink()) if link.is_symlink() else ""


def _symmetric_block(
    group: EtpGroup, shape: tuple[int, int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, object]:
    """Allocate equal blocks and map them on all ranks: block, addresses, what holds the mapping."""
    from torch.distributed import _symmetric_memory as symmetric_memory

    try:
        with torch.cuda.device(device), _no_multicast():
            block = symmetric_memory.empty(shape, dtype=torch.uint8, device=device)
            mapping = symmetric_memory.rendezvous(block, group.rows_group)
    except RuntimeError as error:
        first = str(error).strip().split("\n")[0]
        raise ExchangeError(f"torch could not map {shape[0] * shape[1]} bytes a rank: {first}") from error
    bases = list(mapping.buffer_ptrs)
    offset = block.data_ptr() - bases[group.rank]  # of the block in its allocation, the same on all
    return block, torch.tensor([base + offset for base in bases], dtype=torch.int64, device=device), mapping


@contextmanager
def _no_multicast() -> Iterator[None]:
    """Keep torch from making a multicast mapping of the table beside the others: nothing would use it."""
    name = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
