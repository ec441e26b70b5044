"""Opening a checkpoint folder: its configuration, its files, and the tables in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngram_ple.checkpoint import names
from ngram_ple.checkpoint.coverage import Coverage
from ngram_ple.checkpoint.detect import detect_format
from ngram_ple.checkpoint.files import Report, locate_tensors
from ngram_ple.checkpoint.loader import TableLoader, small_tensor
from ngram_ple.checkpoint.safetensors_file import TensorSlice
from ngram_ple.config import NGramConfig, config_file, naming, read_config
from ngram_ple.errors import CheckpointError, ConfigError
from ngram_ple.hash_plan import HashPlan
from ngram_ple.quantization import explain_format

if TYPE_CHECKING:
    from ngram_ple.tables.sink import RowSink


@dataclass(frozen=True)
class StoredTable:
    """One PLE layer's table as it lies in a checkpoint.

    Attributes
    ----------
    config : NGramConfig
    prefix : str
        What stands before the relative names, with its final dot; may be empty.
    tensors : mapping
        The tensors under the prefix by relative name; ignored ones (``hashstats_*``) are left out.
    format, format_rule : str
        One of bf16 fp16 fp32 fp8 fp8-rowwise nvfp4, and the rule that decided it, in words.
    buffers : mapping
        The hash buffers that are stored, as lists of int: some of ``layer_multipliers``,
        ``ngram_heads_vocab_sizes``, ``ngram_heads_offsets``.
    """

    config: NGramConfig
    prefix: str
    tensors: Mapping[str, TensorSlice]
    format: str
    format_rule: str
    buffers: Mapping[str, list[int]]

    def check(self, padded_rows: int, row_start: int = 0, row_end: int | None = None) -> None:
        """Prove by headers alone that rows [row_start, row_end) of the `padded_rows` are covered once.

        Call it before the table is allocated: a configuration may claim any size, tensors that exist cannot.

        Raises
        ------
        CheckpointError
            A missing, unknown, misshapen, wrongly typed or doubled tensor, which is named.
        """
        config = self.config
        coverage = Coverage(
            self.format,
            config.head_dim,
            padded_rows,
            config.split_ngram_parts,
            row_start,
            row_end,
            self.prefix,
        )
        for name, tensor in self.tensors.items():
            coverage.accept(name, tensor.dtype, tensor.shape, str(tensor.file))
        coverage.prove()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder.

    Attributes
    ----------
    folder : Path
    config : dict
        Content of config.json, with the quantization of a legacy hf_quant_config.json.
    tensors : mapping
        The tensors that may belong to PLE embeddings, by full name.
    """

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorSlice]

    def ngram_config(self, layer: int = 0) -> NGramConfig:
        """Read the configuration of PLE layer `layer`; a ConfigError names config.json."""
        with naming(config_file(self.folder)):
            return NGramConfig.from_pretrained(self.config, layer)

    def table(self, config: NGramConfig, prefix: str | None = None) -> StoredTable:
        """Find the table of the configured PLE layer.

        Parameters
        ----------
        config : NGramConfig
            Its `layer` says which table.
        prefix : str, optional
            Where its tensors lie; found by default.

        Raises
        ------
        CheckpointError
            No table or several candidates, a format that is not supported, a hash buffer of another size.
        ConfigError
            An unsupported quantization algorithm.
        """
        chosen = self.select_prefix(config) if prefix is None else prefix
        tensors = self.under(chosen)
        configured = explain_format(config.quantization_config, chosen, config.ple_embedding_dtype)
        decision = detect_format(tensors, configured, chosen)
        return StoredTable(
            config, chosen, tensors, decision.format, decision.rule, _read_buffers(tensors, config, chosen)
        )

    def select_prefix(self, config: NGramConfig) -> str:
        """Find where the configured layer's table lies; CheckpointError without exactly one place."""
        try:
            return names.select_prefix(self.tensors, config)
        except CheckpointError as error:
            raise CheckpointError(f"{self.folder}: {error}") from None

    def under(self, prefix: str) -> dict[str, TensorSlice]:
        """Return the tensors under a prefix by relative name, without ignored ones."""
        found = {name[len(prefix) :]: at for name, at in self.tensors.items() if name.startswith(prefix)}
        return {name: at for name, at in found.items() if not names.is_ignored(name)}


def open_checkpoint(path: str | os.PathLike[str], report: Report | None = None) -> Checkpoint:
    """Open a Hugging Face checkpoint folder: config.json and the headers of the files that hold PLE tensors.

    Files are found by model.safetensors.index.json, else model.safetensors, else every file that ends in
    .safetensors. Files that an index names for other tensors need not be there.

    Parameters
    ----------
    path : path
    report : callable, optional
        Called with the CheckpointError of each file or tensor in error, which is then left out; by default
        the first one is raised.

    Raises
    ------
    ConfigError
        config.json is missing, unreadable or no JSON object.
    CheckpointError
        A file is missing, outside the folder, not regular, truncated, or its header is wrong; a tensor lies
        in two files or not where the index says.
    """
    if not os.fspath(path):
        raise CheckpointError("path must be a checkpoint folder, got ''")
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: must be a checkpoint folder, got {'a file' if folder.exists() else 'nothing'}"
        )
    return Checkpoint(folder, read_config(folder), locate_tensors(folder, report))


@dataclass(frozen=True)
class FoundTable:
    """A checkpoint's table, proved complete by its headers.

    Attributes
    ----------
    config : NGramConfig
    stored : StoredTable
    derived, plan : HashPlan
        What the configuration gives, and what it is with the stored hash buffers.
    """

    config: NGramConfig
    stored: StoredTable
    derived: HashPlan
    plan: HashPlan


def open_table(path: str | os.PathLike[str], layer: int, format: str | None = None) -> FoundTable:
    """Open a checkpoint folder and find the table of PLE layer `layer` in it.

    Raises
    ------
    ConfigError, CheckpointError
        What is wrong, a `format` that is not what is stored included.
    """
    checkpoint = open_checkpoint(path)
    config = checkpoint.ngram_config(layer)
    stored = checkpoint.table(config)
    if format is not None and format != stored.format:
        raise ConfigError(f"format must be {stored.format}, as {path} stores layer {layer}, got {format}")
    derived = HashPlan.from_config(config)
    plan = derived.with_buffers(stored.buffers, str(path))
    stored.check(plan.padded_rows)
    return FoundTable(config, stored, derived, plan)


def read_table(
    stored: StoredTable,
    sink: RowSink,
    *,
    padded_rows: int,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Read a stored table's owned rows, its scales included, into a sink of the same format.

    Parameters
    ----------
    stored : StoredTable
    sink : RowSink
    padded_rows : int
    threads, progress
        See `TableLoader`.

    Raises
    ------
    CheckpointError
        See `TableLoader.finish`; the sink's memory must not be used then.
    """
    loader = TableLoader(
        sink,
        padded_rows=padded_rows,
        split_ngram_parts=stored.config.split_ngram_parts,
        prefix=stored.prefix,
        threads=threads,
        progress=progress,
    )
    for name, tensor in stored.tensors.items():
        loader.add(name, tensor)
    loader.finish()


def _read_buffers(
    tensors: Mapping[str, TensorSlice], config: NGramConfig, prefix: str
) -> dict[str, list[int]]:
    found = ((name, read_buffer(name, tensors, config, prefix)) for name in names.BUFFERS)
    return {name: values for name, values in found if values is not None}


def read_buffer(
    name: str, tensors: Mapping[str, TensorSlice], config: NGramConfig, prefix: str
) -> list[int] | None:
    """Read a stored hash buffer, if it is there; CheckpointError for another dtype or size."""
    tensor = tensors.get(name)
    if tensor is None:
        return None
    length = config.ngram_size if name == "layer_multipliers" else config.num_heads
    if tensor.dtype != "I64" or tensor.shape != (length,):
        raise CheckpointError(
            f"{tensor.file}: {prefix}{name}: expected I64 [{length}], got {tensor.dtype} {list(tensor.shape)}"
        )
    return [int(value) for value in small_tensor(tensor).tolist()]
