"""NGramEmbedding computes, and what a module may and may not do with its table."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import torch
from batches import FORMATS
from modules import CONFIG, batch, construct, loaded, rows_of, tensors_of
from ngram_ple import ConfigError, NGramEmbedding, NgramPleError, NgramPleWarning, PrefetchError
from reference import assert_same

BUFFERS = ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_forward_is_the_table_at_the_ids(format: str, dtype: torch.dtype, device: torch.device) -> None:
    module = loaded(device, format, dtype=dtype)
    inputs = batch(device)
    ids = module.compute_ngram_ids(*inputs)
    out = torch.empty_like(ids)
    assert module.compute_ngram_ids(*inputs, out=out) is out
    assert torch.equal(out, ids)
    name = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
    expected = rows_of(format).expected(ids.cpu(), name).to(device)
    assert_same(module(*inputs), expected.flatten(1))
    assert_same(module.sync_lookup(ids), expected)
    assert_same(module.table.slots.cpu(), rows_of(format).slots)


CASTS = {
    "half": lambda module: module.half(),
    "float": lambda module: module.float(),
    "double": lambda module: module.double(),
    "to dtype": lambda module: module.to(torch.float16),
    "to meta": lambda module: module.to("meta"),
    "type": lambda module: module.type(torch.float64),
    "inside a model": lambda module: torch.nn.Sequential(module).half(),
}


@pytest.mark.parametrize("cast", CASTS)
def test_casts_and_moves_do_nothing_and_say_so(cast: str, device: torch.device) -> None:
    module = loaded(device, "fp8")
    before = module(*batch(device))
    slots, scale = module.table.slots, module.table.global_scale
    with pytest.warns(NgramPleWarning, match="NGramEmbedding stays on") as caught:
        CASTS[cast](module)
    assert len(caught) == 1
    assert module.table.slots is slots
    assert module.table.global_scale is scale
    assert all(b.dtype == torch.int64 and b.device == device for b in module.buffers())
    assert_same(module(*batch(device)), before)


def test_casts_that_change_nothing_are_silent(device: torch.device) -> None:
    module = loaded(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.bfloat16()
        module.to(device)
        module.to(device, torch.bfloat16)
        module.train().eval()
        module.requires_grad_(False)
        module.to_empty(device=device)
    assert_same(module.table.slots.cpu(), rows_of("bf16").slots)


def test_the_warning_points_at_the_caller() -> None:
    module = loaded(torch.device("cpu"))
    with pytest.warns(NgramPleWarning) as caught:
        module.half()
    assert caught[0].filename == __file__


@pytest.mark.needs_gpu
def test_moves_between_devices() -> None:
    module = loaded(torch.device("cpu"))
    for move in (lambda: module.cuda(), lambda: module.to("cuda:0")):
        with pytest.warns(NgramPleWarning, match="stays on cpu .* cuda:0"):
            move()
    assert module.table.slots.device.type == "cpu"
    on_gpu = loaded(torch.device("cuda", 0))
    with pytest.warns(NgramPleWarning, match="stays on cuda:0"):
        on_gpu.cpu()
    assert on_gpu.table.slots.device.type == "cuda"


def test_there_are_no_gradients(device: torch.device) -> None:
    module = loaded(device)
    assert list(module.parameters()) == []
    with pytest.raises(NgramPleError, match="no gradients"):
        module.requires_grad_()
    assert not module(*batch(device)).requires_grad
    weight = torch.randn(4, 8, device=device, requires_grad=True)
    rows = torch.ops.ngram_ple.lookup(
        torch.tensor([1], device=device), weight, None, None, format="fp32", out_dtype="fp32", head_dim=8
    )
    with pytest.raises(RuntimeError, match="does not require grad"):
        rows.sum().backward()


@pytest.mark.parametrize("copier", [copy.deepcopy, copy.copy, pickle.dumps])
def test_copies_are_refused(copier: Any, device: torch.device) -> None:
    for module in (loaded(device), torch.nn.Sequential(loaded(device))):
        if copier is copy.copy and isinstance(module, torch.nn.Sequential):
            continue  # shares its children
        with pytest.raises(NgramPleError, match="cannot be copied or pickled: its table of 8192 bytes"):
            copier(module)


def test_state_dict_has_the_hash_buffers(device: torch.device) -> None:
    module = loaded(device)
    assert list(module.state_dict()) == BUFFERS
    fresh = construct(device)
    assert fresh.load_state_dict(module.state_dict()).missing_keys == []
    with pytest.raises(NgramPleError, match="not loaded"):
        fresh(*batch(device))
    with pytest.raises(RuntimeError, match=r"Missing key.*layer_multipliers"):
        fresh.load_state_dict({name: module.state_dict()[name] for name in BUFFERS[1:]})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*other"):
        fresh.load_state_dict({**module.state_dict(), "other": torch.ones(1)})
    fresh.load_state_dict({"other": torch.ones(1)}, strict=False)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("nested", [False, True])
def test_state_dict_with_the_table(format: str, nested: bool, device: torch.device) -> None:
    module = loaded(device, format)
    module.table_in_state_dict = True
    outer = torch.nn.ModuleDict({"ple": module}) if nested else module
    saved = {name: tensor.clone() for name, tensor in outer.state_dict().items()}
    expected = 5 if format in ("fp8", "nvfp4") else 4
    assert len(saved) == expected
    fresh = construct(device, format)
    address = fresh.table.slots.data_ptr()
    (torch.nn.ModuleDict({"ple": fresh}) if nested else fresh).load_state_dict(saved)
    assert fresh.table.slots.data_ptr() == address
    assert_same(fresh(*batch(device)), module(*batch(device)))


def test_state_dicts_that_do_not_fit(device: torch.device) -> None:
    module = loaded(device, "fp8")
    module.table_in_state_dict = True
    saved = dict(module.state_dict())
    wrong = {
        "must be uint8 [128, 32], got torch.uint8 [127, 32]": ("slots", saved["ngram_embedding.slots"][1:]),
        "must be a finite float32 [1], got torch.bfloat16 [1]": ("global_scale", torch.ones(1).bfloat16()),
    }
    for said, (name, tensor) in wrong.items():
        fresh = construct(device, "fp8")
        with pytest.raises(NgramPleError) as error:
            fresh.load_state_dict({**saved, f"ngram_embedding.{name}": tensor})
        assert said in str(error.value)
        with pytest.raises(NgramPleError, match="not loaded"):
            fresh(*batch(device))
    del saved["ngram_embedding.global_scale"]
    with pytest.raises(NgramPleError, match=r"global_scale must be a finite float32 \[1\], got nothing"):
        construct(device, "fp8").load_state_dict(saved)
    different = {**module.state_dict(), "layer_multipliers": torch.tensor([1, 3, 5])}
    with pytest.warns(NgramPleWarning, match="layer_multipliers of the state dict"):
        module.load_state_dict(different)
    assert module.layer_multipliers.tolist() == [1, 3, 5]


def test_meta_construction(device: torch.device) -> None:
    with torch.device("meta"):
        module = construct(device)
    assert module.table.slots.is_meta
    assert all(buffer.is_meta for buffer in module.buffers())
    with pytest.raises(NgramPleError, match="on the meta device: call to_empty first"):
        module.load_weights(tensors_of(rows_of("bf16")).items())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.to_empty(device=device)
    assert module.table.slots.device == device
    assert module.layer_multipliers.tolist() == construct(device).layer_multipliers.tolist()
    module.load_weights(tensors_of(rows_of("bf16")).items())
    module.finish_loading()
    assert_same(module(*batch(device)), loaded(device)(*batch(device)))


def test_a_meta_module_is_never_taken_for_loaded(tmp_path: Path, device: torch.device) -> None:
    full = loaded(device)
    full.table_in_state_dict = True
    with torch.device("meta"):
        module = construct(device)
    with pytest.raises(NgramPleError, match="on the meta device: call to_empty first"):
        module.load_state_dict(full.state_dict())
    module.to_empty(device=device)
    with pytest.raises(NgramPleError, match="not loaded"):
        module(*batch(device))
    tensors = {"ngram_embedding.weight": rows_of("bf16").weight}
    folder = checkpoints.save_tensors(tmp_path / "model", tensors, CONFIG.to_dict())
    with pytest.raises(NgramPleError, match="from_pretrained needs memory, got the meta device"):
        NGramEmbedding.from_pretrained(folder, placement="cpu", device="meta")


def test_one_log_line_says_what_was_made(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="ngram_ple"):
        construct(device, "nvfp4")
    (record,) = caplog.records
    placement = "cpu" if device.type == "cpu" else "device"
    for part in ("format=nvfp4", "dtype=torch.bfloat16", f"placement={placement}", "rows=128", "bytes=4096"):
        assert part in record.getMessage()


def test_wrong_construction(device: torch.device) -> None:
    for options, said in (
        ({"format": "int8"}, "format must be one of"),
        ({"placement": "disk"}, "placement must be one of "),
        ({"placement": "disk", "device": "meta"}, "placement must be one of "),
        ({"placement": "cpu", "device": "cuda"}, "device must be cpu or None for placement 'cpu', got cuda"),
        ({"placement": "device", "device": "cpu"}, "device must be a cuda device or None"),
        ({"placement": "cpu", "dtype": torch.float64}, "dtype must be one of"),
    ):
        with pytest.raises(ConfigError) as error:
            NGramEmbedding(CONFIG, **options)  # type: ignore[arg-type]
        assert said in str(error.value)


def test_prefetch_does_nothing_here(device: torch.device) -> None:
    module = loaded(device)
    assert not module.supports_prefetch
    assert module.start_prefetch(*batch(device)) is None  # type: ignore[func-returns-value]
    with pytest.raises(PrefetchError, match="finalize_prefetch needs a placement with prefetch"):
        module.finalize_prefetch(7)


# --- concurrency -----------------------------------------------------------------------------------------


def test_calls_from_several_threads(device: torch.device) -> None:
    module = loaded(device, "nvfp4")
    tokens = torch.randint(0, 1000, (8, 600), device=device)
    bounds = torch.tensor([0, 200, 600], device=device)
    contexts = torch.full((2, 2), 7, device=device)
    expected = [module(row, bounds, contexts) for row in tokens]
    wrong: list[int] = []

    def work(which: int) -> None:
        for _ in range(20):
            got = module(tokens[which], bounds, contexts)
            if not torch.equal(got.view(torch.int16), expected[which].view(torch.int16)):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_number_of_threads_changes_no_bit() -> None:
    module = loaded(torch.device("cpu"), "fp8")
    tokens = torch.randint(0, 1000, (3000,))
    inputs = (tokens, torch.tensor([0, 1000, 1000, 3000]), torch.full((3, 2), 7))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            results.append(module(*inputs).view(torch.int16))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_state_dict_is_checked_before_anything_is_written() -> None:
    device = torch.device("cpu")
    module = loaded(device)
    module.table_in_state_dict = True
    good = {name: value.clone() for name, value in module.state_dict().items()}
    before = module(*batch(device))
    other = {**good, "layer_multipliers": good["layer_multipliers"] + 2}
    wrong = {
        "ngram_embedding.slots": good["ngram_embedding.slots"][:-1],
        "layer_multipliers": good["layer_multipliers"].view(1, -1),
        "ngram_heads_vocab_sizes": good["ngram_heads_vocab_sizes"].double(),
        "ngram_heads_offsets": good["ngram_heads_offsets"].to("meta"),
    }
    for name, value in wrong.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NgramPleWarning)
            with pytest.raises(NgramPleError, match=rf"{name} must"):
                module.load_state_dict({**other, name: value})
        assert_same(module(*batch(device)), before)
    with pytest.raises(NgramPleError, match="layer_multipliers must be int64"):
        module.load_state_dict({**good, "layer_multipliers": 3})


def test_shared_memory_is_not_promised() -> None:
    with pytest.warns(NgramPleWarning, match="shared memory"):
        torch.nn.Sequential(loaded(torch.device("cpu"))).share_memory()


def test_the_warning_points_outside_torch() -> None:
    model = torch.nn.Sequential(loaded(torch.device("cpu")))
    with pytest.warns(NgramPleWarning) as caught:
        model.half()
    assert caught[0].filename == __file__


def test_views_of_tokens_are_taken() -> None:
    device = torch.device("cpu")
    module = loaded(device)
    input_ids, query_start_loc, context = batch(device)
    strided = torch.stack([input_ids, input_ids], dim=1)[:, 0]
    assert not strided.is_contiguous()
    assert_same(module(strided, query_start_loc, context), module(input_ids, query_start_loc, context))


def test_construction_names_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="config must be an NGramConfig, got dict"):
        NGramEmbedding({}, placement="cpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="device must name a torch device, got 'cpuu'"):
        NGramEmbedding(CONFIG, placement="cpu", device="cpuu")
