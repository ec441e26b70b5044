"""Options that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ngram_ple.errors import shown

_MOST = 2**63 - 1  # what tensors and native code can count
_MOST_THREADS = 1024  # beyond, the system runs out of them, and native code ends the process


def within(text: str, least: int, most: int) -> int:
    """Parse an integer of these bounds, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        must = f"of at least {least}" if value < least else f"of at most {most}"
        raise argparse.ArgumentTypeError(f"must be an integer {must}, got {shown(text)}")
    return value


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    return within(text, 1, _MOST)


def natural(text: str) -> int:
    """Parse an integer of at least 0, for argparse."""
    return within(text, 0, _MOST)


def folder(text: str) -> Path:
    """Parse a folder's name, for argparse; an empty one would be the folder that one is in."""
    if not text:
        raise argparse.ArgumentTypeError("must be a folder, got ''")
    return Path(text)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the folder that a command reads."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        type=folder,
        help="Hugging Face checkpoint folder; its config.json, index and PLE files suffice",
    )


def add_layer(parser: argparse.ArgumentParser, default: str) -> None:
    """Add ``--layer``; without it, `default` says which ones."""
    parser.add_argument(
        "--layer", type=natural, metavar="L", help=f"index among the PLE layers (default: {default})"
    )


def add_threads(parser: argparse.ArgumentParser, help: str) -> None:
    """Add ``--threads``, 1 to 1024."""
    parser.add_argument("--threads", type=_threads, metavar="N", help=f"1 to {_MOST_THREADS} {help}")


def add_plot(parser: argparse.ArgumentParser, help: str) -> None:
    """Add ``--plot``, a PNG."""
    parser.add_argument("--plot", metavar="FILE.png", type=_picture, help=help)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--quiet``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, nothing else")
    parser.add_argument(
        "--quiet", action="store_true", help="no progress bars (there are none unless stderr is a terminal)"
    )


def shows_progress(arguments: argparse.Namespace) -> bool:
    """Whether to draw progress bars on stderr."""
    return not arguments.quiet and sys.stderr.isatty()


def _picture(text: str) -> Path:
    if not text.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"must end in .png, got {shown(text)}")
    return Path(text)


def _threads(text: str) -> int:
    return within(text, 1, _MOST_THREADS)
