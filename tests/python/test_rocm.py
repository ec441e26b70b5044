"""A ROCm torch, played: which backend is chosen, built and refused. Its GPUs are "cuda" to Python too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ngram_ple import ConfigError, NGramConfig, NGramEmbedding, build_info
from ngram_ple.build_info import check_gpu_backend
from ngram_ple.tables import home_device

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake") or shutil.which("cmake", path=str(Path(sys.executable).parent))
CONFIG = NGramConfig(vocab_size=100, ple_embed_dim=64, eos_token_id=0, heads_per_ngram=2, ple_layer_ids=(1,))


def play_torch(monkeypatch: pytest.MonkeyPatch, *, hip: str | None, cuda: str | None) -> None:
    """Let torch say that it was built so, and that it has one GPU."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def play_build(monkeypatch: pytest.MonkeyPatch, *backends: str) -> None:
    monkeypatch.setattr(sys.modules["ngram_ple.build_info"], "_built", lambda: {"backends": list(backends)})


@pytest.mark.parametrize("placement", ["device", "pinned"])
def test_a_build_for_other_gpus_is_refused(monkeypatch: pytest.MonkeyPatch, placement: str) -> None:
    play_torch(monkeypatch, hip="6.4.43484", cuda=None)
    play_build(monkeypatch, "cpu", "cuda")
    message = (
        "this torch is for ROCm 6.4.43484 and ngram_ple was built for cpu and cuda: "
        "install ngram_ple again with NGRAM_PLE_BACKEND=hip"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        home_device(placement)
    with pytest.raises(ConfigError, match=re.escape(message)):
        NGramEmbedding(CONFIG, placement=placement)
    assert home_device("cpu") == torch.device("cpu")


def test_a_hip_build_is_refused_by_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    play_torch(monkeypatch, hip=None, cuda="13.0")
    play_build(monkeypatch, "cpu", "hip")
    with pytest.raises(ConfigError, match=r"for CUDA 13\.0 .* built for cpu and hip: .*BACKEND=cuda"):
        home_device("device")


@pytest.mark.parametrize("backend", ["hip", "cuda"])
def test_the_gpu_of_a_matching_torch_is_cuda(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    play_torch(monkeypatch, **{"hip": None, "cuda": None} | {backend: "1.0"})
    play_build(monkeypatch, "cpu", backend)
    assert home_device("device") == torch.device("cuda", 0)
    assert home_device("pinned", 0) == torch.device("cuda", 0)


def test_this_build_fits_this_torch() -> None:
    if {"cuda", "hip"} & set(build_info()["backends"]) and torch.cuda.is_available():
        check_gpu_backend()
        assert torch._C._dispatch_has_kernel_for_dispatch_key("ngram_ple::embed", "CUDA")


@pytest.mark.parametrize(
    ("facts", "gpu"), [("hip = '6.4'", "hip"), ("cuda = '13.0'\nhip = None", "cuda"), ("", "")]
)
def test_the_build_is_told_what_torch_is_for(tmp_path: Path, facts: str, gpu: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.11.0'\n{facts}\n")
    command = [sys.executable, str(ROOT / "cmake" / "find_torch.py")]
    told = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(told.stdout)
    assert (found["version"], found["gpu"]) == ("2.11.0", gpu)


@pytest.mark.skipif(CMAKE is None or shutil.which("c++") is None, reason="needs CMake and c++")
@pytest.mark.parametrize(
    ("compilers", "torch_gpu", "said"),
    [
        ("hipcc nvcc", "hip", "backends: cpu hip"),
        ("hipcc nvcc", "cuda", "backends: cpu cuda"),
        ("hipcc nvcc", "", "backends: cpu cuda"),
        ("hipcc", "", "backends: cpu hip"),
        ("nvcc", "hip", "backends: cpu cuda"),
        ("", "hip", "backends: cpu\n"),
    ],
)
def test_auto_prefers_the_backend_of_torch(tmp_path: Path, compilers: str, torch_gpu: str, said: str) -> None:
    arguments = [f"-DNGRAM_PLE_TORCH_GPU={torch_gpu}"]
    for name in ("hipcc", "nvcc"):
        path = tmp_path / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        arguments.append(f"-DNGRAM_PLE_{name.upper()}={path if name in compilers.split() else ''}")
    text = (
        "cmake_minimum_required(VERSION 3.25)\nset(NGRAM_PLE_BACKEND auto)\n"
        f'include("{ROOT}/cmake/Backend.cmake")\n'
    )
    (tmp_path / "choose.cmake").write_text(text)
    assert CMAKE is not None
    command = [CMAKE, *arguments, "-P", str(tmp_path / "choose.cmake")]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False
    )  # it goes no further in a script
    assert said in result.stdout, result.stdout + result.stderr
