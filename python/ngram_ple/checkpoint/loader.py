"""A table's tensors, in any order, into a sink: the one way in for files and for engines' tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ngram_ple.checkpoint.coverage import Coverage, Part
from ngram_ple.checkpoint.read import RowRead, block_rows, read_blocks, row_blocks
from ngram_ple.checkpoint.read_slots import slot_blocks
from ngram_ple.checkpoint.safetensors_file import DTYPE_CODES, TORCH_DTYPES, TensorSlice
from ngram_ple.checkpoint.scales import GlobalScales, row_scale_bytes
from ngram_ple.errors import CheckpointError

if TYPE_CHECKING:
    from ngram_ple.tables.sink import RowSink

_MAX_SMALL_BYTES = 1 << 16


class TableLoader:
    """Fill a table from named tensors and prove that every owned row was filled once.

    `add` checks a tensor; torch tensors are copied at once, slices of files are queued. `finish` proves
    coverage before it reads the queued files, then sets the global scale. `restart` lets the same memory be
    filled again.

    Parameters
    ----------
    sink : RowSink
        The memory: its format, its owned rows and where they go.
    padded_rows, split_ngram_parts : int
        Rows of the whole table and the shards a checkpoint splits it into.
    prefix : str
        What messages put before a tensor's relative name.
    threads : int, optional
        Reading threads; the CPUs at hand, at most 16, by default.
    progress : callable, optional
        Called with the bytes of each block that `finish` has read.

    Attributes
    ----------
    buffers : dict
        The stored hash buffers that came, as lists of int: some of ``layer_multipliers``,
        ``ngram_heads_vocab_sizes``, ``ngram_heads_offsets``.
    """

    def __init__(
        self,
        sink: RowSink,
        *,
        padded_rows: int,
        split_ngram_parts: int,
        prefix: str = "",
        threads: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self._sink = sink
        self._padded_rows = padded_rows
        self._split_ngram_parts = split_ngram_parts
        self._prefix = prefix
        self._threads = threads
        self._progress = progress
        self.restart()

    def restart(self) -> None:
        """Forget what was loaded: the tensors that follow fill the same memory again."""
        sink = self._sink
        self._coverage = Coverage(
            sink.format.name,
            sink.format.head_dim,
            self._padded_rows,
            self._split_ngram_parts,
            sink.row_start,
            sink.row_end,
            self._prefix,
        )
        self._queue: list[RowRead] = []
        self._global_scale = GlobalScales()
        self.buffers: dict[str, list[int]] = {}

    def add(self, name: str, source: TensorSlice | torch.Tensor) -> str | None:
        """Take one tensor.

        Parameters
        ----------
        name : str
            Relative to the prefix, ``ngram_embedding.shard_3.weight``.
        source : TensorSlice or torch.Tensor
            A tensor on any device, of any strides, with the dtype and shape of the checkpoint's.

        Returns
        -------
        str or None
            The parameter or buffer it counts as (``ngram_embedding.weight`` for a shard); None when ignored.

        Raises
        ------
        CheckpointError
            An unknown name, a wrong dtype or shape, a shard out of range, a tensor given twice, a scale that
            is not finite.
        """
        shape = tuple(source.shape)
        if isinstance(source, TensorSlice):
            part = self._coverage.accept(name, source.dtype, shape, str(source.file))
        else:
            code = DTYPE_CODES.get(source.dtype, str(source.dtype))
            part = self._coverage.accept(name, code, shape)
        if part is None:
            return None
        if part.kind == "buffer":
            self.buffers[part.leaf] = [int(value) for value in small_tensor(source).tolist()]
        elif part.kind == "global_scale":
            self._global_scale.take(small_tensor(source), part.reciprocal, f"{self._prefix}{name}")
        elif isinstance(source, TensorSlice):
            self._queue.append(RowRead(source, part.leaf, part.first_row, f"{self._prefix}{name}"))
        else:
            self._copy(source.detach(), part, name)
        return part.parameter

    def prove(self) -> None:
        """Raise CheckpointError naming what must still come, if anything."""
        self._coverage.prove()

    def finish(self) -> None:
        """Prove coverage, read what is queued and set the global scale.

        Raises
        ------
        CheckpointError
            A tensor is missing (nothing has been read then), a file ends early, a scale is not finite. The
            table must not be used then.
        """
        self.prove()
        sink = self._sink
        if sink.format.scale_bytes:
            blocks = slot_blocks(self._queue, sink.format, sink.row_start, sink.row_end)
        else:
            blocks = row_blocks(self._queue, sink.row_start, sink.row_end)
        read_blocks(blocks, sink, self._threads, self._progress)
        self._queue = []
        if self._global_scale.value is not None:
            self._sink.set_global_scale(self._global_scale.value)

    def _copy(self, tensor: torch.Tensor, part: Part, name: str) -> None:
        if tensor.is_meta:
            raise CheckpointError(
                f"{self._prefix}{name}: expected a tensor with data, got one on the meta device"
            )
        first = max(self._sink.row_start, part.first_row)
        last = min(self._sink.row_end, part.first_row + part.num_rows)
        step = block_rows(part.leaf, tensor.shape[1] * tensor.element_size())
        for row in range(first, last, step):
            begin = row - part.first_row
            count = min(step, last - row)
            block = tensor[begin : begin + count].contiguous().view(torch.uint8)
            if part.leaf != "weight":
                block = row_scale_bytes(block, DTYPE_CODES[tensor.dtype], f"{self._prefix}{name}", row)
            self._sink.write(part.leaf, row, block)


def small_tensor(source: TensorSlice | torch.Tensor) -> torch.Tensor:
    """Return a scale or a hash buffer as a CPU tensor, read from its file when it lies in one."""
    if isinstance(source, torch.Tensor):
        return source.detach().cpu()
    data = source.read_bytes(_MAX_SMALL_BYTES)
    return torch.frombuffer(data, dtype=TORCH_DTYPES[source.dtype]).view(source.shape)
