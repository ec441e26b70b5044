"""What torch must know of the operators besides their kernels: shapes for tracing, and that `out` changes.

Kernels and schemas register themselves when ``_ops.so`` is loaded; the rest, here, is Python in torch too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ngram_ple.formats import row_format

_OUT_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "bytes": torch.uint8,
}
_ENCODED = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "fp8-rowwise": torch.float8_e4m3fn,
    "nvfp4": torch.uint8,
}
_library = torch.library.Library("ngram_ple", "FRAGMENT")  # type: ignore[no-untyped-call]


@functools.cache
@functools.cache
def load() -> Any:
    """Load ``_ops.so`` once, register what belongs to it, and return ``torch.ops.ngram_ple``."""
    torch.ops.load_library(str(Path(__file__).with_name("_ops.so")))  # type: ignore[no-untyped-call]
    fakes: dict[str, Callable[..., Any]] = {
        "ngram_ids": _fake_ngram_ids,
        "lookup": _fake_lookup,
        "embed": _fake_embed,
        "decode": _fake_decode,
        "row_amax": _fake_row_amax,
        "encode": _fake_encode,
        "pinned_lookup": _fake_pinned_lookup,
    }
    for name, fake in {"lookup_peers": _fake_lookup_peers, "embed_peers": _fake_embed_peers}.items():
        torch.library.register_fake(f"ngram_ple::{name}", fake)
        _library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    for name, fake in fakes.items():
        torch.library.register_fake(f"ngram_ple::{name}", fake)
        torch.library.register_fake(f"ngram_ple::{name}.out", functools.partial(_fake_out, name))
        # No operator has a gradient: with nothing registered torch would let results require one and drop it
        # in the backward pass.
        for form in (name, f"{name}.out"):
            _library.impl(form, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
        _library.impl(  # type: ignore[no-untyped-call]
            f"{name}.out",
            functools.partial(_counted_write, getattr(torch.ops.ngram_ple, name).out),
            "ADInplaceOrView",
            with_keyset=True,
        )
    return torch.ops.ngram_ple


def _counted_write(op, keyset, *args, **kwargs):  # type: ignore[no-untyped-def]
    """Count the writes, so that autograd notices when one changes what a graph has saved."""
    written = {name: kwargs[name] for name in _written_by(op)}
    for name, tensor in written.items():
        if tensor.requires_grad:
            raise RuntimeError(f"{op}: {name} must not require grad: operators have no gradient")
    with torch._C._AutoDispatchBelowADInplaceOrView():
        op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, **kwargs)
    for tensor in written.values():
        torch.autograd.graph.increment_version(tensor)


@functools.cache
def _written_by(op: Any) -> tuple[str, ...]:
    return tuple(one.name for one in op._schema.arguments if one.alias_info and one.alias_info.is_write)


# --- fake kernels: shapes and dtypes of results, made from the ids ------------------------------------


def _check_meta(op: str, **tensors: torch.Tensor | None) -> None:
    """Refuse a mix of meta tensors and others: torch sends it here, where nothing would be computed."""
    kinds = {name: tensor.is_meta for name, tensor in tensors.items() if tensor is not None}
    if len(set(kinds.values())) > 1:
        on_meta = [name for name, is_meta in kinds.items() if is_meta]
        raise RuntimeError(
            f"{op}: all tensors must be on the meta device or none, got {', '.join(on_meta)} there alone"
        )


def _result_type(op: str, format: str, out_dtype: str, head_dim: int) -> tuple[int, torch.dtype]:
    """Elements of a result row and their dtype."""
    if out_dtype not in _OUT_DTYPES:
        raise RuntimeError(f"{op}: out_dtype must be one of {', '.join(_OUT_DTYPES)}, got {out_dtype}")
    elements = row_format(format, head_dim).slot_bytes if out_dtype == "bytes" else head_dim
    return elements, _OUT_DTYPES[out_dtype]


def _fake_ngram_ids(  # type: ignore[no-untyped-def]
    input_ids,
    query_start_loc,
    ngram_context,
    layer_multipliers,
    sizes,
    offsets,
    eos_token_id,
    heads_per_ngram,
):
    _check_meta(
        "ngram_ids",
        input_ids=input_ids,
        query_start_loc=query_start_loc,
        ngram_context=ngram_context,
        layer_multipliers=layer_multipliers,
        ngram_heads_vocab_sizes=sizes,
        ngram_heads_offsets=offsets,
    )
    return input_ids.new_empty((input_ids.shape[0], sizes.shape[0]), dtype=torch.int64)


def _fake_lookup(  # type: ignore[no-untyped-def]
    ids, weight, scale, global_scale, *, format, out_dtype, head_dim, row_start=0, row_end=-1
):
    _check_meta("lookup", ids=ids, weight=weight, scale=scale, global_scale=global_scale)
    elements, dtype = _result_type("lookup", format, out_dtype, head_dim)
    return ids.new_empty((*ids.shape, elements), dtype=dtype)


def _fake_embed(  # type: ignore[no-untyped-def]
    input_ids,
    query_start_loc,
    ngram_context,
    layer_multipliers,
    sizes,
    offsets,
    eos_token_id,
    heads_per_ngram,
    weight,
    scale,
    global_scale,
    *,
    format,
    out_dtype,
    head_dim,
    row_start=0,
    row_end=-1,
):
    _check_meta(
        "embed",
        input_ids=input_ids,
        query_start_loc=query_start_loc,
        ngram_context=ngram_context,
        layer_multipliers=layer_multipliers,
        ngram_heads_vocab_sizes=sizes,
        ngram_heads_offsets=offsets,
        weight=weight,
        scale=scale,
        global_scale=global_scale,
    )
    elements, dtype = _result_type("embed", format, out_dtype, head_dim)
    return input_ids.new_empty((input_ids.shape[0], sizes.shape[0] * elements), dtype=dtype)


def _fake_lookup_peers(  # type: ignore[no-untyped-def]
    ids, block, block_addresses, global_scale, *, format, out_dtype, head_dim, num_rows
):
    _check_meta("lookup_peers", block_addresses=block_addresses, ids=ids)
    return _fake_lookup(  # type: ignore[no-untyped-call]
        ids, block, None, global_scale, format=format, out_dtype=out_dtype, head_dim=head_dim
    )


def _fake_embed_peers(  # type: ignore[no-untyped-def]
    *arguments, format, out_dtype, head_dim, num_rows
):
    batch, (block, block_addresses, global_scale) = arguments[:8], arguments[8:]
    _check_meta("embed_peers", block_addresses=block_addresses, input_ids=arguments[0])
    how = {"format": format, "out_dtype": out_dtype, "head_dim": head_dim}
    return _fake_embed(  # type: ignore[no-untyped-call, call-arg]
        *batch, block, None, global_scale, **how
    )


def _fake_pinned_lookup(  # type: ignore[no-untyped-def]
    ids, weight, global_scale, *, reader, way, sms, format, out_dtype, head_dim, row_start=0
):
    return _fake_lookup(  # type: ignore[no-untyped-call]
        ids, weight, None, global_scale, format=format, out_dtype=out_dtype, head_dim=head_dim
    )


def _fake_decode(  # type: ignore[no-untyped-def]
    rows, scale, global_scale, *, format, out_dtype, head_dim
):
    _check_meta("decode", rows=rows, scale=scale, global_scale=global_scale)
    elements, dtype = _result_type("decode", format, out_dtype, head_dim)
    return rows.new_empty((*rows.shape[:-1], elements), dtype=dtype)


def _fake_row_amax(rows, *, finite_only=False):  # type: ignore[no-untyped-def]
    return rows.new_empty(rows.shape[:-1], dtype=torch.float32)


def _fake_encode(  # type: ignore[no-untyped-def]
    rows, global_scale=None, *, format, scale_dtype="fp32"
):
    _check_meta("encode", rows=rows, global_scale=global_scale)
    head_dim = rows.shape[-1]
    geometry = row_format(format, head_dim)
    weight_dtype, width = _ENCODED[format], head_dim
    scales, scale_type = 0, torch.float32
    if format == "nvfp4":
        width, scales, scale_type = geometry.row_bytes, geometry.scale_bytes, torch.float8_e4m3fn
    elif format == "fp8-rowwise":
        scales, scale_type = 1, _OUT_DTYPES[scale_dtype]
    return (
        rows.new_empty((*rows.shape[:-1], width), dtype=weight_dtype),
        rows.new_empty((*rows.shape[:-1], scales), dtype=scale_type),
    )


def _fake_out(op, *args, **kwargs):  # type: ignore[no-untyped-def]
    given = {f"argument {i}": value for i, value in enumerate(args)} | kwargs
    _check_meta(f"{op}.out", **{k: value for k, value in given.items() if isinstance(value, torch.Tensor)})
