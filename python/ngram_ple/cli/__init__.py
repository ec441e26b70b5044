"""The ``ngram-ple`` command: one file a subcommand, each with ``add(subparsers)`` and ``run(arguments)``.

What goes wrong by the user's hand or the system's (NgramPleError, OSError, not enough memory) is one sentence
on stderr and exit status 2; `process` holds what concerns streams and signals.
"""

from __future__ import annotations

import argparse
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any

import torch

from ngram_ple.cli import bench, convert, demo, embed, inspect, plan, process, verify
from ngram_ple.errors import NgramPleError, NgramPleWarning

_COMMANDS = (demo, embed, inspect, verify, convert, plan, bench)
_EPILOG = (
    "Exit status: 0 done, 1 verify found problems, 2 an error (one sentence on stderr), 130 interrupted, "
    "143 terminated."
)
# What allocators say: torch's for the CPU, this package's operators, CUDA, C++.
_OUT_OF_MEMORY = ("can't allocate memory", "could not allocate", "out of memory", "std::bad_alloc")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        0 done; 1 `verify` found problems; 2 wrong arguments, or an error that one sentence on stderr
        tells; 128 + n when signal n ended it: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP. A stream that the caller
        has closed takes what is printed and drops it.
    """
    process.open_missing_streams()
    program = "ngram-ple"
    try:
        with process.ending_signals():
            try:
                arguments = _parser().parse_args(argv)
            except SystemExit as stop:  # argparse has printed help, the version or what is wrong
                process.flush_stdout()
                return stop.code if isinstance(stop.code, int) else 2
            program = f"ngram-ple {arguments.command}"
            with _plain_warnings(program):
                status = arguments.run(arguments)
                process.flush_stdout()
    except KeyboardInterrupt:
        process.complain(f"{program}: interrupted")
        return 128 + signal.SIGINT
    except process.Stopped as stopped:
        process.complain(f"{program}: stopped by {signal.Signals(stopped.number).name}")
        return 128 + stopped.number
    except (NgramPleError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_out_of_memory(error):
            raise  # a defect, worth its traceback
        if not isinstance(error, BrokenPipeError):  # whoever read stdout has left, and knows
            process.complain(f"{program}: {_sentence(error)}")
        with suppress(OSError):  # told already
            process.flush_stdout()
        return 2
    return int(status or 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ngram-ple",
        description="N-gram per-layer embedding tables: try them, and compute embeddings of a text.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"ngram-ple {metadata.version('ngram_ple')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(subparsers)
    return parser


def _is_out_of_memory(error: BaseException) -> bool:
    # torch has an exception of its own for GPUs only
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or any(words in str(error) for words in _OUT_OF_MEMORY)


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    elif isinstance(error, (MemoryError, RuntimeError)):
        reason = str(error).partition(": torch_call_dispatcher")[0]  # what follows is a line of C++
        text = f"not enough memory: {reason}" if reason else "not enough memory"
    else:
        text = str(error)
    return " ".join(text.split("\n"))


@contextmanager
def _plain_warnings(program: str) -> Iterator[None]:
    """Print the library's warnings as lines for users, without Python's file and source line."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **rest: Any) -> None:
        if issubclass(category, NgramPleWarning):
            process.complain(f"{program}: warning: {message}")
        else:
            usual(message, category, *where, **rest)

    with warnings.catch_warnings():
        usual = warnings.showwarning
        warnings.showwarning = show
        yield
