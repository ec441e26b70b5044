"""Hold compiled AMD kernels against what they must be; see `main`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from code_objects import Kernel, read_object

WAVE_SIZES = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32}
RECORDED = Path(__file__).with_name("wide_loads.txt")


def faults_of(kernels: list[Kernel], recorded: dict[tuple[str, str], int]) -> list[str]:
    """Return a sentence for everything that is wrong.

    Parameters
    ----------
    kernels : list[Kernel]
        Every kernel of every GPU.
    recorded : dict[tuple[str, str], int]
        By source and name, the fewest global loads of 16 bytes that a kernel may have on any GPU; each must
        exist.
    """
    faults = []
    for kernel in kernels:
        place = f"{kernel.arch} {kernel.source} {kernel.name}"
        if kernel.wave_size != WAVE_SIZES[kernel.arch]:
            faults.append(f"{place}: must run at {WAVE_SIZES[kernel.arch]} lanes, got {kernel.wave_size}")
        if kernel.spills:
            faults.append(f"{place}: must not spill registers, got {kernel.spills} spilled")
        if kernel.scratch_bytes:
            faults.append(f"{place}: must not use scratch memory, got {kernel.scratch_bytes} bytes")
        if kernel.flat_accesses:
            faults.append(
                f"{place}: must not access memory flat, got {kernel.flat_accesses} such instructions"
            )
        wanted = recorded.get((kernel.source, kernel.name), 0)
        if kernel.wide_loads < wanted:
            faults.append(f"{place}: must load 16 bytes in {wanted} places, got {kernel.wide_loads}")
    there = {(kernel.arch, kernel.source, kernel.name) for kernel in kernels}
    for arch in sorted({kernel.arch for kernel in kernels}):
        for source, name in recorded:
            if (arch, source, name) not in there:
                faults.append(
                    f"{arch} {source} {name}: recorded in {RECORDED.name}, not found in the objects"
                )
    return faults


def read_recorded(path: Path) -> dict[tuple[str, str], int]:
    """Read lines of `LOADS SOURCE NAME`; # begins a comment."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {(source, name): int(loads) for loads, source, name in (line.split(" ", 2) for line in lines)}


def record(kernels: list[Kernel], path: Path) -> None:
    """Write what `read_recorded` reads: the kernels that load 16 bytes anywhere, the fewest of all GPUs."""
    loads: dict[tuple[str, str], int] = {}
    for kernel in kernels:
        key = (kernel.source, kernel.name)
        loads[key] = min(loads.get(key, kernel.wide_loads), kernel.wide_loads)
    lines = [f"{count} {source} {name}" for (source, name), count in sorted(loads.items()) if count > 0]
    head = "# The fewest global loads of 16 bytes in each kernel's code on any GPU: check.py --record"
    path.write_text("\n".join([head, *lines, ""]))


def main() -> int:
    """Run as ``check.py --llvm FOLDER [--record] FOLDER...``, the last being folders of ``*.cu.o`` files.

    Every kernel must run at its GPU's wave size, without spills, scratch memory and flat accesses (which
    count as accesses of shared memory too); those in ``wide_loads.txt`` must exist and hold so many global
    loads of 16 bytes.

    Returns
    -------
    int
        0, or 1 after a sentence for everything that is wrong.
    """
    parser = argparse.ArgumentParser(description="Hold compiled AMD kernels against what they must be.")
    parser.add_argument(
        "--llvm", type=Path, default=Path("/opt/rocm/llvm/bin"), help="folder of LLVM's tools"
    )
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name} instead")
    parser.add_argument("folders", type=Path, nargs="+", help="where the *.cu.o files of HIP builds lie")
    arguments = parser.parse_args()
    objects = sorted(path for folder in arguments.folders for path in folder.rglob("*.cu.o"))
    kernels = [kernel for path in objects for kernel in read_object(path, arguments.llvm)]
    if not kernels:
        print(f"no kernels in {', '.join(map(str, arguments.folders))}", file=sys.stderr)
        return 1
    if arguments.record:
        record(kernels, RECORDED)
    faults = faults_of(kernels, read_recorded(RECORDED))
    for fault in faults:
        print(fault, file=sys.stderr)
    for arch in sorted({kernel.arch for kernel in kernels}):
        of_arch = [kernel for kernel in kernels if kernel.arch == arch]
        print(
            f"{arch}: {len(of_arch)} kernels, wave size {of_arch[0].wave_size}, "
            f"at most {max(kernel.vector_registers for kernel in of_arch)} vector registers, "
            f"{sum(kernel.wide_loads for kernel in of_arch)} global loads of 16 bytes"
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
