"""What a wheel may hold and what its libraries may ask for: exit status 1 and the differences otherwise."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "python"
BUILT = {"ngram_ple/_ops.so", "ngram_ple/_build_info.json"}
INFO = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
# torch's stable ABI is its C shims. Other undefined symbols have versions of libc, libstdc++ or libgcc.
STABLE = re.compile(r"(aoti_)?torch_\w+")
PYTHON = re.compile(r"_?Py\w+")
LINKER = {"__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}
SYSTEM = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+")
LIBRARIES = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.\d+|ld-linux[\w-]*\.so\.\d+")


def tool(*command: str) -> list[str]:
    """Run a tool of binutils and return the lines of its answer."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def wrong_contents(names: set[str]) -> list[str]:
    """Compare with the sources and what is built from them."""
    sources = {
        str(file.relative_to(SOURCES))
        for file in (SOURCES / "ngram_ple").rglob("*")
        if file.suffix in (".py", ".pyi", ".typed") or file.name == "py.typed"
    }
    core = {name for name in names if re.fullmatch(r"ngram_ple/_core\.[\w-]+\.so", name)}
    info = {name for name in names if re.fullmatch(r"ngram_ple-[\w.+]+\.dist-info/.*", name)}
    expected = sources | BUILT | core | info
    problems = [f"missing: {name}" for name in sorted(expected - names)]
    problems += [f"does not belong there: {name}" for name in sorted(names - expected)]
    problems += [] if len(core) == 1 else [f"one _core library is needed, got {sorted(core)}"]
    leaves = {name.partition(".dist-info/")[2] for name in info}
    return problems + [f"dist-info: {name}" for name in sorted(leaves ^ INFO)]


def wrong_symbols(library: Path, allowed: re.Pattern[str], torch_library: bool) -> list[str]:
    """List what a library needs beyond the system's and `allowed`."""
    problems, count = [], 0
    for line in tool("nm", "--dynamic", "--undefined-only", "--with-symbol-versions", str(library)):
        symbol, _, version = line.split()[-1].partition("@")
        if version:
            ours = SYSTEM.fullmatch(version.lstrip("@"))
        else:
            ours = allowed.fullmatch(symbol) or (symbol in LINKER and " w " in line)
            count += 1
        problems += [] if ours else [f"{library.name}: {line.split()[-1]} is outside the stable ABI"]
    needed = [
        line.split("[")[1].rstrip("]") for line in tool("readelf", "-dW", str(library)) if "(NEEDED)" in line
    ]
    for name in needed:
        if not LIBRARIES.fullmatch(name) and not (torch_library and name == "libtorch_cpu.so"):
            problems.append(f"{library.name}: needs {name}")
    print(f"{library.name}: {library.stat().st_size:,} bytes, {count} symbols, needs {' '.join(needed)}")
    return problems


def main() -> int:
    """Check the wheel that is named on the command line."""
    with zipfile.ZipFile(sys.argv[1]) as wheel, tempfile.TemporaryDirectory() as folder:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        problems = wrong_contents(names)
        for name in sorted(names):
            if name.endswith(".so"):
                library = Path(wheel.extract(name, folder))
                of_torch = library.name == "_ops.so"
                problems += wrong_symbols(library, STABLE if of_torch else PYTHON, of_torch)
        print(f"{Path(sys.argv[1]).name}: {Path(sys.argv[1]).stat().st_size:,} bytes, {len(names)} files")
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
