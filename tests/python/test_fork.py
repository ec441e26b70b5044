"""A forked child has the parent's tables only where they are the CPU's."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable

import pytest
import torch
from modules import batch, loaded
from ngram_ple import NGramEmbedding, NgramPleError, table_module
from reference import assert_same

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
SAID = "a forked child cannot use its parent's GPU: start worker processes by spawn"


def in_child(work: Callable[[], str]) -> str:
    """What a forked child says; it must end by itself."""
    gc.collect()  # or the child may destroy what earlier tests left
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(send, said.encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


def test_tables_of_the_cpu_work_on() -> None:
    module = loaded(CPU)
    expected = module(*batch(CPU)).view(torch.int16)
    assert in_child(lambda: str(torch.equal(module(*batch(CPU)).view(torch.int16), expected))) == "True"


def test_what_is_said_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(CPU)
    monkeypatch.setattr(module, "_home", CUDA)
    module(*batch(CPU))
    assert in_child(lambda: str(module(*batch(CPU)).shape)).startswith(f"NgramPleError: {SAID}")
    assert in_child(lambda: str(loaded(CPU)(*batch(CPU)).shape)) == "torch.Size([7, 128])"
    module(*batch(CPU))


def test_a_child_destroys_nothing_of_a_gpu() -> None:
    held = [loaded(CPU), loaded(CPU)]
    known = [weakref.ref(module) for module in held]
    table_module._of_gpus.add(held[0])

    def give_up() -> str:
        held.clear()
        gc.collect()
        return " ".join("gone" if module() is None else "kept" for module in known)

    assert in_child(give_up) == "kept gone"
    assert give_up() == "gone gone"


def refused(held: list[NGramEmbedding], inputs: tuple[torch.Tensor, ...], ids: torch.Tensor) -> str:
    """Try everything, then give the module up as a child does that ends normally."""
    calls: list[Callable[[], object]] = [lambda: held[0](*inputs), lambda: held[0].sync_lookup(ids)]
    calls += [lambda: held[0].start_prefetch(*inputs)] if held[0].supports_prefetch else []
    for call in calls:
        with pytest.raises(NgramPleError, match=SAID):
            call()
    held.clear()
    return "all refused"


@pytest.mark.needs_gpu
@pytest.mark.parametrize("placement", ["device", "pinned"])
def test_gpu_tables_are_refused_and_the_parent_goes_on(placement: str) -> None:
    held = [loaded(CUDA, placement=placement)]
    inputs = batch(CUDA)
    ids = held[0].compute_ngram_ids(*inputs)
    expected = held[0](*inputs)
    if held[0].supports_prefetch:
        held[0].start_prefetch(*inputs)
        held[0].finalize_prefetch(len(inputs[0]))
    assert in_child(lambda: refused(held, inputs, ids)) == "all refused"
    assert_same(held[0](*inputs), expected)
    if held[0].supports_prefetch:
        held[0].start_prefetch(*inputs)
        assert_same(held[0].finalize_prefetch(len(inputs[0])), expected)
