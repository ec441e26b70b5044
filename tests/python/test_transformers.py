"""Agreement with the independent implementation in transformers, to the bit."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from ngram_ple import HashPlan, NGramConfig, NGramEmbedding
from reference import assert_same

pytest.importorskip("transformers", minversion="5.17")
modeling = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
configuration = pytest.importorskip("transformers.models.qwen4_exp.configuration_qwen4_exp")

CONFIGS: dict[str, dict[str, Any]] = {
    "small": {"ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 200, "vocab_size": 300},
    "bigrams": {"ngram_size": 2, "heads_per_ngram": 4, "ngram_vocab_size_base": 1000, "vocab_size": 248320},
    "long": {"ngram_size": 5, "heads_per_ngram": 3, "ngram_vocab_size_base": 97, "vocab_size": 50},
    "seeded": {
        "ngram_size": 4,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 5000,
        "vocab_size": 129280,
        "seed": 99,
        "make_ngram_vocab_size_divisible_by": 512,
    },
}
LAYERS = [2, 5, 9]


class Theirs:
    """Their embedding of one PLE layer, and the ids it hashed."""

    def __init__(self, fields: dict[str, Any], layer: int, dtype: torch.dtype, device: torch.device) -> None:
        heads = (fields["ngram_size"] - 1) * fields["heads_per_ngram"]
        self.fields = {"eos_token_id": 7, "ple_layer_ids": LAYERS, "ple_embed_dim": heads * 12, **fields}
        config = configuration.Qwen4ExpTextConfig(hidden_size=64, **self.fields)
        torch.manual_seed(layer)
        self.module = modeling.Qwen4ExpTextNGramEmbedding(
            config, config.ple_embed_dim, LAYERS[layer] - 1, layer
        )
        self.module = self.module.to(device=device, dtype=dtype)
        self.module.ngram_embedding.register_forward_pre_hook(self._see)
        self.ids = torch.empty(0)

    def _see(self, module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self.ids = args[0]

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(tokens, None)
        return result


def ours(theirs: Theirs, layer: int, dtype: torch.dtype, device: torch.device) -> NGramEmbedding:
    """Our module with their weights."""
    config = NGramConfig.from_pretrained(
        {**theirs.fields, "split_ngram_parts": 3, "model_type": "qwen4_exp"}, layer=layer
    )
    module = NGramEmbedding(
        config, format="bf16" if dtype == torch.bfloat16 else "fp32", dtype=dtype,
        placement="cpu" if device.type == "cpu" else "device",
    )  # fmt: skip
    module.load_weights(theirs.module.state_dict().items())
    module.finish_loading()
    return module


def ragged(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, S] as B requests of S tokens."""
    bounds = torch.arange(len(tokens) + 1, device=tokens.device) * tokens.shape[1]
    return tokens.flatten(), bounds


def random_tokens(
    rng: random.Random, vocab: int, shape: tuple[int, int], device: torch.device
) -> torch.Tensor:
    limit = min(vocab, rng.choice([10, vocab]))
    values = [
        [7 if rng.random() < 0.15 else rng.randrange(limit) for _ in range(shape[1])] for _ in range(shape[0])
    ]
    return torch.tensor(values, device=device)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_batches(name: str, layer: int, dtype: torch.dtype, device: torch.device) -> None:
    theirs = Theirs(CONFIGS[name], layer, dtype, device)
    module = ours(theirs, layer, dtype, device)
    columns = module.config.ngram_size - 1
    rng = random.Random(f"{name} {layer}")
    for shape in ((1, 1), (1, 40), (3, 17), (8, 2), (2, 1)):
        tokens = random_tokens(rng, module.config.vocab_size, shape, device)
        expected = theirs(tokens)
        flat, bounds = ragged(tokens)
        fresh = torch.full((shape[0], columns), 7, device=device)
        ids = module.compute_ngram_ids(flat, bounds, fresh)
        assert torch.equal(ids, theirs.ids.flatten(0, 1))
        assert_same(module(flat, bounds, fresh), expected.flatten(0, 1))
        assert_same(module(flat.int(), bounds.int(), fresh.int()), expected.flatten(0, 1))


@pytest.mark.parametrize("layer", [0, 2])
def test_derived_buffers(layer: int) -> None:
    for fields in CONFIGS.values():
        theirs = Theirs(fields, layer, torch.float32, torch.device("cpu"))
        plan = HashPlan.from_config(NGramConfig.from_pretrained(theirs.fields, layer=layer))
        assert plan.multipliers == theirs.module.layer_multipliers.tolist()
        assert plan.head_sizes == theirs.module.ngram_heads_vocab_sizes.tolist()
        assert plan.head_offsets == theirs.module.ngram_heads_offsets.tolist()
        assert plan.padded_rows == theirs.module.ngram_embedding.num_embeddings


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_becomes_eos(side: str, device: torch.device) -> None:
    """A padded batch, and the same requests ragged without their padding."""
    theirs = Theirs(CONFIGS["small"], 1, torch.float32, device)
    module = ours(theirs, 1, torch.float32, device)
    rng = random.Random(side)
    lengths = [5, 12, 1, 9]
    tokens = random_tokens(rng, 300, (4, 12), device)
    at = torch.arange(12, device=device).expand(4, -1)
    real = torch.tensor(lengths, device=device).unsqueeze(1)
    mask = at < real if side == "right" else at >= 12 - real
    expected = theirs(torch.where(mask, tokens, 7))[mask]
    bounds = torch.tensor([0, *lengths], device=device).cumsum(0)
    got = module(tokens[mask], bounds, torch.full((4, 2), 7, device=device))
    assert_same(got, expected)


def test_decoding_a_token_at_a_time(device: torch.device) -> None:
    """Chunks of one token with their context are the whole sequence."""
    theirs = Theirs(CONFIGS["long"], 0, torch.bfloat16, device)
    module = ours(theirs, 0, torch.bfloat16, device)
    tokens = random_tokens(random.Random(1), 50, (3, 20), device)
    expected = theirs(tokens)
    history = torch.cat((torch.full((3, 4), 7, device=device), tokens), dim=1)
    bounds = torch.arange(4, device=device)
    for step in range(20):
        got = module(tokens[:, step].contiguous(), bounds, history[:, step : step + 4])
        assert_same(got, expected[:, step])
