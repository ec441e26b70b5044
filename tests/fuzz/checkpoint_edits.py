"""Bytes as choices: a tiny valid checkpoint, and edits that break it as files and strangers do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Entry = tuple[str, dict[str, Any]]

PREFIX = "model.language_model.layers.1.ple.ple_embedding."
ROWS, HEAD_DIM, PARTS = 8, 16, 2  # heads of 3 and 5 rows
FILES = ("a.safetensors", "b.safetensors")
INDEX = "model.safetensors.index.json"
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I64": 8}
ODD: list[Any] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    2**31,
    2**63 - 1,
    2**63,
    2**64 - 1,
    10**30,
    -(2**63),
    1e308,
    0.5,
    float("nan"),
    True,
    None,
    "",
    "x",
    "x" * 300,
    "BF16",
    "U8",
    "I64",
    "F8_E4M3",
    "nvfp4",
    [],
    {},
    [[]],
    [0, 16],
    [16, 0],
    [1] * 50,
    {"a": {}},
]
FIELDS = [
    "vocab_size",
    "ple_embed_dim",
    "hidden_size",
    "eos_token_id",
    "ple_layer_ids",
    "ngram_size",
    "heads_per_ngram",
    "ngram_vocab_size_base",
    "make_ngram_vocab_size_divisible_by",
    "seed",
    "split_ngram_parts",
    "ple_embedding_dtype",
    "quantization_config",
    "text_config",
]
PLACES = [
    "../a.safetensors",
    "/etc/passwd",
    "",
    "config.json",
    "b.safetensors",
    "c.safetensors",
    "./a.safetensors",
    "a\0.safetensors",
    "\ud800.safetensors",
    "x/../a.safetensors",
    3,
    None,
    {},
    ["a.safetensors"],
]
NAMES = [
    "ngram_embedding.weight",
    "ngram_embedding.shard_0.weight",
    "ngram_embedding.shard_00.weight",
    "ngram_embedding.shard_9.weight",
    "ngram_embedding.weight_scale",
    "ngram_embedding.weight_scale_2",
    "ngram_embedding.weight_global_scale",
    "ngram_embedding.shard_1.weight_packed",
    "ngram_embedding.x",
    "hashstats_x",
    "layer_multipliers",
    "ngram_heads_offsets",
    "ngram_heads_vocab_sizes",
    "",
    "__metadata__",
]


class Choices:
    """Reads bytes as decisions; when they are used up, every byte is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def pick(self, options: Sequence[T]) -> T:
        return options[self.byte() % len(options)]

    def number(self, below: int) -> int:
        return (self.byte() << 8 | self.byte()) % max(1, below)

    def raw(self, most: int) -> bytes:
        count = self.byte() % (most + 1)
        self._at += count
        return self._data[self._at - count : self._at]

    def text(self, most: int) -> str:
        return self.raw(most).decode("utf-8", "replace")

    def odd(self) -> Any:
        """A value that hardly any field expects, or plain numbers."""
        which = self.byte()
        return which - 200 if which >= 200 else ODD[which % len(ODD)]


class Draft:
    """A checkpoint before it is written: entries of headers as pairs, so that a key may occur twice."""

    def __init__(self, format: str) -> None:
        text: dict[str, Any] = {
            "vocab_size": 50,
            "ple_embed_dim": 2 * HEAD_DIM,
            "eos_token_id": 7,
            "ple_layer_ids": [2],
            "ngram_size": 2,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 3,
            "make_ngram_vocab_size_divisible_by": 8,
            "split_ngram_parts": PARTS,
        }
        if format in ("fp8", "fp8-rowwise", "nvfp4"):
            text["ple_embedding_dtype"] = "nvfp4" if format == "nvfp4" else "float8_e4m3fn"
        self.config: Any = {"text_config": text}
        self.headers: dict[str, list[Entry]] = {file: [] for file in FILES}
        self.sizes = dict.fromkeys(FILES, 0)
        half = ROWS // PARTS
        dtype = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "nvfp4": "U8"}.get(format, "F8_E4M3")
        for shard in range(PARTS):
            name = f"ngram_embedding.shard_{shard}."
            self.add(
                FILES[shard], name + "weight", dtype, [half, HEAD_DIM // (2 if format == "nvfp4" else 1)]
            )
            if format == "nvfp4":
                self.add(FILES[0], name + "weight_scale", "F8_E4M3", [half, 1])
            elif format == "fp8-rowwise":
                self.add(FILES[0], name + "weight_scale", "F32", [half, 1])
        if format in ("fp8", "nvfp4"):
            leaf = "weight_scale" if format == "fp8" else "weight_scale_2"
            self.add(FILES[1], f"ngram_embedding.{leaf}", "F32", [1])
        self.index: Any = {name: file for file, entries in self.headers.items() for name, _ in entries}
        self.lengths: dict[str, int] = {}
        self.afterwards: list[Callable[[Path], None]] = []

    def add(self, file: str, name: str, dtype: str, shape: list[int]) -> None:
        nbytes = WIDTHS[dtype]
        for size in shape:
            nbytes *= size
        offsets = [self.sizes[file], self.sizes[file] + nbytes]
        self.sizes[file] += nbytes
        self.headers[file].append((PREFIX + name, {"dtype": dtype, "shape": shape, "data_offsets": offsets}))

    def write(self, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.index is not None:
            index = json.dumps({"metadata": {}, "weight_map": self.index})
            (folder / INDEX).write_bytes(index.encode("utf-8", "surrogatepass"))
        for file, entries in self.headers.items():
            text = ",".join(f"{json.dumps(name)}:{json.dumps(entry)}" for name, entry in entries)
            body = b"{" + text.encode("utf-8", "surrogatepass") + b"}"
            length = self.lengths.get(file, len(body))
            (folder / file).write_bytes(length.to_bytes(8, "little") + body + b"\x38" * self.sizes[file])
        for change in self.afterwards:
            change(folder)


def edited_checkpoint(choices: Choices, folder: Path) -> None:
    """Write a checkpoint of a chosen format with a few chosen edits."""
    draft = Draft(choices.pick(["bf16", "fp16", "fp32", "fp8", "fp8-rowwise", "nvfp4"]))
    for _ in range(6):
        if not choices:
            break
        choices.pick(EDITS)(draft, choices)
    draft.write(folder)


def _config_field(draft: Draft, choices: Choices) -> None:
    section = draft.config if choices.byte() % 4 == 0 else draft.config.get("text_config")
    if isinstance(section, dict):
        section[choices.pick(FIELDS)] = choices.odd()


def _quantization(draft: Draft, choices: Choices) -> None:
    method: dict[str, Any] = {
        "quant_method": choices.pick(["fp8", "modelopt", "compressed-tensors", "quark", "awq"])
    }
    for key in (
        "quant_algo",
        "ignore",
        "ignored_layers",
        "quantized_layers",
        "config_groups",
        "quantization",
    ):
        if choices.byte() % 3 == 0:
            method[key] = choices.pick(
                [choices.odd(), ["*.ple.*"], ["re:(.*)*x"], "FP8", "NVFP4", {"g": {"targets": ["re:.*"]}}]
            )
    draft.config["quantization_config"] = method


def _entry_field(draft: Draft, choices: Choices) -> None:
    entries = draft.headers[choices.pick(FILES)]
    if entries:
        choices.pick(entries)[1][choices.pick(["dtype", "shape", "data_offsets", "more"])] = choices.odd()


def _rename(draft: Draft, choices: Choices) -> None:
    entries = draft.headers[choices.pick(FILES)]
    if entries:
        at = choices.number(len(entries))
        name = choices.pick(["", PREFIX, "model.layers.1.", "mtp.layers.1."]) + choices.pick(NAMES)
        entries[at] = (name, entries[at][1])
        if choices.byte() % 2 and isinstance(draft.index, dict):
            draft.index[name] = choices.pick(FILES)


def _drop_or_double(draft: Draft, choices: Choices) -> None:
    entries = draft.headers[choices.pick(FILES)]
    if entries:
        at = choices.number(len(entries))
        if choices.byte() % 2:
            entries.append(entries[at])
        else:
            name, _ = entries.pop(at)
            if choices.byte() % 2 and isinstance(draft.index, dict):
                draft.index.pop(name, None)


def _buffer(draft: Draft, choices: Choices) -> None:
    name = choices.pick(["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"])
    file = choices.pick(FILES)
    draft.add(file, name, choices.pick(["I64", "I64", "F32"]), choices.pick([[2], [2], [3], []]))
    if isinstance(draft.index, dict):
        draft.index[PREFIX + name] = file


def _index(draft: Draft, choices: Choices) -> None:
    if choices.byte() % 8 == 0:
        draft.index = choices.pick([None, [], 3, {}])
    elif isinstance(draft.index, dict) and draft.index:
        name = choices.pick([*draft.index, "lm_head.weight", "x.ngram_embedding.weight"])
        draft.index[name] = choices.pick(PLACES)


def _header_length(draft: Draft, choices: Choices) -> None:
    draft.lengths[choices.pick(FILES)] = choices.pick(
        [0, 1, 2, 8, 100, 2**20, 2**31, 2**40, 2**63, 2**64 - 1]
    )


def _bytes(draft: Draft, choices: Choices) -> None:
    file = choices.pick([*FILES, "config.json", INDEX])
    kind, at, more = choices.byte() % 3, choices.number(1 << 16), choices.raw(16)

    def change(folder: Path) -> None:
        path = folder / file
        if not path.is_file() or path.is_symlink():
            return
        data = path.read_bytes()
        place = at % (len(data) + 1)
        if kind == 0:
            path.write_bytes(data[:place])
        elif kind == 1:
            path.write_bytes(data[:place] + more + data[place + len(more) :])
        else:
            path.write_bytes(data[:place] + more + data[place:])

    draft.afterwards.append(change)


def _special(draft: Draft, choices: Choices) -> None:
    file = choices.pick([*FILES, "config.json", INDEX])
    kind = choices.byte() % 7

    def change(folder: Path) -> None:
        path = folder / file
        if not path.is_file() or path.is_symlink():
            return
        path.unlink()
        if kind == 0:
            os.mkfifo(path)
        elif kind == 1:
            path.mkdir()
        elif kind == 2:
            path.symlink_to("/dev/zero")
        elif kind == 3:
            path.symlink_to(file)
        elif kind == 4:
            path.symlink_to("../../../../../etc/hostname")
        elif kind == 5:
            path.write_bytes(b"")

    draft.afterwards.append(change)


EDITS = [
    _config_field,
    _config_field,
    _quantization,
    _entry_field,
    _entry_field,
    _rename,
    _drop_or_double,
    _buffer,
    _index,
    _header_length,
    _bytes,
    _bytes,
    _special,
]
