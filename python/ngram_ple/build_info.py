"""What this installation was built with."""

import json
from importlib import metadata
from pathlib import Path
from typing import TypedDict


class BuildInfo(TypedDict):
    """Facts of an installation, see `build_info`."""

    version: str
    backends: list[str]
    archs: list[str]
    torch_built_against: str
    torch_found: str
    compiler: str


def build_info() -> BuildInfo:
    """Tell what this installation was built with and which torch it runs on.

    Returns
    -------
    BuildInfo
        ``version`` of ngram_ple; ``backends`` compiled in (``"cpu"`` and perhaps ``"cuda"`` or ``"hip"``);
        ``archs``, the GPU architectures compiled for (``"90"``, ``"gfx90a"``); ``torch_built_against``
        and ``torch_found``, torch's versions at build time and now; ``compiler`` of the host code.

    Raises
    ------
    FileNotFoundError
        If the native part was never built (a source tree without ``pip install``).
    """
    import torch

    built = json.loads(Path(__file__).with_name("_build_info.json").read_text(encoding="utf-8"))
    return BuildInfo(
        version=metadata.version("ngram_ple"),
        backends=built["backends"],
        archs=built["archs"],
        torch_built_against=built["torch_built_against"],
        torch_found=str(torch.__version__),
        compiler=built["compiler"],
    )
