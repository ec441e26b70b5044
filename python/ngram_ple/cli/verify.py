"""``ngram-ple verify``: everything that is wrong with a checkpoint's tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ngram_ple.checkpoint.checksums import Checksums
from ngram_ple.checkpoint.survey import survey_checkpoint
from ngram_ple.checkpoint.verify import Verdict, bytes_to_read, verify_checkpoint
from ngram_ple.cli import options, report
from ngram_ple.config import NGramConfig
from ngram_ple.errors import ConfigError, NgramPleError

_DESCRIPTION = """\
Check a checkpoint's n-gram tables without loading them, and list every problem: files,
headers, each shard's presence, shape and dtype, hash buffers against config.json, the
format against config.json, every scale (read whole: finite, and one value where there
is one), and with --checksums the SHA-256 of each file listed.

A problem is what a load would refuse or what the checkpoint contradicts itself in. Notes
(a quantization_config of a method that is not known, listed files that are not there)
change nothing."""

_EPILOG = """\
exit status: 0 no problem; 1 problems, a missing or unreadable config.json among them; 2 it
could not look: wrong arguments, no folder, a --checksums FILE that cannot be read

example:
  (cd checkpoint && sha256sum *.safetensors) > sums
  ngram-ple verify ./checkpoint --checksums sums"""


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "verify",
        help="check a checkpoint, scales and checksums included",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_checkpoint(parser)
    options.add_layer(parser, "all")
    parser.add_argument(
        "--checksums",
        metavar="FILE",
        type=Path,
        help="lines as sha256sum writes them, names relative to CHECKPOINT",
    )
    options.add_threads(parser, "reading threads (default: the CPUs, 16 at most)")
    options.add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; 1 when there are problems."""
    folder: Path = arguments.checkpoint
    if not folder.is_dir():
        raise NgramPleError(
            f"{folder}: must be a checkpoint folder, got {'a file' if folder.exists() else 'nothing'}"
        )
    sums = None if arguments.checksums is None else Checksums(arguments.checksums, folder)
    try:
        NGramConfig.from_pretrained(folder)
    except ConfigError as error:  # nothing else can be told without it
        verdict, layers = Verdict([str(error)], [], 0, 0), 0
    else:
        survey = survey_checkpoint(folder, arguments.layer)
        layers = len(survey.layers)
        with tqdm(
            total=bytes_to_read(survey, sums),
            desc="verifying",
            unit="B",
            unit_scale=True,
            disable=not options.shows_progress(arguments),
        ) as bar:
            verdict = verify_checkpoint(survey, sums, arguments.threads, bar.update)
    _print(verdict, folder, layers, arguments.json)
    return 1 if verdict.problems else 0


def _print(verdict: Verdict, folder: Path, layers: int, as_json: bool) -> None:
    checked = {
        "layers": layers,
        "scale_bytes": verdict.checked_scales,
        "files_with_checksum": verdict.checked_files,
    }
    if as_json:
        report.print_json(
            {
                "checkpoint": str(folder),
                "ok": not verdict.problems,
                "problems": verdict.problems,
                "notes": verdict.notes,
                "checked": checked,
            }
        )
        return
    lines = [("problem", text) for text in verdict.problems] + [("note", text) for text in verdict.notes]
    result = report.count(len(verdict.problems), "problem") if verdict.problems else "no problem"
    lines.append(
        (
            "result",
            f"{result}; looked at {report.count(layers, 'PLE layer')}, "
            f"{verdict.checked_scales:,} bytes of scales of rows, "
            f"{report.count(verdict.checked_files, 'file')} by checksum",
        )
    )
    report.print_table(lines)
