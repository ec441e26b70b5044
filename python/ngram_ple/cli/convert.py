"""``ngram-ple convert``: a checkpoint's tables in another format."""

from __future__ import annotations

import argparse
from typing import Any

from tqdm import tqdm

from ngram_ple.cli import options, out_file, report
from ngram_ple.cli.convert_report import error_facts, error_lines, plot_errors
from ngram_ple.convert import TARGETS, convert_checkpoint

_DESCRIPTION = """\
Write the n-gram tables of a checkpoint into a new folder, in another format or split
into other shards, with a config.json and an index. The other tensors of the model are
not copied. Scales come from the largest magnitude: of the table (fp8), of each row
(fp8-rowwise), of the table and of 16 values (nvfp4).

The same command goes on after an interruption. Nothing is overwritten: DST must be new,
empty, or the unfinished result of this very conversion."""

_EPILOG = """\
example:
  ngram-ple convert ./model ./model-nvfp4 --to nvfp4 --plot error.png"""


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "convert",
        help="write a checkpoint's tables in another format",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", type=options.folder, help="checkpoint folder to read")
    parser.add_argument("destination", metavar="DST", type=options.folder, help="folder to write")
    parser.add_argument("--to", required=True, choices=TARGETS, help="format of the tables to write")
    parser.add_argument(
        "--shards", type=options.positive, metavar="N", help="shards of a table (default: as in SRC)"
    )
    parser.add_argument(
        "--scale-dtype",
        choices=("bf16", "fp32"),
        help="of new fp8 and fp8-rowwise scales (default: bf16, which decoding to bf16 rounds them to)",
    )
    parser.add_argument(
        "--saturate",
        action="store_true",
        help="infinities become the largest number, NaN zero (default: the row is named and the conversion "
        "ends; the same command with --saturate goes on)",
    )
    options.add_plot(parser, "draw the error of each head")
    options.add_threads(parser, "encoding threads (default: the CPUs, 16 at most)")
    options.add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if arguments.plot is not None:
        out_file.check("--plot", arguments.plot, arguments.source, (), overwrite=True)
        plot_errors(None, "", [])  # matplotlib is there, or is asked for before the work
    with tqdm(
        desc="converting", unit="B", unit_scale=True, disable=not options.shows_progress(arguments)
    ) as bar:
        done = convert_checkpoint(
            arguments.source,
            arguments.destination,
            arguments.to,
            shards=arguments.shards,
            scale_dtype=arguments.scale_dtype,
            saturate=arguments.saturate,
            threads=arguments.threads,
            begun=bar.reset,
            progress=bar.update,
        )
    facts: dict[str, Any] = {
        "source": str(arguments.source),
        "destination": str(arguments.destination),
        "from": done.source_format,
        "to": done.format,
        "files": done.files,
        "bytes": done.nbytes,
        "layers": error_facts(done.errors),
    }
    if arguments.plot is not None:
        plot_errors(
            arguments.plot, f"{arguments.source.name}: {done.source_format} to {done.format}", done.errors
        )
        facts["plot"] = str(arguments.plot)
    if arguments.json:
        report.print_json(facts)
        return
    size = f"{report.count(done.files, 'file')}, {report.size(done.nbytes)}"
    report.print_table([("written", f"{arguments.destination} ({done.format}, {size})"), ("", "")])
    report.print_text(error_lines(done.errors))
    if arguments.plot is not None:
        report.print_table([("", ""), ("plot", str(arguments.plot))])
