"""One target under atheris: ``python fuzz.py TARGET [libFuzzer's options] CORPUS...``."""

from __future__ import annotations

import atexit
import resource
import sys

import atheris

with atheris.instrument_imports(include=["ngram_ple", "checkpoint_edits", "fnmatch"]):
    import ngram_ple.checkpoint  # noqa: F401 - instrumented before `targets` imports it
    from targets import TARGETS, Workplace

_ADDRESS_SPACE = 512 << 20  # more than inputs may take, far less than a hostile size


def main() -> None:
    """Run libFuzzer."""
    name = sys.argv.pop(1)
    if name not in TARGETS:
        raise SystemExit(f"the target must be one of {', '.join(TARGETS)}, got {name!r}")
    place = Workplace()
    atexit.register(place.remove)
    place.run(name, b"")  # what is imported or allocated once

    def one_input(data: bytes) -> None:
        place.run(name, data)

    atheris.Setup(sys.argv, one_input)
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
        pages = int(statm.read().split()[0])
    limit = pages * resource.getpagesize() + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
