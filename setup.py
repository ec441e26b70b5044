"""Build the two native libraries of ngram_ple with CMake and Ninja.

Environment variables:
  NGRAM_PLE_BACKEND     auto (default), cpu, cuda or hip
  NGRAM_PLE_CUDA_ARCHS  compute capabilities of a CUDA build, such as "90" or "80;90;100;120"
  NGRAM_PLE_HIP_ARCHS   architectures of a HIP build, such as "gfx90a" or "gfx90a;gfx942"
  CMAKE_ARGS            further arguments for CMake
and those that CMake itself reads: CXX, CXXFLAGS, LDFLAGS, CUDA_HOME, ...
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.dist_info import dist_info

ROOT = Path(__file__).resolve().parent
MIN_TORCH = (2, 11)
# What CMake takes up at the first configuration of a folder and keeps there.
REMEMBERED = (
    *("NGRAM_PLE_BACKEND", "NGRAM_PLE_CUDA_ARCHS", "NGRAM_PLE_HIP_ARCHS", "CMAKE_ARGS"),
    *("CXX", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CMAKE_PREFIX_PATH", "CMAKE_TOOLCHAIN_FILE"),
    *("CUDACXX", "CUDAFLAGS", "CUDAHOSTCXX", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH"),
)


def fail(sentence: str) -> NoReturn:
    """End the build with one sentence instead of a traceback."""
    raise SystemExit(f"ngram_ple: {sentence}")


def find_torch() -> dict[str, str]:
    """Find the torch to build against: {"version", "gpu", "include", "lib"}, as cmake/find_torch.py tells.

    torch is no build requirement, since an unpinned one would silently be another torch than the one the
    package runs with. It is looked for in this process's environment, then, past pip's build isolation, in
    the environment of the same interpreter, then in the activated virtual environment.
    """
    isolation = {"PYTHONPATH", "PYTHONNOUSERSITE", "PYTHONHOME"}
    plain = {name: value for name, value in os.environ.items() if name not in isolation}
    candidates = [(sys.executable, dict(os.environ)), (sys.executable, plain)]
    if "VIRTUAL_ENV" in os.environ:
        candidates.append((str(Path(os.environ["VIRTUAL_ENV"], "bin", "python")), plain))
    for python, env in candidates:
        try:
            found = subprocess.run(
                [python, str(ROOT / "cmake" / "find_torch.py")], env=env, stdout=subprocess.PIPE, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        torch: dict[str, str] | None = json.loads(found.stdout)
        if torch is None:
            continue
        if tuple(int(part) for part in torch["version"].split(".")[:2]) < MIN_TORCH:
            fail(f"torch >= 2.11 is needed, found torch {torch['version']}: upgrade torch first.")
        return torch
    fail(
        f"torch >= 2.11 is needed and {sys.executable} has none: install torch first, "
        "and use --no-build-isolation if your installer hides it from the build."
    )


def find_tool(name: str) -> str | None:
    """Find a program on PATH or beside the interpreter (a virtual environment need not be activated)."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def build_folder() -> Path:
    """Return the folder for objects, which are kept between builds: one for each way to build.

    Another place of the sources (a copied tree), other variables and other compilers get another folder:
    CMake would refuse the first and go on with what it remembers of the rest.
    """
    tools = [shutil.which(name) for name in ("c++", "nvcc", "hipcc")]
    way = [str(ROOT), sys.executable, [os.environ.get(name, "") for name in REMEMBERED], tools]
    key = hashlib.sha256(json.dumps(way).encode()).hexdigest()[:12]
    return ROOT / "build" / f"native-{sys.implementation.cache_tag}-{key}"


class CheckedDistInfo(dist_info):
    """Refuse before pip resolves (and downloads) the dependencies."""

    def run(self) -> None:
        """Check for torch, then write the metadata."""
        find_torch()
        super().run()


class CMakeBuild(build_ext):
    """Build with CMake into the wheel, or into python/ for an editable install."""

    def run(self) -> None:
        """Configure, build and install the native part."""
        torch = find_torch()
        cmake = find_tool("cmake") or fail("CMake >= 3.25 is needed and was not found: pip install cmake.")
        ninja = find_tool("ninja") or fail("Ninja is needed and was not found: pip install ninja.")
        compiler = shlex.split(os.environ.get("CXX", "")) or ["c++", "g++", "clang++"]
        if not any(shutil.which(name) for name in compiler):
            fail("a C++17 compiler is needed and none is on PATH: install g++ (or set CXX).")
        try:
            import pybind11
        except ImportError:
            fail("pybind11 is needed to build without isolation: pip install pybind11.")

        in_place = self.inplace or self.editable_mode
        build_dir = build_folder()  # not build_temp, which is a new one at every editable install
        destination = ROOT / "python" if in_place else Path(self.build_lib).resolve()
        configure = [
            *(cmake, "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja"),
            # Isolated builds bring these tools in folders of their own, new every time.
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DNGRAM_PLE_TORCH_INCLUDE={torch['include']}",
            f"-DNGRAM_PLE_TORCH_LIB={torch['lib']}",
            f"-DNGRAM_PLE_TORCH_VERSION={torch['version']}",
            f"-DNGRAM_PLE_TORCH_GPU={torch['gpu']}",
            f"-DNGRAM_PLE_BACKEND={os.environ.get('NGRAM_PLE_BACKEND') or 'auto'}",
        ]
        for name in ("NGRAM_PLE_CUDA_ARCHS", "NGRAM_PLE_HIP_ARCHS"):
            if archs := os.environ.get(name):
                configure.append(f"-D{name}={archs}")
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        try:
            subprocess.run(configure, check=True)
            subprocess.run([cmake, "--build", str(build_dir)], check=True)
            subprocess.run([cmake, "--install", str(build_dir), "--prefix", str(destination)], check=True)
        except subprocess.CalledProcessError as error:
            fail(f"the native build failed (CMake exit status {error.returncode}); its messages are above.")


setup(
    ext_modules=[Extension("ngram_ple._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "dist_info": CheckedDistInfo},
)
