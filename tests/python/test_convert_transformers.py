"""transformers loads what convert writes: a model whose table went through convert has the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from ngram_ple.convert import convert_checkpoint
from safetensors import safe_open
from safetensors.torch import save_file

pytest.importorskip("transformers", minversion="5.17")
transformers_qwen = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")

from test_accelerate import tiny_model  # noqa: E402 (needs transformers)


def split_off(source: Path, rest: Path) -> dict[str, str]:
    """The tensors that convert does not copy, in a file of their own: name -> file."""
    tensors = {}
    for file in source.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                if ".ngram_embedding." not in name:
                    tensors[name] = opened.get_tensor(name).contiguous()
    save_file(tensors, rest, metadata={"format": "pt"})
    return dict.fromkeys(tensors, rest.name)


@pytest.mark.parametrize("shards", [None, 4, 7])
def test_transformers_loads_it(shards: int | None, tmp_path: Path) -> None:
    model = tiny_model(torch.bfloat16, torch.device("cpu"), ple_layer_ids=[2])
    model.save_pretrained(tmp_path / "source")
    out = tmp_path / "out"
    convert_checkpoint(tmp_path / "source", out, "bf16", shards=shards)
    index_file = out / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    assert all(".ple_embedding." in name for name in index["weight_map"])
    index["weight_map"] |= split_off(tmp_path / "source", out / "rest.safetensors")
    index_file.write_text(json.dumps(index))
    for extra in (tmp_path / "source").glob("generation_config.json"):
        shutil.copy(extra, out)
    loaded = type(model).from_pretrained(out, dtype=torch.bfloat16)
    expected = model.state_dict()
    got = loaded.state_dict()
    assert got.keys() == expected.keys()
    assert any("ngram_embedding.weight" in name for name in got)
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name
