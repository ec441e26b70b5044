"""Every error and warning that ngram_ple raises on purpose.

Messages name the argument, file or tensor, the requirement, and what came instead.
"""

from __future__ import annotations

import reprlib


class NgramPleError(Exception):
    """Base of all errors raised by ngram_ple."""


class ConfigError(NgramPleError, ValueError):
    """A configuration field is missing, of a wrong type or out of range."""


class CheckpointError(NgramPleError, ValueError):
    """A checkpoint's files or tensors are not what the configuration promises."""


class PinnedMemoryError(NgramPleError):
    """Pinned host memory could not be mapped, registered or shared."""


class PrefetchError(NgramPleError):
    """A prefetch was started or finalized out of order, or with other sizes than announced."""


class ExchangeError(NgramPleError):
    """The ranks of an embedding tensor parallel group disagree or cannot exchange rows."""


class NgramPleWarning(UserWarning):
    """Something was resolved in one of several plausible ways; the message names them."""


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxlevel = 3


def shown(value: object) -> str:
    """Return the value's repr for a message, a line of it at most: strangers may have chosen its size."""
    text = f"{value:#x}" if isinstance(value, int) and value.bit_length() > 4096 else _SHORT.repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
