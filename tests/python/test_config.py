"""NGramConfig: the fields of published configurations, defaults, and every wrong one refused by name."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ngram_ple.config import NGramConfig, read_config
from ngram_ple.errors import ConfigError, NgramPleError

# The PLE fields of the published Qwen3.8-Flash-Next; seed, N, K, B and D are left to their defaults in part.
PUBLISHED = {
    "model_type": "qwen4_exp",
    "eos_token_id": [248046, 248044],
    "text_config": {
        "model_type": "qwen4_exp_text",
        "vocab_size": 248320,
        "hidden_size": 2560,
        "num_hidden_layers": 48,
        "eos_token_id": 248044,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": 20000000,
        "make_ngram_vocab_size_divisible_by": 128,
        "ple_embed_dim": 2560,
        "ple_layer_ids": [2],
        "split_ngram_parts": 128,
    },
}
SMALL = {"vocab_size": 100, "hidden_size": 64, "eos_token_id": 1, "ple_layer_ids": [2, 7, 2]}


def small(**fields: Any) -> dict[str, Any]:
    return {"text_config": {**SMALL, **fields}}


def test_published() -> None:
    config = NGramConfig.from_pretrained(PUBLISHED)
    assert (config.ngram_size, config.heads_per_ngram, config.num_heads, config.head_dim) == (3, 8, 16, 160)
    assert (config.seed, config.split_ngram_parts, config.eos_token_id) == (1234, 128, 248044)
    assert (config.ple_layer_ids, config.layer, config.decoder_layer) == ((2,), 0, 1)


def test_defaults() -> None:
    config = NGramConfig.from_pretrained(SMALL)
    assert config.ple_embed_dim == 64
    assert config.ngram_vocab_size_base == 20_000_000
    assert config.make_ngram_vocab_size_divisible_by == 128
    assert (config.ngram_size, config.heads_per_ngram, config.seed, config.split_ngram_parts) == (
        3,
        8,
        1234,
        512,
    )
    assert config.ple_embedding_dtype is None
    assert config.quantization_config is None


def test_agrees_with_transformers() -> None:
    qwen = pytest.importorskip("transformers.models.qwen4_exp.configuration_qwen4_exp")
    text = {key: value for key, value in PUBLISHED["text_config"].items() if key != "model_type"}
    theirs = qwen.Qwen4ExpTextConfig(**text)
    ours = NGramConfig.from_pretrained(qwen.Qwen4ExpConfig(text_config=text).to_dict())
    for field in SMALL.keys() | {"seed", "ngram_size", "ple_embed_dim", "split_ngram_parts"}:
        if field not in ("hidden_size", "ple_layer_ids"):
            assert getattr(ours, field) == getattr(theirs, field), field
    assert list(ours.ple_layer_ids) == theirs.ple_layer_ids


def test_layers_are_sorted_without_doubles() -> None:
    config = NGramConfig.from_pretrained(small(ple_layer_ids=[9, 2, 9, 4]), layer=2)
    assert config.ple_layer_ids == (2, 4, 9)
    assert config.decoder_layer == 8


def test_text_config_wins_and_null_is_absent() -> None:
    config = {**SMALL, "seed": 1, "heads_per_ngram": 4, "text_config": {"seed": 2, "heads_per_ngram": None}}
    assert NGramConfig.from_pretrained(config).seed == 2
    assert NGramConfig.from_pretrained(config).heads_per_ngram == 4
    assert NGramConfig.from_pretrained({**SMALL, "text_config": None}).seed == 1234
    assert NGramConfig.from_pretrained(small(eos_token_id=[5, 6])).eos_token_id == 5


def test_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    expected = NGramConfig.from_pretrained(PUBLISHED)
    assert NGramConfig.from_pretrained(tmp_path) == expected
    assert NGramConfig.from_pretrained(str(tmp_path / "config.json")) == expected
    legacy = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "NVFP4", "exclude_modules": []},
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(legacy))
    assert read_config(tmp_path)["quantization_config"] == {"quant_method": "modelopt", **legacy}
    assert NGramConfig.from_pretrained(tmp_path).quantization_config["quantization"]["quant_algo"] == "NVFP4"


def test_to_dict_comes_back() -> None:
    config = NGramConfig.from_pretrained(
        {**small(seed=-3, ple_embedding_dtype="nvfp4"), "quantization_config": {"quant_method": "fp8"}},
        layer=1,
    )
    assert NGramConfig.from_pretrained(json.loads(json.dumps(config.to_dict())), layer=1) == config


@pytest.mark.parametrize("field", ["vocab_size", "eos_token_id", "ple_layer_ids"])
def test_required(field: str) -> None:
    config = {key: value for key, value in SMALL.items() if key != field}
    with pytest.raises(ConfigError, match=f"{field} must"):
        NGramConfig.from_pretrained(config)


INTEGERS = [
    "vocab_size",
    "ple_embed_dim",
    "eos_token_id",
    "ngram_size",
    "heads_per_ngram",
    "ngram_vocab_size_base",
    "make_ngram_vocab_size_divisible_by",
    "seed",
    "split_ngram_parts",
]


@pytest.mark.parametrize("value", [True, 1.0, "3", {}, float("nan"), -(2**63) - 1, 2**64, 10**4000])
@pytest.mark.parametrize("field", INTEGERS)
def test_wrong_integers(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field} must be .*, got ") as caught:
        NGramConfig.from_pretrained(small(**{field: value}))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("field", [name for name in INTEGERS if name != "seed"])
def test_negative(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{field} must be within \d+\.\.\d+, got -1 \(int\)"):
        NGramConfig.from_pretrained(small(**{field: -1}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small(ngram_size=1), "ngram_size must be within 2.."),
        (small(heads_per_ngram=0), "heads_per_ngram must be within 1.."),
        (small(split_ngram_parts=0), "split_ngram_parts must be within 1.."),
        (small(vocab_size=0), "vocab_size must be within 1.."),
        (small(ple_embed_dim=63), "ple_embed_dim must be divisible by the 16 heads"),
        (small(ngram_size=64, heads_per_ngram=17), "at most 1024 heads, got 1071"),
        (small(eos_token_id=[]), "eos_token_id must be a token or a list"),
        (small(eos_token_id=["x"]), "eos_token_id must be an integer, got 'x' .str."),
        (small(ple_layer_ids="12"), "ple_layer_ids must be a list of integers, got '12' .str."),
        (small(ple_layer_ids=[]), "ple_layer_ids must list .* got none"),
        (small(ple_layer_ids=[0]), r"ple_layer_ids \(each one\) must be within 1..*, got 0"),
        (small(ple_layer_ids=[2, True]), r"ple_layer_ids \(each one\) must be an integer, got True"),
        (small(ple_layer_ids=[[2]]), r"ple_layer_ids \(each one\) must be an integer, got \[2\]"),
        (small(ple_layer_ids=list(range(1, 2000))), "ple_layer_ids must list 1..1024 layers, got 1999"),
        (small(ple_embedding_dtype=4), "ple_embedding_dtype must be a string, got 4"),
        ({**small(), "quantization_config": []}, "quantization_config must be an object, got"),
        ({"text_config": [1]}, r"text_config must be an object, got \[1\]"),
        ({"text_config": {}}, "ple_layer_ids must list"),
        (small(hidden_size=None), r"ple_embed_dim must be given \(or hidden_size\)"),
    ],
)
def test_wrong_fields(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        NGramConfig.from_pretrained(config)
    assert isinstance(caught.value, (NgramPleError, ValueError))


@pytest.mark.parametrize("layer", [2, -1, 10**30, True, "0", None, 0.0])
def test_layer_out_of_range(layer: Any) -> None:
    with pytest.raises(ConfigError, match=r"layer must be .*, got "):
        NGramConfig.from_pretrained(small(), layer=layer)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "unreadable JSON"),
        (b"{", "unreadable JSON"),
        (b"[]", "must hold a JSON object, got list"),
        (b"null", "must hold a JSON object, got NoneType"),
        (b"\xff\xfe\x00", "unreadable JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"[]," * 300_000 + b"[]]", "more than 150000 containers"),
        (b"[" + b"1," * 600_000 + b"1]", "more than 150000 containers or 300000 values"),
        (b'{"a":' + b"1" * 5000 + b"}", "unreadable JSON"),
        (b" " * (17 << 20), "17825792 bytes, more than"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: .*{message}"):
        NGramConfig.from_pretrained(tmp_path)
    assert time.monotonic() - begin < 1


def test_missing_and_irregular_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: No such file"):
        NGramConfig.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="nowhere: No such file"):
        NGramConfig.from_pretrained(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match=r"config\.json: not a regular file"):
        NGramConfig.from_pretrained(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from([*INTEGERS, "ple_layer_ids", "text_config", "ple_embedding_dtype"]), JSON)
)
def test_anything_ends_in_a_config_or_an_error(fields: dict[str, Any]) -> None:
    for config in (fields, {**SMALL, **fields}, small(**fields)):
        try:
            accepted = NGramConfig.from_pretrained(config)
        except ConfigError as error:
            if len(str(error)) > 400:
                raise
        else:
            assert accepted.head_dim * accepted.num_heads == accepted.ple_embed_dim
