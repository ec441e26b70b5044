"""setup.py and the Makefile with stand-ins for CMake and Python: when is something built again, and where."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    *("NGRAM_PLE_BACKEND", "NGRAM_PLE_CUDA_ARCHS", "NGRAM_PLE_HIP_ARCHS", "CMAKE_ARGS", "TORCH_SPEC"),
    *("CXX", "CXXFLAGS", "LDFLAGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"),
)

# `python -m venv [--clear] DIR` makes programs that write down how they were called.
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
for folder; do :; done
[ "$3" != --clear ] || rm -rf "$folder"
mkdir -p "$folder/bin"
for name in pip cmake; do
  printf '#!/bin/sh\\necho "%s $*" >>"%s"\\n' $name "$LOG" >"$folder/bin/$name"
  chmod +x "$folder/bin/$name"
done
"""


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def environment(**settings: str) -> dict[str, str]:
    """Return this process's environment with these settings alone."""
    return {name: value for name, value in os.environ.items() if name not in SETTINGS} | settings


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that decide how to build, without sources."""
    folder = tmp_path / "tree"
    (folder / "cmake").mkdir(parents=True)
    for name in ("setup.py", "Makefile", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copy(ROOT / "cmake" / "find_torch.py", folder / "cmake")
    (folder / "python" / "ngram_ple").mkdir(parents=True)
    (folder / "python" / "ngram_ple" / "__init__.py").touch()
    return folder


def build_folder(tree: Path, log: Path, **settings: str) -> Path:
    """Build with setup.py and return the folder that CMake was given."""
    log.write_text("")
    path = f"{log.parent}{os.pathsep}{os.environ['PATH']}"
    env = environment(**settings, LOG=str(log), PATH=path)
    command = [sys.executable, "setup.py", "--quiet", "build_ext"]
    subprocess.run(command, cwd=tree, env=env, check=True, capture_output=True)
    configure = log.read_text().splitlines()[0].split()
    return Path(configure[configure.index("-B") + 1])


def test_a_build_folder_for_each_way(tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("pybind11")
    (tmp_path / "bin").mkdir()
    log = tmp_path / "bin" / "log"
    for name in ("cmake", "ninja"):
        program(tmp_path / "bin" / name, '#!/bin/sh\necho "$@" >>"$LOG"\n')
    plain = build_folder(tree, log)
    assert plain.parent == tree / "build"
    ways = [plain]
    for name, value in (
        ("NGRAM_PLE_BACKEND", "cpu"),
        ("NGRAM_PLE_CUDA_ARCHS", "90"),
        ("NGRAM_PLE_HIP_ARCHS", "gfx90a"),
        ("CMAKE_ARGS", "-DNGRAM_PLE_WERROR=ON"),
        ("CXX", "g++"),
    ):
        ways.append(build_folder(tree, log, **{name: value}))
    ways.append(build_folder(tree.rename(tmp_path / "copy"), log))
    assert len({folder.name for folder in ways}) == len(ways)
    assert build_folder((tmp_path / "copy").rename(tree), log) == plain


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_follows_its_settings(tree: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    python = program(tmp_path / "python", PYTHON)

    def made(folder: Path = tree, **settings: str) -> list[str]:
        """What a `make` runs: torch, native, tests."""
        log.write_text("")
        env = environment(**{"CXX": "true", "LOG": str(log)} | settings)
        targets = [".venv/native", "build/tests/CMakeCache.txt"]
        subprocess.run(
            ["make", f"PYTHON={python}", *targets], cwd=folder, env=env, check=True, capture_output=True
        )
        (folder / "build" / "tests").mkdir(parents=True, exist_ok=True)
        (folder / "build" / "tests" / "CMakeCache.txt").touch()  # as CMake would
        words = {"torch==": "torch", "--editable": "native", "build/tests": "tests"}
        return [what for line in log.read_text().splitlines() for word, what in words.items() if word in line]

    assert made() == ["torch", "native", "tests"]
    assert made() == []
    assert made(TORCH_SPEC="torch==2.12.0") == ["torch", "native"]
    assert made(TORCH_SPEC="torch==2.12.0") == []
    assert made() == ["torch", "native"]
    for name, value in (
        ("NGRAM_PLE_BACKEND", "cpu"),
        ("NGRAM_PLE_CUDA_ARCHS", "80;90"),
        ("NGRAM_PLE_HIP_ARCHS", "gfx90a;gfx942"),
        ("CMAKE_ARGS", "-DNAME='a b' -DNGRAM_PLE_WERROR=ON"),
        ("CXX", "/bin/true"),
    ):
        assert made(**{name: value}) == ["native", "tests"]
        assert made(**{name: value}) == []
        assert made() == ["native", "tests"]
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy)
    assert made(copy) == ["torch", "native", "tests"]
    assert made(copy) == []
    assert made() == []
