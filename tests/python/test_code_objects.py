"""The check of compiled AMD kernels: it reads what LLVM's tools print, and it can fail."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[1] / "code_objects"
sys.path.insert(0, str(CHECK))

from check import RECORDED, faults_of, read_recorded, record  # noqa: E402
from code_objects import Kernel, make_kernel, parse_notes, split_assembly  # noqa: E402

NOTES = """Displaying notes found in: .note
  Owner                Data size 	Description
  AMDGPU               0x00000511	NT_AMDGPU_METADATA (AMDGPU Metadata)
    AMDGPU Metadata:
        ---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .name:           out
        .size:           136
        .value_kind:     by_value
    .name:           first
    .private_segment_fixed_size: 0
    .sgpr_spill_count: 0
    .vgpr_count:     70
    .vgpr_spill_count: 0
    .wavefront_size: 64
  - .args:
      - .size:           8
    .name:           second
    .private_segment_fixed_size: 48
    .sgpr_spill_count: 3
    .vgpr_count:     12
    .vgpr_spill_count: 4
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--gfx90a
amdhsa.version:
  - 1
  - 1
"""
ASSEMBLY = """
x.co:	file format elf64-amdgpu

Disassembly of section .text:

0000000000002200 <first>:
	global_load_dwordx4 v[16:19], v[16:17], off
	global_load_dword v1, v[2:3], off
	global_store_dwordx4 v[0:1], v[2:5], off
	global_load_dwordx4 v[2:5], v[16:17], off

0000000000002300 <second>:
	flat_load_dwordx4 v[2:5], v[16:17]
	global_load_b128 v[2:5], v[16:17], off
"""
GOOD = Kernel("a.cu", "copy<4>", "gfx90a", 64, 0, 0, 40, 5, 0)


def test_what_the_tools_print_is_read() -> None:
    notes, assembly = parse_notes(NOTES), split_assembly(ASSEMBLY)
    assert list(notes) == ["first", "second"]
    first, second = (make_kernel("a.cu", name, "gfx90a", notes[name], assembly[name]) for name in notes)
    assert first == Kernel("a.cu", "first", "gfx90a", 64, 0, 0, 70, 2, 0)
    assert second == Kernel("a.cu", "second", "gfx90a", 64, 48, 7, 12, 1, 1)


def test_names_are_as_the_source_has_them() -> None:
    facts = parse_notes(NOTES)["first"]
    name = "ngram_ple::gpu::(anonymous namespace)::rows<ngram_ple::gpu::Ids, (ngram_ple::OutType)0>"
    assert make_kernel("a.cu", name, "gfx90a", facts, "").name == "rows<Ids, (OutType)0>"


def test_a_good_kernel_passes() -> None:
    assert faults_of([GOOD], {("a.cu", "copy<4>"): 5}) == []
    assert faults_of([GOOD], {}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"wave_size": 32}, "must run at 64 lanes, got 32"),
        ({"spills": 2}, "must not spill registers, got 2 spilled"),
        ({"scratch_bytes": 16}, "must not use scratch memory, got 16 bytes"),
        ({"flat_accesses": 1}, "must not access memory flat, got 1 such"),
        ({"wide_loads": 4}, "must load 16 bytes in 5 places, got 4"),
        ({"name": "copy<8>"}, "copy<4>: recorded in wide_loads.txt, not found"),
    ],
)
def test_each_regression_is_a_sentence(change: dict[str, int | str], said: str) -> None:
    kernel = dataclasses.replace(GOOD, **change)  # type: ignore[arg-type]
    (fault,) = faults_of([kernel], {("a.cu", "copy<4>"): 5})
    assert said in fault


def test_a_kernel_that_one_gpu_lacks_is_missed() -> None:
    other = dataclasses.replace(GOOD, arch="gfx1100", wave_size=32, name="else")
    (fault,) = faults_of([GOOD, other], {("a.cu", "copy<4>"): 5})
    assert fault.startswith("gfx1100 a.cu copy<4>: recorded")


def test_the_record_is_the_least_of_all_gpus(tmp_path: Path) -> None:
    fewer = dataclasses.replace(GOOD, arch="gfx1100", wave_size=32, wide_loads=3)
    none = dataclasses.replace(GOOD, name="bytes<(OutType)3, true>", wide_loads=0)
    record([GOOD, fewer, none], tmp_path / "loads.txt")
    assert read_recorded(tmp_path / "loads.txt") == {("a.cu", "copy<4>"): 3}
    assert min(read_recorded(RECORDED).values()) > 0


BAD = """#include <hip/hip_runtime.h>
__global__ void by_index(float* out, const int* order) {
  float held[512];
  for (int i = 0; i < 512; ++i) held[order[i] & 511] = out[i];
  for (int i = 0; i < 512; ++i) out[i] = held[order[512 + i] & 511];
}
"""


@pytest.mark.skipif(
    shutil.which("hipcc") is None or not Path("/usr/lib/llvm-19/bin/llvm-objdump").exists(),
    reason="needs hipcc and LLVM 19's tools",
)
def test_a_bad_kernel_fails_the_command(tmp_path: Path) -> None:
    (tmp_path / "bad.cu").write_text(BAD)
    compile_it = ["hipcc", "-x", "hip", "--offload-arch=gfx90a", "-O3", "-c", "bad.cu", "-o", "bad.cu.o"]
    environment = {"HIP_PLATFORM": "amd", "PATH": "/usr/bin:/bin"}
    subprocess.run(compile_it, cwd=tmp_path, env=environment, check=True)
    command = [sys.executable, str(CHECK / "check.py"), "--llvm", "/usr/lib/llvm-19/bin", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "gfx90a bad.cu by_index: must not use scratch memory, got" in result.stderr
    assert "gather_staged_kernel" in result.stderr  # recorded, and not here
