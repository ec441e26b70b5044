"""Small checkpoints and a stand-in for a table, for the tests of the checkpoint reader."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from ngram_ple.checkpoint import open_checkpoint, read_table, write_checkpoint
from ngram_ple.config import NGramConfig
from ngram_ple.formats import RowFormat, row_format
from safetensors.torch import save_file

PREFIX = "model.language_model.layers.1.ple.ple_embedding."
FORMATS = ("bf16", "fp16", "fp32", "fp8", "fp8-rowwise", "nvfp4")
PADDED_ROWS = 103
SPLIT = 5  # shards of 21 rows, the last of 19
WEIGHT_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def small_config(**fields: Any) -> NGramConfig:
    """H 4, head_dim 32."""
    given = {
        "vocab_size": 1000,
        "ple_embed_dim": 128,
        "eos_token_id": 7,
        "ple_layer_ids": (2,),
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 17,
        "split_ngram_parts": SPLIT,
        **fields,
    }
    return NGramConfig(**given)


@dataclass
class Source:
    """A table's tensors as a checkpoint holds them."""

    format: str
    weight: torch.Tensor
    weight_scale: torch.Tensor | None = None
    global_scale: torch.Tensor | None = None

    def write(self, folder: Path, config: NGramConfig | None = None, **options: Any) -> Path:
        """Write it with the writer under test, in several files."""
        options.setdefault("max_file_bytes", 1300)
        write_checkpoint(
            folder,
            config or small_config(),
            format=self.format,
            padded_rows=len(self.weight),
            weight=self.weight,
            weight_scale=self.weight_scale,
            global_scale=self.global_scale,
            **options,
        )
        return folder

    def named(self, split: int | None = SPLIT) -> dict[str, torch.Tensor]:
        """Tensors by relative name; `split` None leaves the table whole."""
        scale_name = {"fp8": "weight_scale", "nvfp4": "weight_scale_2"}.get(self.format)
        tensors = {}
        for leaf, tensor in (("weight", self.weight), ("weight_scale", self.weight_scale)):
            if tensor is None:
                continue
            if split is None:
                tensors[f"ngram_embedding.{leaf}"] = tensor
                continue
            size = -(-len(tensor) // split)
            for shard, part in enumerate(tensor.split(size)):
                tensors[f"ngram_embedding.shard_{shard}.{leaf}"] = part
        if self.global_scale is not None:
            tensors[f"ngram_embedding.{scale_name}"] = self.global_scale
        return tensors

    def row_bytes(self, leaf: str) -> torch.Tensor:
        """Bytes that a table must hold, uint8 [rows, n]: row scales widened to fp32."""
        tensor = self.weight if leaf == "weight" else self.weight_scale
        assert tensor is not None
        if leaf == "weight_scale" and self.format == "fp8-rowwise":
            tensor = tensor.float()
        return tensor.contiguous().view(torch.uint8)


def make_source(
    format: str,
    rows: int = PADDED_ROWS,
    head_dim: int = 32,
    seed: int = 0,
    scale_dtype: torch.dtype = torch.float32,
) -> Source:
    """Random codes of every byte value and plausible scales."""
    generator = torch.Generator().manual_seed(seed)

    def some_bytes(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    if format in WEIGHT_DTYPES:
        return Source(format, torch.randn(rows, head_dim, generator=generator).to(WEIGHT_DTYPES[format]))
    if format == "nvfp4":
        scales = (some_bytes(rows, head_dim // 16) % 0x7F).view(torch.float8_e4m3fn)  # no NaN
        return Source(format, some_bytes(rows, head_dim // 2), scales, torch.tensor([3.25e-4]))
    weight = some_bytes(rows, head_dim).view(torch.float8_e4m3fn)
    if format == "fp8":
        return Source(format, weight, None, torch.tensor([1.99e-4]).to(scale_dtype))
    scales = torch.rand(rows, 1, generator=generator).to(scale_dtype)
    return Source(format, weight, scales)


def save_tensors(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    config: dict[str, Any] | None = None,
    prefix: str = PREFIX,
    files: int = 1,
    index: bool = True,
) -> Path:
    """Write a checkpoint by the safetensors package: an independent writer, for any names."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or small_config().to_dict()))
    placed = {}
    for number in range(files):
        name = f"part-{number}.safetensors"
        part = {
            f"{prefix}{key}": tensor.contiguous().clone()
            for position, (key, tensor) in enumerate(tensors.items())
            if position % files == number
        }
        save_file(part, folder / name)
        placed.update(dict.fromkeys(part, name))
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder


@dataclass
class FakeSink:
    """A table in plain tensors, poisoned first; rows of weights are direct or not."""

    format: RowFormat
    row_start: int
    row_end: int
    give_direct: bool = True
    most_threads: int = 8
    leaves: dict[str, torch.Tensor] = field(default_factory=dict)
    global_scale: float | None = None
    writes: int = 0

    def __post_init__(self) -> None:
        rows, format = self.row_end - self.row_start, self.format
        self._slots = torch.full((rows, format.slot_bytes), 0xA5, dtype=torch.uint8)
        self.leaves["weight"] = self._slots[:, : format.row_bytes]
        if format.scale_bytes:
            end = format.scale_offset + format.scale_bytes
            self.leaves["weight_scale"] = self._slots[:, format.scale_offset : end]

    def direct(self, leaf: str, first_row: int, num_rows: int) -> memoryview | None:
        first = self._local(first_row, num_rows)
        if not self.give_direct or (leaf == "weight" and self.format.scale_bytes):
            return None
        return self._slots[first : first + num_rows].numpy().data.cast("B")

    def scratch(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def write(self, leaf: str, first_row: int, block: torch.Tensor) -> None:
        first = self._local(first_row, len(block))
        assert block.dtype == torch.uint8
        place = self._slots if leaf == "slot" else self.leaves[leaf]
        assert block.shape[1] == place.shape[1]
        place[first : first + len(block)] = block
        self.writes += 1

    def set_global_scale(self, value: float) -> None:
        self.global_scale = value

    def _local(self, first_row: int, num_rows: int) -> int:
        assert self.row_start <= first_row
        assert first_row + num_rows <= self.row_end
        return first_row - self.row_start


def sink_for(source: Source, row_start: int = 0, row_end: int | None = None, **options: Any) -> FakeSink:
    """A sink of the source's format for rows [row_start, row_end)."""
    head_dim = source.weight.shape[1] * (2 if source.format == "nvfp4" else 1)
    end = len(source.weight) if row_end is None else row_end
    return FakeSink(row_format(source.format, head_dim), row_start, end, **options)


def assert_filled(sink: FakeSink, source: Source) -> None:
    """Every owned row of every leaf, and the global scale, bit for bit."""
    for leaf, held in sink.leaves.items():
        assert torch.equal(held, source.row_bytes(leaf)[sink.row_start : sink.row_end]), leaf
    if source.global_scale is not None:
        assert sink.global_scale == float(source.global_scale.float())


def shard(number: int, leaf: str = "weight") -> str:
    """Relative name of a shard."""
    return f"ngram_embedding.shard_{number}.{leaf}"


def load(folder: Path, sink: FakeSink, check: bool = True) -> None:
    """Open, check by headers unless told not to, and read."""
    checkpoint = open_checkpoint(folder)
    stored = checkpoint.table(NGramConfig.from_pretrained(checkpoint.config))
    if check:
        stored.check(PADDED_ROWS)
    read_table(stored, sink, padded_rows=PADDED_ROWS)
