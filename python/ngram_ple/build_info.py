"""What this installation was built with."""

import functools
import json
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

from ngram_ple.errors import ConfigError


class BuildInfo(TypedDict):
    """Facts of an installation, see `build_info`."""

    version: str
    backends: list[str]
    archs: list[str]
    torch_built_against: str
    torch_found: str
    compiler: str
    calibrations: list[str]


def build_info() -> BuildInfo:
    """Tell what this installation was built with and which torch it runs on.

    Returns
    -------
    BuildInfo
        ``version`` of ngram_ple; ``backends`` compiled in (``"cpu"`` and perhaps ``"cuda"`` or ``"hip"``);
        ``archs``, the GPU architectures compiled for (``"90"``, ``"gfx90a"``); ``torch_built_against``
        and ``torch_found``, torch's versions at build time and now; ``compiler`` of the host code;
        ``calibrations``, how the pinned tables that this process made are read, by measurement.

    Raises
    ------
    FileNotFoundError
        If the native part was never built (a source tree without ``pip install``).
    """
    import torch

    from ngram_ple.tables.calibration import MADE

    built = _built()
    return BuildInfo(
        version=metadata.version("ngram_ple"),
        backends=built["backends"],
        archs=built["archs"],
        torch_built_against=built["torch_built_against"],
        torch_found=str(torch.__version__),
        compiler=built["compiler"],
        calibrations=list(MADE),
    )


def check_gpu_backend() -> None:
    """Refuse a build for other GPUs than torch's: its kernels could not be launched on them.

    Raises
    ------
    ConfigError
        This torch runs on CUDA and the kernels were built for HIP or not at all, or the other way around.
    """
    import torch

    wanted, version = ("hip", torch.version.hip) if torch.version.hip else ("cuda", torch.version.cuda)
    backends = _built()["backends"]
    if version is not None and wanted not in backends:
        vendor = "ROCm" if wanted == "hip" else "CUDA"
        raise ConfigError(
            f"this torch is for {vendor} {version} and ngram_ple was built for {' and '.join(backends)}: "
            f"install ngram_ple again with NGRAM_PLE_BACKEND={wanted}"
        )


@functools.cache
def _built() -> dict[str, Any]:
    built: dict[str, Any] = json.loads(
        Path(__file__).with_name("_build_info.json").read_text(encoding="utf-8")
    )
    return built
