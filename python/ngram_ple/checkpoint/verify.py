"""Verifying a checkpoint: everything that a load would refuse, found without loading, and all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ngram_ple.checkpoint.checksums import Checksums
from ngram_ple.checkpoint.loader import small_tensor
from ngram_ple.checkpoint.read import SCALE_BLOCK_BYTES, reading_threads
from ngram_ple.checkpoint.safetensors_file import TensorSlice, open_checked, pread_into
from ngram_ple.checkpoint.scales import GlobalScales, bad_rows, bad_scale_message
from ngram_ple.checkpoint.survey import LayerSurvey, Survey
from ngram_ple.errors import CheckpointError

Progress: TypeAlias = Callable[[int], object]


@dataclass(frozen=True)
class Verdict:
    """What a verification found.

    Attributes
    ----------
    problems : list of str
        What a load would refuse, what the checkpoint contradicts itself in, files that differ from their sum.
    notes : list of str
        What is worth knowing and harms nothing.
    checked_files, checked_scales : int
        Files whose sum was compared, and bytes of scales that were read.
    """

    problems: list[str]
    notes: list[str]
    checked_files: int
    checked_scales: int


def bytes_to_read(survey: Survey, sums: Checksums | None) -> int:
    """Bytes that `verify_checkpoint` will read, for a progress bar."""
    scales = sum(source.nbytes for layer in survey.layers for _, source, _ in _row_scales(layer))
    return scales + (sums.bytes_to_read() if sums else 0)


def verify_checkpoint(
    survey: Survey,
    sums: Checksums | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Read every scale and, with `sums`, every listed file; return what they and the survey found.

    Parameters
    ----------
    survey : Survey
        Of `ngram_ple.checkpoint.survey.survey_checkpoint`.
    sums : Checksums, optional
    threads : int, optional
        Reading threads; the CPUs at hand, at most 16, by default.
    progress : callable, optional
        Called with the bytes of each block read, from several threads.
    """
    problems, notes = list(survey.problems), list(survey.notes)
    several = len(survey.layers) > 1
    told: Progress = progress or (lambda nbytes: None)
    read = 0
    threads = threads or reading_threads()
    with ExitStack() as stack:
        each: Callable[..., Iterable[Any]] = map
        if threads > 1:
            pool = ThreadPoolExecutor(threads, "ngram_ple-verify")
            stack.callback(pool.shutdown, cancel_futures=True)  # nothing more is begun after Ctrl-C
            each = pool.map
        for layer in survey.layers:
            found = [*layer.problems, *_global_scale(layer)]
            jobs = _row_scales(layer)
            for complaint in each(lambda job: _row_scale(job[0], job[1], job[2], told), jobs):
                found += complaint
            read += sum(source.nbytes for _, source, _ in jobs)
            start = f"PLE layer {layer.config.layer}: " if several and layer.prefix is None else ""
            problems += [f"{start}{one}" for one in found]
            notes += layer.notes
        if sums is not None:
            folder = survey.checkpoint.folder
            holders = {str(at.file.relative_to(folder)) for at in survey.checkpoint.tensors.values()}
            bad, worth = sums.compare(each, told, holders)
            problems += bad
            notes += worth
    return Verdict(
        list(dict.fromkeys(problems)), list(dict.fromkeys(notes)), len(sums.files) if sums else 0, read
    )


def _row_scales(layer: LayerSurvey) -> list[tuple[str, TensorSlice, int]]:
    """Name, place and first row of each tensor with scales of rows."""
    return [
        (f"{layer.prefix}{name}", layer.tensors[name], part.first_row)
        for name, part in layer.parts.items()
        if part.kind == "rows" and part.leaf == "weight_scale"
    ]


def _row_scale(name: str, source: TensorSlice, first_row: int, progress: Progress) -> list[str]:
    rows = source.shape[0]
    row_bytes = source.nbytes // rows if rows else 1
    step = max(1, SCALE_BLOCK_BYTES // row_bytes)
    scratch = torch.empty(min(step, rows) * row_bytes, dtype=torch.uint8)
    count, worst = 0, 0
    try:
        with open_checked(source.file) as file:
            for row in range(0, rows, step):
                block = scratch[: min(step, rows - row) * row_bytes]
                pread_into(
                    file.fileno(), block.numpy().data.cast("B"), source.offset + row * row_bytes, source.file
                )
                bad = bad_rows(block.view(-1, row_bytes), source.dtype)
                if len(bad) and not count:
                    worst = row + int(bad[0])
                count += len(bad)
                progress(block.numel())
    except CheckpointError as error:
        return [str(error)]
    return [bad_scale_message(f"{source.file}: {name}", first_row + worst, count)] if count else []


def _global_scale(layer: LayerSurvey) -> list[str]:
    scales, problems = GlobalScales(), []
    for name, part in layer.parts.items():
        if part.kind == "global_scale":
            source = layer.tensors[name]
            try:
                scales.take(small_tensor(source), part.reciprocal, f"{source.file}: {layer.prefix}{name}")
            except CheckpointError as error:
                problems.append(str(error))
    return problems
