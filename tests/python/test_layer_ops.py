"""Layers by name: the operators, the registry, and compiled programs that hold a name instead of a table."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
import torch
from batches import finite_rows
from modules import CONFIG, ROWS, batch, construct, tensors_of
from ngram_ple import ConfigError, NGramEmbedding, NgramPleError, PrefetchError, layer_ops
from reference import assert_same
from torch._dynamo.testing import AotEagerAndRecordGraphs, CompileCounterWithBackend
from torch._dynamo.utils import counters

CUDA = torch.device("cuda", 0)
ops = torch.ops.ngram_ple
DIM = CONFIG.ple_embed_dim
PLACEMENTS = [
    "cpu",
    pytest.param("device", marks=pytest.mark.needs_gpu),
    pytest.param("pinned", marks=pytest.mark.needs_gpu),
]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()
    counters.clear()


def on(placement: str) -> tuple[NGramEmbedding, torch.device]:
    device = torch.device("cpu") if placement == "cpu" else CUDA
    return finite(device, placement=placement, max_tokens=64), device


def finite(device: torch.device, **options: Any) -> NGramEmbedding:
    """A module whose rows may be calculated with."""
    module = construct(device, **options)
    module.load_weights(tensors_of(finite_rows(random.Random(4), "bf16", CONFIG.head_dim, ROWS)).items())
    module.finish_loading()
    return module


def inputs(seed: int, tokens: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 1000, (tokens,), generator=generator)
    context = torch.randint(0, 1000, (2, 2), generator=generator)
    return ids.to(device), torch.tensor([0, tokens // 3, tokens], device=device), context.to(device)


# --- the operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_operators_do_what_the_module_does(placement: str) -> None:
    module, device = on(placement)
    module.layer_name = "model.layers.1.ple"
    name, given = module.layer_name, batch(device)
    wanted = module(*given)
    ids = module.compute_ngram_ids(*given)
    out = torch.empty_like(wanted)
    assert ops.embed_layer(*given, out, name) is None
    assert_same(out, wanted)
    assert_same(ops.embed_layer.rows(*given, name), wanted)
    assert_same(ops.embed_layer.ticket(*given, ids, name), wanted)
    got = torch.empty_like(ids)
    ops.ngram_ids_layer(*given, got, name)
    assert torch.equal(got, ids)
    rows = torch.empty((*ids.shape, CONFIG.head_dim), dtype=torch.bfloat16, device=device)
    ops.lookup_layer(ids, rows, name)
    assert_same(rows.flatten(1), wanted)
    assert_same(ops.lookup_layer.rows(ids, name).flatten(1), wanted)


@pytest.mark.needs_gpu
def test_prefetches_by_name() -> None:
    module, _ = on("pinned")
    name, given, ticket = module.layer_name, batch(CUDA), torch.zeros(1, device=CUDA)
    wanted = module(*given)
    out = torch.empty_like(wanted)
    ops.start_prefetch_layer(*given, ticket, name)
    ops.finalize_prefetch_layer(ticket, out, name)
    assert_same(out, wanted)
    ops.start_prefetch_layer(*given, ticket, name)
    ops.embed_layer(*inputs(3, 7, CUDA), out.zero_(), name)  # takes what was started
    assert_same(out, wanted)
    ops.start_prefetch_layer(*given, ticket, name)
    with pytest.raises(
        PrefetchError, match=r"out must be torch.bfloat16 \[7, 128\] on cuda:0, got torch.float32"
    ):
        ops.finalize_prefetch_layer(ticket, out.float(), name)
    ops.finalize_prefetch_layer(ticket, out.zero_(), name)
    assert_same(out, wanted)


def test_opcheck(device: torch.device) -> None:
    module = finite(device)
    name, given = module.layer_name, batch(device)
    ids, rows = module.compute_ngram_ids(*given), module(*given)
    for op, arguments in (
        (ops.embed_layer.default, (*given, torch.empty_like(rows), name)),
        (ops.embed_layer.rows, (*given, name)),
        (ops.embed_layer.ticket, (*given, torch.zeros(1, device=device), name)),
        (ops.ngram_ids_layer.default, (*given, torch.empty_like(ids), name)),
        (ops.lookup_layer.default, (ids, torch.empty_like(rows).view(*ids.shape, -1), name)),
        (ops.lookup_layer.rows, (ids, name)),
    ):
        torch.library.opcheck(op, arguments)


SCHEMAS = (
    "ngram_ple::embed_layer(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor(a!) out, "
    "str layer_name) -> ()",
    "ngram_ple::ngram_ids_layer(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, "
    "Tensor(a!) out, str layer_name) -> ()",
    "ngram_ple::lookup_layer(Tensor ngram_ids, Tensor(a!) out, str layer_name) -> ()",
)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_schemas(schema: str) -> None:
    """Engines write these names down: a change here breaks them."""
    name = schema.partition("::")[2].partition("(")[0]
    assert str(getattr(ops, name).default._schema) == schema


def test_out_takes_part_in_no_gradient(device: torch.device) -> None:
    module = finite(device)
    out = torch.zeros((7, DIM), dtype=torch.bfloat16, device=device)
    factor = torch.ones((), device=device, requires_grad=True)
    product = (factor * out).sum()
    ops.embed_layer(*batch(device), out, module.layer_name)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with pytest.raises(RuntimeError, match="out must not require grad"):
        ops.embed_layer(*batch(device), out.float().requires_grad_(), module.layer_name)


# --- the registry -------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No layers but the test's."""
    monkeypatch.setattr(layer_ops, "_layers", weakref.WeakValueDictionary())


@pytest.mark.usefixtures("alone")
def test_a_name_that_is_no_layer_s() -> None:
    given = batch(torch.device("cpu"))
    with pytest.raises(ConfigError, match="layer_name must be that of a layer, got 'a' and there are none"):
        ops.embed_layer.rows(*given, "a")
    first, second = (construct(torch.device("cpu")) for _ in range(2))
    first.layer_name, second.layer_name = "layers.1", "layers.5"
    out = torch.empty(7, DIM).bfloat16()
    said = "embed_layer: layer_name must be one of 'layers.1', 'layers.5', got 'layers.2'"
    with pytest.raises(ConfigError, match=said):
        ops.embed_layer(*given, out, "layers.2")
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=said):
        torch.compile(lambda *a: ops.embed_layer(*a, "layers.2"), backend="eager", fullgraph=True)(
            *given, out
        )
    with pytest.raises(NgramPleError, match="not loaded"):
        ops.embed_layer(*given, out, "layers.1")


@pytest.mark.usefixtures("alone")
def test_names_are_of_layers_that_live() -> None:
    first, second = (construct(torch.device("cpu")) for _ in range(2))
    assert layer_ops.layer_names() == sorted((first.layer_name, second.layer_name))
    assert first.layer_name != second.layer_name
    first.layer_name = "layers.1"
    first.layer_name = "layers.1"
    assert layer_ops.layer_names() == sorted(("layers.1", second.layer_name))
    with pytest.raises(
        ConfigError, match=r"layer_name must be unique, got 'layers.1', the name of another layer"
    ):
        second.layer_name = "layers.1"
    for wrong in ("", 3, None):
        with pytest.raises(ConfigError, match="layer_name must be a string that is not empty, got"):
            second.layer_name = wrong  # type: ignore[assignment]
    del first
    gc.collect()
    assert layer_ops.layer_names() == [second.layer_name]
    second.layer_name = "layers.1"
    assert layer_ops.layer_names() == ["layers.1"]


# --- compiled -----------------------------------------------------------------------------------------


class DecoderLayer(torch.nn.Module):
    """What surrounds an embedding in a model; the rows are returned as well, to compare their bits."""

    def __init__(self, embedding: NGramEmbedding, device: torch.device, prefetch: bool = False) -> None:
        super().__init__()
        self.embedding = embedding
        self.before, self.key, self.after = (
            torch.nn.Linear(DIM, DIM, device=device, dtype=torch.bfloat16) for _ in range(3)
        )
        self.prefetch = prefetch

    def forward(self, hidden: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.prefetch:
            self.embedding.start_prefetch(*given)
        hidden = hidden + self.before(hidden).relu()
        rows = self.embedding(*given)
        gate = torch.sigmoid((self.key(rows) * hidden).sum(-1, keepdim=True))
        return hidden + self.after(gate * rows), rows


def hidden_of(tokens: int, device: torch.device) -> torch.Tensor:
    return torch.randn(tokens, DIM, generator=torch.Generator().manual_seed(tokens)).to(
        device, torch.bfloat16
    )


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("prefetch", [False, True])
@torch.inference_mode()
def test_a_decoder_layer_compiles_whole(placement: str, prefetch: bool) -> None:
    module, device = on(placement)
    layer = DecoderLayer(module, device, prefetch)
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for tokens in (13, 17, 40, 5):
        given = inputs(tokens, tokens, device)
        hidden, rows = compiled(hidden_of(tokens, device), *given)
        wanted = module(*given)
        assert_same(rows, wanted)
        torch.testing.assert_close(hidden, layer(hidden_of(tokens, device), *given)[0], atol=0.1, rtol=0.1)
    assert counter.frame_count == 1


@pytest.mark.needs_gpu
@pytest.mark.parametrize("placement", ["device", "pinned"])
@pytest.mark.parametrize("prefetch", [False, True])
@torch.inference_mode()
def test_reduce_overhead_skips_no_graph(placement: str, prefetch: bool) -> None:
    module, device = on(placement)
    layer = DecoderLayer(module, device, prefetch)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, mode="reduce-overhead")
    for seed in range(6):  # warm up, record, replay
        for tokens in (16, 48):
            given = inputs(100 * tokens + seed, tokens, device)
            torch.compiler.cudagraph_mark_step_begin()
            rows = compiled(hidden_of(tokens, device), *given)[1].clone()
            assert_same(rows, module(*given))
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert counters["inductor"]["cudagraph_recorded_non_static_inputs"] > 0


def test_the_graph_holds_the_name_and_no_table(device: torch.device) -> None:
    module = finite(device)
    recorder = AotEagerAndRecordGraphs()
    compiled = torch.compile(DecoderLayer(module, device), fullgraph=True, dynamic=True, backend=recorder)
    compiled(hidden_of(9, device), *inputs(1, 9, device))
    for graph in (*recorder.graphs, *recorder.fw_graphs):
        assert module.layer_name in graph.code
        held = [
            *graph.state_dict().values(),
            *(getattr(graph, name) for name in dir(graph) if "_constant" in name),
        ]
        values = [node.meta.get("val", node.meta.get("example_value")) for node in graph.graph.nodes]
        for tensor in (*held, *values):
            if isinstance(tensor, torch.Tensor):
                assert (tensor.dtype, tensor.numel()) != (torch.uint8, module.table.slots.numel())
        assert len(held) == 0


def test_other_calls_compile_too(device: torch.device) -> None:
    module = finite(device)

    def step(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ids = module.compute_ngram_ids(*given)
        out = torch.empty((given[0].shape[0], DIM), dtype=torch.bfloat16, device=device)
        looked = torch.empty((*ids.shape, CONFIG.head_dim), dtype=torch.bfloat16, device=device)
        return module.sync_lookup(ids), module.sync_lookup(ids, out=looked), module(*given, out=out)

    given = inputs(5, 11, device)
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="inductor")
    for rows in compiled(*given):
        assert_same(rows.flatten(1), module(*given))


class RecordingPrefetcher:
    """Stands in for the side stream, to see on any machine what a compiled program calls in which order."""

    def __init__(self, module: NGramEmbedding) -> None:
        self.module = module
        self.calls: list[Any] = []

    def start(self, tokens: int, hash_into: Any, look_up: None) -> None:
        ids = torch.empty((tokens, CONFIG.num_heads), dtype=torch.int64)
        hash_into(ids)
        self.calls.append(self.module.table.lookup(ids, "bf16").flatten(1))

    def finalize(self, total_tokens: int, out: torch.Tensor | None = None) -> torch.Tensor:
        rows: torch.Tensor = self.calls.pop(0)
        assert len(rows) == total_tokens
        return rows if out is None else out.copy_(rows)

    @property
    def started(self) -> list[Any]:
        return self.calls


@torch.inference_mode()
def test_halves_of_a_prefetch_stay_in_order_when_compiled() -> None:
    device = torch.device("cpu")
    module = finite(device)
    recording = RecordingPrefetcher(module)
    expected = {tokens: module(*inputs(tokens, tokens, device)) for tokens in (13, 17, 5)}
    module._prefetcher = recording  # type: ignore[assignment]
    module.register_buffer("_ticket", torch.zeros(1, dtype=torch.int64), persistent=False)

    def step(*given: torch.Tensor) -> torch.Tensor:
        module.start_prefetch(*given)
        other = tuple(tensor * 0 for tensor in given)
        rows = module(*other)  # takes what was started, whatever it is given
        module.start_prefetch(*given)
        assert recording is not None
        return torch.stack((rows, module.finalize_prefetch(given[0].shape[0])))

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="inductor")
    for tokens, rows in expected.items():
        for got in compiled(*inputs(tokens, tokens, device)):
            assert_same(got, rows)
        assert recording.calls == []
