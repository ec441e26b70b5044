"""What compiled AMD kernels are like, read from HIP's object files with LLVM's tools."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUNDLE = "hipv4-amdgcn-amd-amdhsa--"
SECTION = ".hip_fatbin"
# gfx9's word for 16 bytes, and gfx11's.
WIDE_LOAD = re.compile(r"\bglobal_load_(dwordx4|b128)\b")
FLAT_ACCESS = re.compile(r"\bflat_(load|store|atomic)\w*")
NAMESPACES = re.compile(r"ngram_ple::(gpu::)?|\(anonymous namespace\)::")


@dataclass(frozen=True)
class Kernel:
    """One kernel of one GPU: metadata and counted instructions."""

    source: str  # the file, such as "embed.cu"
    name: str  # demangled, without namespaces and arguments
    arch: str
    wave_size: int
    scratch_bytes: int
    spills: int  # of scalar and vector registers
    vector_registers: int
    wide_loads: int  # global, 16 bytes a lane
    flat_accesses: int


def read_object(path: Path, llvm: Path) -> Iterator[Kernel]:
    """Read the kernels of every GPU in one ``.o`` file that hipcc or clang made; there may be none.

    Parameters
    ----------
    path : Path
        Named after its source: ``embed.cu.o``.
    llvm : Path
        The folder of ``llvm-readelf`` and its like.
    """

    def tool(name: str, *arguments: str | Path, text: str | None = None) -> str:
        command = [str(llvm / name), *map(str, arguments)]
        return subprocess.run(command, input=text, check=True, stdout=subprocess.PIPE, text=True).stdout

    if SECTION not in tool("llvm-readelf", "--sections", "--wide", path):
        return
    with tempfile.TemporaryDirectory() as folder:
        bundle, code = Path(folder, "bundle"), Path(folder, "code")
        tool("llvm-objcopy", f"--dump-section={SECTION}={bundle}", path, "/dev/null")
        bundled = ("--type=o", f"--input={bundle}")
        for target in tool("clang-offload-bundler", "--list", *bundled).split():
            if not target.startswith(BUNDLE):
                continue
            tool("clang-offload-bundler", "--unbundle", *bundled, f"--targets={target}", f"--output={code}")
            assembly = split_assembly(tool("llvm-objdump", "-d", "--no-show-raw-insn", code))
            kernels = parse_notes(tool("llvm-readelf", "--notes", code))
            names = tool("llvm-cxxfilt", "-p", text="\n".join(kernels)).splitlines()
            for name, (symbol, facts) in zip(names, kernels.items(), strict=True):
                yield make_kernel(path.stem, name, target.removeprefix(BUNDLE), facts, assembly[symbol])


def make_kernel(source: str, name: str, arch: str, facts: dict[str, int], assembly: str) -> Kernel:
    """Put a kernel together from its metadata and its instructions."""
    return Kernel(
        source=source,
        name=NAMESPACES.sub("", name),
        arch=arch,
        wave_size=facts["wavefront_size"],
        scratch_bytes=facts["private_segment_fixed_size"],
        spills=facts["sgpr_spill_count"] + facts["vgpr_spill_count"],
        vector_registers=facts["vgpr_count"],
        wide_loads=len(WIDE_LOAD.findall(assembly)),
        flat_accesses=len(FLAT_ACCESS.findall(assembly)),
    )


def parse_notes(text: str) -> dict[str, dict[str, int]]:
    """Return the numbers of each kernel, by its symbol, from what ``llvm-readelf --notes`` prints."""
    kernels: dict[str, dict[str, int]] = {}
    for entry in re.split(r"^  - ", text, flags=re.MULTILINE)[1:]:  # arguments stand further right
        fields = dict(re.findall(r"^(?:    )?\.(\w+): +(\S+)$", entry, flags=re.MULTILINE))
        if "name" in fields:
            kernels[fields["name"]] = {key: int(value) for key, value in fields.items() if value.isdigit()}
    return kernels


def split_assembly(text: str) -> dict[str, str]:
    """Return each symbol's instructions from what ``llvm-objdump -d`` prints."""
    parts = re.split(r"^[0-9a-f]+ <(.+)>:$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
