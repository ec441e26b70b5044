"""Options that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    return _at_least(text, 1)


def natural(text: str) -> int:
    """Parse an integer of at least 0, for argparse."""
    return _at_least(text, 0)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the folder that a command reads."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        type=Path,
        help="Hugging Face checkpoint folder; its config.json, index and PLE files suffice",
    )


def add_layer(parser: argparse.ArgumentParser, default: str) -> None:
    """Add ``--layer``; without it, `default` says which ones."""
    parser.add_argument(
        "--layer", type=natural, metavar="L", help=f"index among the PLE layers (default: {default})"
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--quiet``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, nothing else")
    parser.add_argument(
        "--quiet", action="store_true", help="no progress bars (there are none unless stderr is a terminal)"
    )


def shows_progress(arguments: argparse.Namespace) -> bool:
    """Whether to draw progress bars on stderr."""
    return not arguments.quiet and sys.stderr.isatty()


def _at_least(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"must be an integer of at least {least}, got {text!r}")
    return value
