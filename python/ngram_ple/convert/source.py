"""A stored table's rows by range, as numbers or as they are stored."""

from __future__ import annotations

from bisect import bisect_right
from itertools import takewhile
from pathlib import Path

import torch

from ngram_ple import ops
from ngram_ple.checkpoint import names
from ngram_ple.checkpoint.coverage import Coverage
from ngram_ple.checkpoint.loader import small_tensor
from ngram_ple.checkpoint.open import StoredTable
from ngram_ple.checkpoint.read import OpenFiles, RowRead
from ngram_ple.checkpoint.safetensors_file import TORCH_DTYPES, pread_into
from ngram_ple.checkpoint.scales import GlobalScales

PLAIN = ("bf16", "fp16", "fp32")


class Reader(OpenFiles):
    """What one thread reads with: open files, and memory that is used again for each block."""

    def __init__(self) -> None:
        super().__init__()
        self._memory: dict[str, torch.Tensor] = {}

    def scratch(self, leaf: str, nbytes: int) -> torch.Tensor:
        """Return uint8 ``[nbytes]``, the same memory each time."""
        memory = self._memory.get(leaf)
        if memory is None or memory.numel() < nbytes:
            memory = self._memory[leaf] = torch.empty(nbytes, dtype=torch.uint8)
        return memory[:nbytes]


class SourceTable:
    """The rows of a table that a checkpoint covers wholly.

    Parameters
    ----------
    stored : StoredTable
    padded_rows : int

    Attributes
    ----------
    title : str
        The table's name, for messages.
    format : str
    values_format : str
        What `values` returns: the table's own format where that is plain, else fp32.
    row_bytes : int
        Bytes that are read for a row, its scales included.
    scale_dtype : str
        Safetensors code of the scales of rows, "" without any.
    global_scale : torch.Tensor or None
        As stored, inverted where it was stored so.

    Raises
    ------
    CheckpointError
        What `StoredTable.check` raises, a global scale that is not finite.
    """

    def __init__(self, stored: StoredTable, padded_rows: int) -> None:
        config = stored.config
        self.title = f"{stored.prefix}ngram_embedding"
        self.format = stored.format
        self.head_dim = config.head_dim
        self.padded_rows = padded_rows
        self.values_format = stored.format if stored.format in PLAIN else "fp32"
        self.global_scale: torch.Tensor | None = None
        self._reads: dict[str, list[RowRead]] = {"weight": [], "weight_scale": []}
        coverage = Coverage(
            stored.format, config.head_dim, padded_rows, config.split_ngram_parts, prefix=stored.prefix
        )
        scales = GlobalScales()
        for name, tensor in stored.tensors.items():
            part = coverage.accept(name, tensor.dtype, tensor.shape, str(tensor.file))
            if part is None or part.kind == "buffer":
                continue
            full = f"{stored.prefix}{name}"
            if part.kind == "rows":
                self._reads[part.leaf].append(RowRead(tensor, part.leaf, part.first_row, full))
                continue
            value = small_tensor(tensor)
            scales.take(value, part.reciprocal, full)
            assert scales.value is not None
            self.global_scale = torch.tensor([scales.value])
            if not part.reciprocal:
                self.global_scale = self.global_scale.to(value.dtype)  # as it was: exact
        coverage.prove()
        for reads in self._reads.values():
            reads.sort(key=lambda read: read.first_row)
        found = [reads[0] for reads in self._reads.values() if reads]
        self.row_bytes = sum(read.row_bytes for read in found)
        scale_reads = self._reads["weight_scale"]
        self.scale_dtype = scale_reads[0].source.dtype if scale_reads else ""

    def values(self, reader: Reader, first: int, last: int) -> torch.Tensor:
        """Return rows [first, last) as numbers: `values_format` ``[n, head_dim]``.

        They may lie in the reader's memory, until its next block.
        """
        leaves = self.stored(reader, first, last)
        if self.format in PLAIN:
            return leaves["weight"]
        whole = None if self.global_scale is None else self.global_scale.float()
        return ops.decode(
            leaves["weight"], leaves.get("weight_scale"), whole,
            format=self.format, out_dtype="fp32", head_dim=self.head_dim,
        )  # fmt: skip

    def stored(self, reader: Reader, first: int, last: int) -> dict[str, torch.Tensor]:
        """Return rows [first, last) as they are stored, and the scales that belong to them, by leaf.

        They lie in the reader's memory, until its next block.
        """
        return {leaf: self._leaf(reader, leaf, first, last) for leaf, reads in self._reads.items() if reads}

    def _leaf(self, reader: Reader, leaf: str, first: int, last: int) -> torch.Tensor:
        reads = self._reads[leaf]
        some = reads[0]
        block = reader.scratch(leaf, (last - first) * some.row_bytes)
        view = block.numpy().data.cast("B")
        begin = bisect_right(reads, first, key=lambda read: read.end_row)
        for read in takewhile(lambda read: read.first_row < last, reads[begin:]):
            row, end = max(first, read.first_row), min(last, read.end_row)
            fd, offset = reader.place(read, row)
            begin = (row - first) * read.row_bytes
            pread_into(fd, view[begin : begin + (end - row) * read.row_bytes], offset, read.source.file)
        return block.view(TORCH_DTYPES[some.source.dtype]).view(last - first, some.source.shape[1])


def table_files(stored: StoredTable) -> set[Path]:
    """Return the files that hold the table's tensors, buffers included."""
    return {
        tensor.file
        for name, tensor in stored.tensors.items()
        if name in names.BUFFERS or names.parse_table_tensor(name) is not None
    }
