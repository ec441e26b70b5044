"""Devices: every operator test runs on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import os

import pytest
import torch
from ngram_ple import build_info


def _missing_gpu() -> str | None:
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    if not {"cuda", "hip"} & set(build_info()["backends"]):
        return f"ngram_ple was built for {build_info()['backends']} only"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none, or fail it: NGRAM_PLE_REQUIRE_GPU=1 says there must be."""
    if item.get_closest_marker("needs_gpu") is None:
        return
    reason = _missing_gpu()
    if reason is None:
        return
    if os.environ.get("NGRAM_PLE_REQUIRE_GPU", "0") not in ("", "0"):
        pytest.fail(f"NGRAM_PLE_REQUIRE_GPU is set, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.needs_gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device in turn."""
    name: str = request.param
    return torch.device(name, 0) if name == "cuda" else torch.device(name)
