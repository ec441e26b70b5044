"""The package itself: what it exports, what it was built with, and imports that cannot work."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import ngram_ple
import pytest
import torch

PACKAGE = Path(ngram_ple.__file__).parent

PUBLIC = {
    "CheckpointError", "ConfigError", "ExchangeError", "HashPlan", "NGramConfig", "NGramEmbedding",
    "NgramPleError", "PinnedMemoryError", "PrefetchError", "RowFormat", "build_info", "ops", "resolve_format",
}  # fmt: skip


def python(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter with these folders before all others."""
    setup = f"import sys; sys.path[:0] = {[str(p) for p in path]!r}\n"
    return subprocess.run([sys.executable, "-c", setup + code], capture_output=True, text=True, check=False)


def test_public_names() -> None:
    assert set(ngram_ple.__all__) >= PUBLIC
    for name in ngram_ple.__all__:
        assert hasattr(ngram_ple, name)


def test_errors_have_one_base() -> None:
    for name in ("ConfigError", "CheckpointError", "PinnedMemoryError", "PrefetchError", "ExchangeError"):
        assert issubclass(getattr(ngram_ple, name), ngram_ple.NgramPleError)
    assert issubclass(ngram_ple.ConfigError, ValueError)
    assert issubclass(ngram_ple.CheckpointError, ValueError)
    assert not issubclass(ngram_ple.PrefetchError, ValueError)
    assert issubclass(ngram_ple.NgramPleWarning, UserWarning)


SCHEMAS = {
    "ngram_ids": (
        "ngram_ple::ngram_ids(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, "
        "Tensor layer_multipliers, Tensor ngram_heads_vocab_sizes, Tensor ngram_heads_offsets, "
        "int eos_token_id, int heads_per_ngram) -> Tensor"
    ),
    "lookup": (
        "ngram_ple::lookup(Tensor ids, Tensor weight, Tensor? scale, Tensor? global_scale, *, str format, "
        "str out_dtype, int head_dim, int row_start=0, int row_end=-1) -> Tensor"
    ),
    "embed": (
        "ngram_ple::embed(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, "
        "Tensor layer_multipliers, Tensor ngram_heads_vocab_sizes, Tensor ngram_heads_offsets, "
        "int eos_token_id, int heads_per_ngram, Tensor weight, Tensor? scale, Tensor? global_scale, *, "
        "str format, str out_dtype, int head_dim, int row_start=0, int row_end=-1) -> Tensor"
    ),
    "decode": (
        "ngram_ple::decode(Tensor rows, Tensor? scale, Tensor? global_scale, *, str format, str out_dtype, "
        "int head_dim) -> Tensor"
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(name: str) -> None:
    """Users call the operators by these names: a change here breaks them."""
    operator = getattr(torch.ops.ngram_ple, name)
    assert str(operator.default._schema) == SCHEMAS[name]
    out = str(operator.out._schema)
    assert out.endswith("Tensor(a!) out) -> ()")
    assert set(operator.overloads()) == {"default", "out"}


def test_build_info() -> None:
    info = ngram_ple.build_info()
    assert set(info) == {
        "version", "backends", "archs", "torch_built_against", "torch_found", "compiler", "calibrations",
    }  # fmt: skip
    assert info["version"] == metadata.version("ngram_ple")
    assert "cpu" in info["backends"]
    assert set(info["backends"]) <= {"cpu", "cuda", "hip"}
    assert bool(info["archs"]) == (len(info["backends"]) > 1)
    assert info["torch_found"] == torch.__version__


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert (PACKAGE / "_core.pyi").is_file()


@pytest.mark.parametrize("version", ["2.10.1", "2.9.0a0+git123", "1.13.1+cu117"])
def test_a_too_old_torch_ends_in_a_sentence(version: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    result = python("import ngram_ple", tmp_path, PACKAGE.parent)
    last = result.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: ngram_ple needs torch >= 2.11, found torch {version}: upgrade torch."


def test_importing_starts_no_gpu_and_says_nothing() -> None:
    result = python("import ngram_ple, torch; assert not torch.cuda.is_initialized()", PACKAGE.parent)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


def test_importing_brings_no_compiler() -> None:
    """torch's compilers take seconds to import; nothing here needs them before a program is compiled."""
    heavy = ("torch._dynamo", "torch._inductor", "transformers", "matplotlib", "tokenizers")
    code = f"""
import torch
before = set(sys.modules)
import ngram_ple
heavy = sorted(m for m in set(sys.modules) - before if m.startswith({heavy!r}))
assert not heavy, heavy[:5]
"""
    result = python(code, PACKAGE.parent)
    assert result.returncode == 0, result.stderr
