"""Builds and calls the plain C++ gather (``gather.cpp``)."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch


@cache
def _library() -> ctypes.CDLL:
    built = Path(tempfile.mkdtemp(prefix="ngram_ple_bench_")) / "gather.so"
    source = Path(__file__).with_name("gather.cpp")
    command = ["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", str(source), "-o", str(built)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(built))


def plain_gather(table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> None:
    """Copy rows ``ids`` (int64) of contiguous `table` to `out`, with torch's number of threads."""
    _library().plain_gather(
        ctypes.c_void_p(table.data_ptr()),
        ctypes.c_void_p(ids.data_ptr()),
        ctypes.c_int64(ids.numel()),
        ctypes.c_int64(table.shape[1] * table.element_size()),
        ctypes.c_void_p(out.data_ptr()),
        ctypes.c_int(torch.get_num_threads()),
    )
