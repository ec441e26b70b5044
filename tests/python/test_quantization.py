"""resolve_format: every quantization method, on the JSON that published models carry."""

from __future__ import annotations

import re
import time
import warnings
from typing import Any

import pytest
from ngram_ple.errors import ConfigError, NgramPleWarning
from ngram_ple.quantization import explain_format, resolve_format

PREFIX = "model.language_model.layers.1.ple.ple_embedding"
NAME = f"{PREFIX}.ngram_embedding"
ENGINE_NAME = "language_model.model.layers.1.ple.ple_embedding.ngram_embedding"


def fp8(**fields: Any) -> dict[str, Any]:
    """Qwen3.8-Flash-Next-FP8: block-scaled linear layers, the table with one scale."""
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        **fields,
    }


# RadixArk/Qwen3.8-Flash-Next-NVFP4
NVFP4_IGNORE = [
    "model.embed_tokens",
    "mtp.*",
    "model.mtp.*",
    "*.self_attn.*",
    "*.linear_attn.*",
    "*.mlp.gate*",
    "*.mlp.shared_expert.*",
    "*.mlp.shared_expert_gate*",
    "*hyper_connection*",
    "*.ple.*",
    "model.visual.*",
    "model.language_model.embed_tokens",
    "lm_head",
]


def modelopt(algorithm: str | None = "NVFP4", **fields: Any) -> dict[str, Any]:
    return {
        "config_groups": {
            "group_0": {
                "input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                "targets": ["Linear"],
            }
        },
        "quant_algo": algorithm,
        "producer": {"name": "modelopt", "version": "0.46.0"},
        "quant_method": "modelopt",
        **fields,
    }


def mixed(layers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """nvidia/Qwen3.8-Flash-Next-NVFP4: one algorithm a module."""
    experts = {
        f"model.language_model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}
        for i in range(3)
    }
    return modelopt("MIXED_PRECISION", quantized_layers={**experts, **layers}, **fields)


def compressed(*targets: str, **fields: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": list(targets), "weights": {"num_bits": 8, "type": "float"}}},
        "ignore": ["lm_head"],
        **fields,
    }


QUIET = [
    ("none", None, "unquantized"),
    ("empty", {}, "unquantized"),
    ("fp8", fp8(), "fp8"),
    ("fp8 upper case", fp8(quant_method="FP8"), "fp8"),
    ("fp8 others ignored", fp8(ignored_layers=["lm_head", "model.visual"]), "fp8"),
    ("fp8 exact", fp8(ignored_layers=[NAME]), "unquantized"),
    ("fp8 engine's name", fp8(ignored_layers=[ENGINE_NAME]), "unquantized"),
    ("fp8 shard", fp8(ignored_layers=["lm_head", f"{NAME}.shard_0"]), "unquantized"),
    ("fp8 shard weight", fp8(ignored_layers=[f"{NAME}.shard_17.weight"]), "unquantized"),
    ("fp8 modules_to_not_convert", fp8(modules_to_not_convert=[f"{NAME}.shard_3"]), "unquantized"),
    ("fp8 empty first list", fp8(ignored_layers=[], modules_to_not_convert=[NAME]), "unquantized"),
    ("fp8 first list wins", fp8(ignored_layers=["lm_head"], modules_to_not_convert=[NAME]), "fp8"),
    ("fp8 null lists", fp8(ignored_layers=None, modules_to_not_convert=None), "fp8"),
    ("fp8 no globs", fp8(ignored_layers=["*.ple.*", "*ngram_embedding*", "re:.*"]), "fp8"),
    ("fp8 no parents", fp8(ignored_layers=[PREFIX, "model.language_model.layers.1.ple"]), "fp8"),
    ("fp8 no other child", fp8(ignored_layers=[f"{NAME}.weight", f"{NAME}x"]), "fp8"),
    ("fp8 other layer", fp8(ignored_layers=[NAME.replace("layers.1", "layers.11")]), "fp8"),
    ("modelopt glob", modelopt(ignore=NVFP4_IGNORE), "unquantized"),
    ("modelopt exact", modelopt(ignore=[NAME]), "unquantized"),
    ("modelopt engine's name", modelopt(ignore=[ENGINE_NAME]), "unquantized"),
    ("modelopt substring", modelopt("FP8", ignore=["ple_embedding"]), "unquantized"),
    ("modelopt exclude_modules", modelopt("FP8", exclude_modules=["*ngram*"]), "unquantized"),
    ("modelopt unsupported but excluded", modelopt("W4A16_AWQ", ignore=["*.ple.*"]), "unquantized"),
    (
        "hf_quant_config.json",
        {
            "producer": {"name": "modelopt", "version": "0.46.0"},
            "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": NVFP4_IGNORE},
        },
        "unquantized",
    ),
    ("mixed fp8", mixed({NAME: {"quant_algo": "FP8"}}), "fp8"),
    ("mixed nvfp4", mixed({NAME: {"quant_algo": "NVFP4", "group_size": 16}}), "nvfp4"),
    ("mixed engine's name", mixed({ENGINE_NAME: {"quant_algo": "FP8"}}), "fp8"),
    ("mixed any case", mixed({NAME.upper(): {"quant_algo": "nvfp4"}}), "nvfp4"),
    ("mixed children", mixed({f"{NAME}.shard_{i}": {"quant_algo": "FP8"} for i in range(3)}), "fp8"),
    ("mixed absent", mixed({}), "unquantized"),
    ("mixed parent", mixed({PREFIX: {"quant_algo": "FP8"}}), "unquantized"),
    ("mixed longer name", mixed({f"{NAME}s": {"quant_algo": "FP8"}}), "unquantized"),
    ("mixed excluded", mixed({NAME: {"quant_algo": "FP8"}}, ignore=["*.ple.*"]), "unquantized"),
    (
        "mixed excluded unsupported",
        mixed({NAME: {"quant_algo": "W4A8"}}, exclude_modules=[NAME]),
        "unquantized",
    ),
    (
        "mixed in hf_quant_config.json",
        {
            "quantization": {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {NAME: {"quant_algo": "FP8"}},
            }
        },
        "fp8",
    ),
    ("compressed-tensors", compressed("Linear"), "unquantized"),
    ("compressed-tensors ignored", compressed("re:.*", ignore=["re:.*ple_embedding.*"]), "unquantized"),
    ("auto-round", {"quant_method": "auto-round", "bits": 4}, "unquantized"),
    ("inc", {"quant_method": "inc"}, "unquantized"),
    ("quark", {"quant_method": "quark", "global_quant_config": {}}, "unquantized"),
]


@pytest.mark.parametrize(
    ("config", "expected"), [case[1:] for case in QUIET], ids=[case[0] for case in QUIET]
)
def test_without_warning(config: dict[str, Any] | None, expected: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in (NAME, PREFIX, f"{PREFIX}.", ENGINE_NAME):
            assert resolve_format(config, name) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (modelopt("NVFP4"), "quant_algo NVFP4 does not exclude"),
        (modelopt("FP8", ignore=["lm_head"]), "quant_algo FP8 does not exclude"),
        (compressed("Linear", NAME), "config_groups.'group_0'. targets"),
        (compressed(r"re:.*ngram_embedding$"), "config_groups.'group_0'. targets"),
        ({"quant_method": "awq", "bits": 4}, "quant_method 'awq' is unknown"),
        ({"bits": 4}, "quant_method '' is unknown"),
    ],
)
def test_unquantized_with_a_warning(config: dict[str, Any], message: str) -> None:
    with pytest.warns(NgramPleWarning, match=message):
        assert resolve_format(config, NAME) == "unquantized"


@pytest.mark.parametrize("config", [None, fp8(ignored_layers=[NAME]), modelopt("W4A16"), {"quant_method": 3}])
def test_embedding_dtype_wins(config: dict[str, Any] | None) -> None:
    assert resolve_format(config, NAME, "nvfp4") == "nvfp4"
    assert resolve_format(config, NAME, "float8_e4m3fn") == "fp8"
    for wrong in ("bfloat16", "fp8", "NVFP4", ""):
        with pytest.raises(ConfigError, match=f"ple_embedding_dtype must be one of .*, got '{wrong}'"):
            resolve_format(config, NAME, wrong)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (modelopt("W4A8_AWQ"), "quant_algo must be .*, got 'W4A8_AWQ'"),
        (modelopt(None), "quant_algo must be .*, got None"),
        (modelopt(3), "quant_algo must be a string, got int"),  # type: ignore[arg-type]
        (modelopt(ignore="x"), "ignore must be a list of strings, got 'x'"),
        (modelopt("FP8", exclude_modules=[1]), "exclude_modules must be a list of strings"),
        (
            mixed({NAME: {"quant_algo": "W4A16_AWQ"}}),
            "must be FP8 or NVFP4 for an n-gram table, got 'W4A16_AWQ'",
        ),
        (mixed({NAME: {}}), "must have a quant_algo, got {}"),
        (mixed({NAME: "FP8"}), "must have a quant_algo, got 'FP8'"),
        (
            mixed({f"{NAME}.shard_0": {"quant_algo": "FP8"}, f"{NAME}.shard_1": {"quant_algo": "NVFP4"}}),
            "must agree on one algorithm .*'FP8' for .*shard_0', 'NVFP4' for .*shard_1",
        ),
        (modelopt("MIXED_PRECISION", quantized_layers=[]), "quantized_layers must be an object, got list"),
        (fp8(ignored_layers={}), "ignored_layers must be a list of strings"),
        (fp8(quant_method=8), "quant_method must be a string, got int"),
        (compressed("re:("), "unreadable pattern 're:"),
        (compressed(config_groups=[]), "config_groups must be an object, got list"),
        ([], "quantization_config must be an object, got list"),
    ],
)
def test_errors(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_format(config, NAME)


@pytest.mark.parametrize(
    ("config", "dtype", "rule"),
    [
        (None, None, "no quantization_config"),
        (None, "nvfp4", "ple_embedding_dtype is nvfp4"),
        (fp8(), None, "quant_method fp8, which does not ignore the table"),
        (fp8(ignored_layers=["lm_head", f"{NAME}.shard_0"]), None, r"ignored_layers has .*shard_0'"),
        (modelopt(ignore=NVFP4_IGNORE), None, r"modelopt, whose ignore has '\*\.ple\.\*'"),
        (mixed({NAME: {"quant_algo": "FP8"}}), None, "quantized_layers has 'model"),
        (compressed("Linear"), None, "compressed-tensors means linear layers"),
    ],
)
def test_the_rule_is_told(config: Any, dtype: str | None, rule: str) -> None:
    found = explain_format(config, NAME, dtype)
    assert found.format == resolve_format(config, NAME, dtype)
    assert re.search(rule, found.rule)


@pytest.mark.parametrize("pattern", ["re:(.*)*x", "re:(?=.*ngram).*", r"re:(.+)\1{100}"])
def test_patterns_of_compressed_tensors_end(pattern: str) -> None:
    """Python's re is never asked; what the bounded matcher does not know targets nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_format(compressed(pattern), NAME) == "unquantized"


def test_long_lists_end() -> None:
    lists = {"ignore": [f"model.layers.{i}.mlp" for i in range(300_000)]}
    begin = time.process_time()
    for config in (modelopt("NVFP4", **lists), fp8(ignored_layers=lists["ignore"])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resolve_format(config, NAME)
    assert time.process_time() - begin < 5


def test_messages_are_short() -> None:
    for config in (
        modelopt("X" * 10_000),
        mixed({NAME: {"quant_algo": "Y" * 10_000}}),
        mixed({f"{NAME}.{i}": {"quant_algo": str(i)} for i in range(1000)}),
        mixed({NAME: ["Z"] * 10_000}),
        modelopt(ignore=[["W" * 10_000]] * 1000),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve_format(config, NAME)
        assert len(str(caught.value)) < 1500
