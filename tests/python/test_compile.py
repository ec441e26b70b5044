"""The operators under torch's tools: opcheck, torch.compile, FakeTensorMode, meta tensors."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from batches import Batch, finite_rows, small_plan
from ngram_ple import NGramConfig, NGramEmbedding, ops
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

OPERATORS = ("ngram_ids", "lookup", "embed", "decode")
CASES = [("ngram_ids", "", "")] + [
    (op, format, out_dtype)
    for op in ("lookup", "embed", "decode")
    for format, out_dtype in (("bf16", "fp32"), ("fp8", "bf16"), ("fp8-rowwise", "fp16"), ("nvfp4", "bytes"))
]


def hash_arguments(tokens: int, requests: int, device: torch.device | str) -> list[Any]:
    rng = random.Random(tokens)
    bounds = [0, *sorted(rng.randint(0, tokens) for _ in range(requests - 1)), tokens]
    contexts = [[rng.randrange(9), rng.randrange(9)] for _ in range(requests)]
    ids = [rng.randrange(9) for _ in range(tokens)]
    return Batch(ids, bounds, contexts, small_plan(3, 2), 3, 2).arguments(torch.device(device))


def call_of(
    op: str, format: str, out_dtype: str, device: torch.device | str, tokens: int = 5
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if op == "ngram_ids":
        return tuple(hash_arguments(tokens, 2, device)), {}
    table = finite_rows(random.Random(1), format, 32, 60, torch.device(device))
    inputs: tuple[Any, ...] = (table.weight, table.scale, table.global_scale)
    if op == "lookup":
        inputs = (torch.arange(tokens, device=device), *inputs)
    if op == "embed":
        inputs = (*hash_arguments(tokens, 2, device), *inputs)
    return inputs, {"out_dtype": out_dtype, **table.options}


@pytest.mark.parametrize(("op", "format", "out_dtype"), CASES)
def test_opcheck(op: str, format: str, out_dtype: str, device: torch.device) -> None:
    args, kwargs = call_of(op, format, out_dtype, device)
    operator = getattr(torch.ops.ngram_ple, op)
    torch.library.opcheck(operator.default, args, kwargs)
    torch.library.opcheck(operator.out, args, {**kwargs, "out": torch.empty_like(operator(*args, **kwargs))})


@pytest.mark.parametrize(("op", "format", "out_dtype"), CASES)
def test_fake_and_meta_tensors_have_the_result_s_shape(
    op: str, format: str, out_dtype: str, device: torch.device
) -> None:
    operator = getattr(torch.ops.ngram_ple, op)
    for tokens in (0, 1, 5):
        args, kwargs = call_of(op, format, out_dtype, device, tokens)
        real = operator(*args, **kwargs)
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
            fake = operator(*fakes, **kwargs)
            assert operator.out(*fakes, **kwargs, out=fake) is None
        metas = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
        for pretended in (fake, operator(*metas, **kwargs)):
            assert (pretended.shape, pretended.dtype) == (real.shape, real.dtype)
            assert pretended.stride() == real.stride()
        assert fake.device == real.device


def test_the_result_follows_the_ids_where_the_table_lies_elsewhere() -> None:
    """A pinned table: rows on the host, ids and result on the GPU. Under FakeTensorMode this needs none."""
    with FakeTensorMode():
        ids = torch.empty((3, 4), dtype=torch.int64, device="cuda")
        weight = torch.empty((60, 96), dtype=torch.uint8)
        scale = torch.empty(1, device="cuda")
        got = ops.lookup(ids, weight, None, scale, format="nvfp4", out_dtype="bf16", head_dim=160)
    assert (got.device.type, got.shape, got.dtype) == ("cuda", (3, 4, 160), torch.bfloat16)


@pytest.mark.parametrize(("op", "format", "out_dtype"), CASES)
def test_compiles_to_one_dynamic_graph(op: str, format: str, out_dtype: str, device: torch.device) -> None:
    operator = getattr(torch.ops.ngram_ple, op)
    _, kwargs = call_of(op, format, out_dtype, device)

    def function(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        result = operator(*args, **kwargs)
        out = torch.empty_like(result)
        operator.out(*args, **kwargs, out=out)
        return result, out

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for tokens in (5, 9, 31, 6):
        args, _ = call_of(op, format, out_dtype, device, tokens)
        expected = operator(*args, **kwargs)
        for got in compiled(*args):
            assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
    assert counter.frame_count == 1


def small_module(device: torch.device, format: str = "bf16") -> NGramEmbedding:
    config = NGramConfig(
        vocab_size=1000, ple_embed_dim=128, eos_token_id=3, ple_layer_ids=(2,), heads_per_ngram=2,
        ngram_vocab_size_base=11, split_ngram_parts=1,
    )  # fmt: skip
    module = NGramEmbedding(config, format=format, placement="cpu" if device.type == "cpu" else "device")
    rows = module.table.slots.shape[0]
    table = finite_rows(random.Random(2), format, 32, rows)
    weight = table.weight.view(torch.float8_e4m3fn) if format == "fp8" else table.weight
    module.load_weights([("ngram_embedding.weight", weight)])
    if table.global_scale is not None:
        module.load_weights([("ngram_embedding.weight_scale", table.global_scale)])
    module.finish_loading()
    return module


def module_arguments(tokens: int, requests: int, device: torch.device) -> list[torch.Tensor]:
    return hash_arguments(tokens, requests, device)[:3]


def test_module_compiles_without_recompiling_for_other_sizes(device: torch.device) -> None:
    module = small_module(device)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    # The first sizes differ from each other and from N - 1, N and H: torch takes equal sizes to be one.
    for tokens, requests in ((13, 5), (17, 3), (300, 40), (4, 2), (1000, 3), (2, 2)):
        arguments = module_arguments(tokens, requests, device)
        assert torch.equal(compiled(*arguments).view(torch.int16), module(*arguments).view(torch.int16))
    assert counter.frame_count == 1
    # Sizes 0 and 1 are special to torch.compile: at most a graph for each pair of such T and R.
    for tokens, requests in ((1, 1), (1, 2), (9, 1), (1, 1), (0, 1)):
        arguments = module_arguments(tokens, requests, device)
        assert torch.equal(compiled(*arguments).view(torch.int16), module(*arguments).view(torch.int16))
    assert counter.frame_count <= 5


def test_a_compiled_module_reads_the_table_of_the_moment(device: torch.device) -> None:
    """The table is an input of the graph, no constant in it: loading again is seen."""
    module = small_module(device)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    arguments = module_arguments(9, 2, device)
    before = compiled(*arguments)
    module.load_weights([("ngram_embedding.weight", torch.zeros(module.table.slots.shape[0], 32).bfloat16())])
    module.finish_loading()
    assert torch.count_nonzero(before) > 0
    assert torch.count_nonzero(compiled(*arguments)) == 0


def test_inside_a_larger_graph(device: torch.device) -> None:
    module = small_module(device, "fp8")
    projection = torch.nn.Linear(128, 8, dtype=torch.bfloat16, device=device)

    def model(*arguments: torch.Tensor) -> torch.Tensor:
        return projection(module(*arguments)) * 2

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (5, 12):
        arguments = module_arguments(tokens, 2, device)
        assert torch.equal(compiled(*arguments), model(*arguments))
    compiled(*arguments).sum().backward()
    assert projection.weight.grad is not None
