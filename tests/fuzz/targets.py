"""Fuzz targets: functions of bytes that must end in success or in an NgramPleError that names what is wrong.

`run_target` adds what holds for every input: no other exception, a second of processor time, 64 MiB.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from checkpoint_edits import Choices, edited_checkpoint
from ngram_ple.checkpoint import open_checkpoint, read_table, survey_checkpoint, verify_checkpoint
from ngram_ple.checkpoint.checksums import Checksums
from ngram_ple.checkpoint.safetensors_file import read_header
from ngram_ple.config import NGramConfig
from ngram_ple.errors import CheckpointError, ConfigError, NgramPleError
from ngram_ple.formats import row_format
from ngram_ple.hash_plan import HashPlan
from ngram_ple.quantization import resolve_format
from ngram_ple.tables import CpuTable

SECONDS = 1.0
PEAK_BYTES = 64 << 20
TABLE_NAME = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding"
INDEX = "model.safetensors.index.json"


class Broken(Exception):  # noqa: N818 - what a fuzzer reports
    """An input that broke what holds for all."""


def header(data: bytes, folder: Path) -> None:
    """A safetensors file: as it is, or the header alone with the right length before it."""
    path = folder / "x.safetensors"
    body = data[1:]
    path.write_bytes(body if data[:1] < b"\x80" else len(body).to_bytes(8, "little") + body + bytes(64))
    for keep in (None, lambda name: "ngram" in name):
        named(path, lambda keep=keep: read_header(path, keep))  # type: ignore[misc]


def index(data: bytes, folder: Path) -> None:
    """An index beside a config.json; one file that it may name is there."""
    (folder / "config.json").write_text("{}")
    (folder / "a.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / INDEX).write_bytes(data)
    named(folder, lambda: open_checkpoint(folder))


def config(data: bytes, folder: Path) -> None:
    """A config.json, the hash plan that follows from it and the format that it names."""
    path = folder / "config.json"
    path.write_bytes(data)

    def read() -> None:
        checked = NGramConfig.from_pretrained(path)
        HashPlan.from_config(checked)
        resolve_format(checked.quantization_config, TABLE_NAME, checked.ple_embedding_dtype)

    read()


def patterns(data: bytes, folder: Path) -> None:
    """Names, globs and regular expressions of a quantization_config."""
    choices = Choices(data)
    method = choices.pick(["fp8", "modelopt", "compressed-tensors"])
    texts = [choices.text(200) for _ in range(1 + choices.byte() % 4)]
    texts = ["re:" + text if choices.byte() % 2 else text for text in texts]
    resolve_format(
        {
            "quant_method": method,
            "quant_algo": choices.pick(["FP8", "NVFP4", "MIXED_PRECISION"]),
            "ignore": texts,
            "ignored_layers": texts,
            "config_groups": {"g": {"targets": texts}},
            "quantized_layers": {text: {"quant_algo": "FP8"} for text in texts},
        },
        choices.pick([TABLE_NAME, "a" * 300, "."]),
    )


def checksums(data: bytes, folder: Path) -> None:
    """A checksum file."""
    path = folder / "sums"
    path.write_bytes(data)
    named(path, lambda: Checksums(path, folder))


def folder(data: bytes, folder: Path) -> None:
    """A tiny checkpoint after some edits: opened, checked, read, surveyed and verified."""
    edited_checkpoint(Choices(data), folder)
    try:
        survey = survey_checkpoint(folder)
        problems = verify_checkpoint(survey, threads=1).problems
    except ConfigError:
        problems = ["config.json"]
    checkpoint = named(folder, lambda: open_checkpoint(folder))
    for layer in range(2):
        config = NGramConfig.from_pretrained(checkpoint.config, layer)
        stored = checkpoint.table(config)
        plan = HashPlan.from_config(config).with_buffers(stored.buffers, str(folder))
        stored.check(plan.padded_rows)
        table = CpuTable(row_format(stored.format, config.head_dim), 0, plan.padded_rows)
        read_table(stored, table, padded_rows=plan.padded_rows, threads=1)
        if layer + 1 == len(config.ple_layer_ids):
            break
    # All layers loaded: what verify complains of can only be a contradiction.
    for problem in problems:
        if not any(
            word in problem for word in ("differ from those of config.json", "the tensors win", "ple_layer")
        ):
            raise Broken(f"it loads, but verify says: {problem}")


TARGETS: dict[str, Callable[[bytes, Path], None]] = {
    target.__name__: target for target in (header, index, config, patterns, checksums, folder)
}


def named(path: Path, run: Callable[[], object]) -> object:
    """Run it; a CheckpointError must name the file or its folder."""
    try:
        return run()
    except CheckpointError as error:
        if str(path) not in str(error):
            raise Broken(f"an error that does not name {path}: {error}") from error
        raise


def run_target(name: str, data: bytes, folder: Path) -> bool:
    """Run a target on an empty folder, hold it to the bounds and say whether it succeeded."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.thread_time()
    done = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TARGETS[name](data, folder)
    except NgramPleError as error:
        done = False
        if not str(error) or len(str(error)) > 10_000:
            raise Broken(f"a message of {len(str(error))} characters") from error
    spent = time.thread_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if spent > SECONDS:
        raise Broken(f"{spent:.1f} s of processor time")
    if grown > PEAK_BYTES:
        raise Broken(f"{grown >> 20} MiB more than before")
    return done


class Workplace:
    """A folder in memory that every input finds empty."""

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        self._root = Path(tempfile.mkdtemp(prefix="fuzz-", dir=shared if shared.is_dir() else None))

    def run(self, name: str, data: bytes) -> bool:
        """Run a target in it."""
        inside = self._root / "checkpoint"
        inside.mkdir()
        try:
            return run_target(name, data, inside)
        finally:
            shutil.rmtree(inside)

    def remove(self) -> None:
        """Remove it."""
        shutil.rmtree(self._root, ignore_errors=True)


__all__ = ["TARGETS", "Broken", "Workplace"]
