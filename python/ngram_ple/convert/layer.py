"""One table on its way from the source to the files of the destination."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, NamedTuple

import torch

from ngram_ple.checkpoint import names
from ngram_ple.checkpoint.layout import filled_shards, shard_rows, table_layout
from ngram_ple.checkpoint.open import Checkpoint
from ngram_ple.checkpoint.safetensors_file import DTYPE_CODES, TORCH_DTYPES
from ngram_ple.checkpoint.safetensors_writer import TensorEntry, file_header, pwrite_all
from ngram_ple.checkpoint.write import default_prefix
from ngram_ple.convert.blocks import BlockEncoder, Workers, block_rows, copies_bytes, row_ranges
from ngram_ple.convert.head_errors import HeadErrors
from ngram_ple.convert.source import Reader, SourceTable, table_files
from ngram_ple.encoding import global_scale
from ngram_ple.hash_plan import HashPlan

_SYNC_BYTES = 64 << 20  # what is written goes to the disk in such pieces, while more is encoded


@dataclass(frozen=True)
class OutFile:
    """A file of the destination: consecutive shards of one table."""

    name: str
    layer: int
    shards: range
    nbytes: int


class _Block(NamedTuple):
    """Rows [first, last), and where in the file each of their leaves goes."""

    first: int
    last: int
    offsets: list[int]


class Layer:
    """One PLE layer: its source, its plan and how it is to be stored.

    Parameters
    ----------
    checkpoint : Checkpoint
    number : int
        Index among the PLE layers.
    format : str
        The target's.
    shards : int
        Shards to write.
    scale_dtype : str
        "bf16" or "fp32", of fp8's and fp8-rowwise's scales.
    saturate : bool
    """

    def __init__(
        self, checkpoint: Checkpoint, number: int, format: str, shards: int, scale_dtype: str, saturate: bool
    ) -> None:
        config = checkpoint.ngram_config(number)
        stored = checkpoint.table(config)
        self.number = number
        self.config = config
        self.plan = HashPlan.from_config(config).with_buffers(dict(stored.buffers), str(checkpoint.folder))
        self.prefix = stored.prefix or default_prefix(config)
        self.source_files = table_files(stored)
        self.source_format = stored.format
        self.source = SourceTable(stored, self.plan.padded_rows)
        self.shards = shards
        self._format = format
        self._scale_dtype = scale_dtype
        self._saturate = saturate
        self._buffers = {
            name: torch.tensor(values, dtype=torch.int64) for name, values in stored.buffers.items()
        }
        self.copies = copies_bytes(self.source, format)
        self._layout = table_layout(format, config.head_dim)
        self.needs_amax = self._layout.global_scale is not None and not self.copies

    @property
    def copied_scale_dtype(self) -> torch.dtype | None:
        """What a table that is copied has its scales stored as; None where it is encoded."""
        if not self.copies:
            return None
        whole = self.source.global_scale
        return TORCH_DTYPES[self.source.scale_dtype] if whole is None else whole.dtype

    @property
    def shard_tensors(self) -> int:
        """Tensors of a shard."""
        return len(self._layout.rows)

    @property
    def small_tensors(self) -> int:
        """Tensors beside the shards': stored hash buffers, the global scale."""
        return len(self._buffers) + (self._layout.global_scale is not None)

    @property
    def source_bytes(self) -> int:
        """Bytes of rows and scales that one pass reads."""
        return self.source.padded_rows * self.source.row_bytes

    def encoder(self, amax: float | None) -> BlockEncoder:
        """Return what encodes the table's blocks, its amax having been found where that is needed."""
        return BlockEncoder(
            self.source,
            self.plan,
            self._format,
            float(self._global_scale(amax).float()) if self._layout.global_scale else 1.0,
            self._scale_dtype == "bf16",
            self._saturate,
            self.copies,
        )

    def files(self, max_file_bytes: int) -> list[tuple[range, int]]:
        """Group consecutive shards, up to `max_file_bytes` or one alone; with the bytes of each group."""
        groups: list[tuple[range, int]] = []
        encoder = self.encoder(1.0)
        for shard in range(filled_shards(self.plan.padded_rows, self.shards)):
            nbytes = sum(one.nbytes for one in self._shard_tensors(shard, encoder))
            if groups and groups[-1][1] + nbytes <= max_file_bytes:
                before, size = groups[-1]
                groups[-1] = range(before.start, shard + 1), size + nbytes
            else:
                groups.append((range(shard, shard + 1), nbytes))
        return groups

    def tensors(self, shards: range, amax: float | None) -> tuple[list[TensorEntry], list[torch.Tensor]]:
        """Return the tensors of a file in their order, and those that do not come from the rows.

        The latter, the stored hash buffers and the global scale, are the first ones of the first file.
        """
        small = {}
        if shards.start == 0:
            small = {f"{self.prefix}{name}": buffer for name, buffer in self._buffers.items()}
            if self._layout.global_scale:
                name = names.shard_name(None, self._layout.global_scale.name)
                small[f"{self.prefix}{name}"] = self._global_scale(amax)
        entries = [
            TensorEntry(name, DTYPE_CODES[tensor.dtype], tuple(tensor.shape))
            for name, tensor in small.items()
        ]
        encoder = self.encoder(amax)
        for shard in shards:
            entries += self._shard_tensors(shard, encoder)
        return entries, list(small.values())

    def write(
        self,
        file: BinaryIO,
        shards: range,
        amax: float | None,
        workers: Workers,
        progress: Callable[[int], object],
    ) -> list[HeadErrors]:
        """Write a whole file of the destination; return what encoding changed, by head.

        Workers read, encode and write blocks; what they wrote goes to the disk meanwhile.
        """
        entries, small = self.tensors(shards, amax)
        header, begins = file_header(entries)
        file.write(header)
        for tensor in small:
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        encoder, fd = self.encoder(amax), file.fileno()

        def work(reader: Reader, block: _Block) -> tuple[int, int, dict[int, HeadErrors]]:
            leaves, errors = encoder(reader, block.first, block.last)
            data = [leaf.reshape(-1).view(torch.uint8).numpy().data for leaf in leaves]
            for view, offset in zip(data, block.offsets, strict=True):
                pwrite_all(fd, view, offset)
            return block.last - block.first, sum(view.nbytes for view in data), errors

        heads = [HeadErrors() for _ in self.plan.head_sizes]
        unsynced = 0
        placed = zip(entries[len(small) :], begins[len(small) :], strict=True)
        with closing(workers.each(work, self._blocks(shards, placed))) as done:
            for rows, nbytes, errors in done:
                for head, sums in errors.items():
                    heads[head].add(sums)
                progress(rows * self.source.row_bytes)
                unsynced += nbytes
                if unsynced >= _SYNC_BYTES:
                    os.fdatasync(fd)
                    unsynced = 0
        return heads

    def _blocks(self, shards: range, placed: Iterator[tuple[TensorEntry, int]]) -> Iterator[_Block]:
        step = block_rows(self.source)
        for shard in shards:
            leaves = list(islice(placed, len(self._layout.rows)))
            start, end = shard_rows(shard, self.plan.padded_rows, self.shards)
            for first, last in row_ranges(start, end, step):
                offsets = [begin + (first - start) * (leaf.nbytes // (end - start)) for leaf, begin in leaves]
                yield _Block(first, last, offsets)

    def _shard_tensors(self, shard: int, encoder: BlockEncoder) -> Iterator[TensorEntry]:
        first, last = shard_rows(shard, self.plan.padded_rows, self.shards)
        dtypes = encoder.leaf_dtypes
        for leaf in self._layout.rows:
            name = f"{self.prefix}{names.shard_name(shard, leaf.name)}"
            yield TensorEntry(name, dtypes[leaf.name], (last - first, leaf.width))

    def _global_scale(self, amax: float | None) -> torch.Tensor:
        if self.copies:
            assert self.source.global_scale is not None
            return self.source.global_scale
        assert amax is not None
        scale = global_scale(amax, self._format, self._scale_dtype)
        return scale.bfloat16() if self._format == "fp8" and self._scale_dtype == "bf16" else scale
