"""What a command may write to: looked at before any work is done."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from ngram_ple.cli import report
from ngram_ple.errors import NgramPleError


def check(option: str, out: Path, checkpoint: Path | None, inputs: tuple[Path, ...], overwrite: bool) -> None:
    """Refuse what could not be written or should not be overwritten.

    Parameters
    ----------
    option : str
        What the user calls it, for messages.
    out : Path
        The file to write; links are followed.
    checkpoint : Path or None
        A folder that nothing may be written below.
    inputs : tuple of Path
        Files that the command reads.
    overwrite : bool
        Whether another file that exists may be replaced.

    Raises
    ------
    NgramPleError
        The option, the requirement and the file.
    """
    target = real(out)
    if checkpoint is not None and real(checkpoint) in target.parents:
        raise NgramPleError(f"{option} must be a file outside the checkpoint folder, got {out}")
    if not target.parent.is_dir():
        raise NgramPleError(f"{option} must be a file in a folder that exists, got {out}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise NgramPleError(f"{option} must be a file in a folder that can be written to, got {out}")
    if not target.exists():
        return
    if not stat.S_ISREG(target.stat().st_mode):
        raise NgramPleError(f"{option} must be a regular file, got {out}, which is none")
    if checkpoint is not None and checkpoint.is_dir():  # its files may be links to a cache elsewhere
        inputs += tuple(checkpoint.iterdir())
    if any(given.exists() and given.samefile(target) for given in inputs):
        raise NgramPleError(f"{option} must not be a file that is read, got {out}")
    if not overwrite:
        raise NgramPleError(f"{option} must be a new file, but {out} exists; --force overwrites it")


def check_room(out: Path, nbytes: int) -> None:
    """Refuse a file that its disk has no room for."""
    free = shutil.disk_usage(real(out).parent).free
    if free < nbytes:
        raise NgramPleError(
            f"{out} would take {report.size(nbytes)}, but its disk has {report.size(free)} left"
        )


def real(path: Path) -> Path:
    """Return the path with its links followed."""
    return Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop of links
