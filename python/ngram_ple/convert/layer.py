"""One table on its way from the source to the files of the destination."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from ngram_ple.checkpoint import names
from ngram_ple.checkpoint.layout import shard_rows, table_layout
from ngram_ple.checkpoint.open import Checkpoint
from ngram_ple.checkpoint.safetensors_file import DTYPE_CODES
from ngram_ple.checkpoint.safetensors_writer import TensorToWrite
from ngram_ple.checkpoint.write import default_prefix
from ngram_ple.config import NGramConfig
from ngram_ple.convert.blocks import (
    BlockEncoder,
    EncodedBlock,
    Workers,
    block_rows,
    copies_bytes,
    row_ranges,
)
from ngram_ple.convert.head_errors import HeadErrors
from ngram_ple.convert.source import SourceTable, table_files
from ngram_ple.encoding import global_scale
from ngram_ple.errors import CheckpointError
from ngram_ple.hash_plan import HashPlan


@dataclass(frozen=True)
class OutFile:
    """A file of the destination: consecutive shards of one table."""

    name: str
    layer: int
    shards: range
    nbytes: int


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
        config = NGramConfig.from_pretrained(checkpoint.config, number)
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
        for shard in range(self.shards):
            first, last = shard_rows(shard, self.plan.padded_rows, self.shards)
            if first == last:
                break
            nbytes = sum(one.nbytes for one in self._shard_tensors(shard, self.encoder(1.0), None))
            if groups and groups[-1][1] + nbytes <= max_file_bytes:
                before, size = groups[-1]
                groups[-1] = range(before.start, shard + 1), size + nbytes
            else:
                groups.append((range(shard, shard + 1), nbytes))
        return groups

    def small_tensors(self, amax: float | None) -> list[TensorToWrite]:
        """Return the stored hash buffers and the global scale: they lie in the table's first file."""
        tensors = [_small(f"{self.prefix}{name}", buffer) for name, buffer in self._buffers.items()]
        if self._layout.global_scale:
            name = f"{self.prefix}{names.shard_name(None, self._layout.global_scale.name)}"
            tensors.append(_small(name, self._global_scale(amax)))
        return tensors

    def encoded(
        self,
        encoder: BlockEncoder,
        files: Sequence[OutFile],
        workers: Workers,
        progress: Callable[[int], object],
    ) -> EncodedRows:
        """Return the rows of the shards of `files`, encoded ahead while earlier ones are written."""
        shards = chain.from_iterable(file.shards for file in files)
        return EncodedRows(self, encoder, shards, workers, progress)

    def tensors(self, file: OutFile, encoder: BlockEncoder, rows: EncodedRows) -> list[TensorToWrite]:
        """Return the tensors of a file's shards, whose rows come from `rows`."""
        return [one for shard in file.shards for one in self._shard_tensors(shard, encoder, rows)]

    def _shard_tensors(
        self, shard: int, encoder: BlockEncoder, rows: EncodedRows | None
    ) -> Iterator[TensorToWrite]:
        first, last = shard_rows(shard, self.plan.padded_rows, self.shards)
        dtypes = encoder.leaf_dtypes
        for leaf in self._layout.rows:
            name = f"{self.prefix}{names.shard_name(shard, leaf.name)}"
            fetch = _nothing if rows is None else rows.fetcher(leaf.name, shard)
            yield TensorToWrite(
                name, dtypes[leaf.name], (last - first, leaf.width), fetch, block_rows(self.source)
            )

    def _global_scale(self, amax: float | None) -> torch.Tensor:
        if self.copies:
            assert self.source.global_scale is not None
            return self.source.global_scale
        assert amax is not None
        scale = global_scale(amax, self._format, self._scale_dtype)
        return scale.bfloat16() if self._format == "fp8" and self._scale_dtype == "bf16" else scale


class EncodedRows:
    """Encoded blocks in the order in which a file's tensors want them: a shard's rows, then its scales."""

    def __init__(
        self,
        layer: Layer,
        encoder: BlockEncoder,
        shards: Iterator[int],
        workers: Workers,
        progress: Callable[[int], object],
    ) -> None:
        self._layer = layer
        self._progress = progress
        self._blocks = workers.each(encoder, self._ranges(shards))
        self._scales: list[torch.Tensor] = []
        self._errors = self._no_errors()

    def fetcher(self, leaf: str, shard: int) -> Callable[[int, int], torch.Tensor]:
        """Return the callable that a `TensorToWrite` takes its rows from."""
        start, _ = shard_rows(shard, self._layer.plan.padded_rows, self._layer.shards)
        if leaf == "weight":
            return lambda first, last: self._next(start + first, start + last)
        return lambda first, last: self._scales.pop(0)

    def take_errors(self) -> list[HeadErrors]:
        """Return the sums, by head, over what has been fetched since the last call."""
        errors, self._errors = self._errors, self._no_errors()
        return errors

    def _next(self, first: int, last: int) -> torch.Tensor:
        block: EncodedBlock = next(self._blocks)
        if (block.first, block.last) != (first, last):
            raise CheckpointError(f"rows {first}..{last} were expected, got {block.first}..{block.last}")
        for head, errors in block.errors.items():
            self._errors[head].add(errors)
        if block.scale is not None:
            self._scales.append(block.scale)
        self._progress((last - first) * self._layer.source.row_bytes)
        return block.weight

    def _ranges(self, shards: Iterator[int]) -> Iterator[tuple[int, int]]:
        step = block_rows(self._layer.source)
        for shard in shards:
            yield from row_ranges(*shard_rows(shard, self._layer.plan.padded_rows, self._layer.shards), step)

    def _no_errors(self) -> list[HeadErrors]:
        return [HeadErrors() for _ in self._layer.plan.head_sizes]


def _nothing(first: int, last: int) -> torch.Tensor:
    raise AssertionError


def _small(name: str, tensor: torch.Tensor) -> TensorToWrite:
    return TensorToWrite(
        name, DTYPE_CODES[tensor.dtype], tuple(tensor.shape), lambda first, last: tensor[first:last]
    )
