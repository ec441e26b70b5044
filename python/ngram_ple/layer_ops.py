"""Operators that take a layer's name instead of its table, ``torch.ops.ngram_ple.*_layer``.

For compiled and captured programs: the graph holds a string, so no compiler sees the table, copies it or
keeps it as a constant, and a pinned table brings no CPU tensor into a GPU's graph. `NGramEmbedding` uses them
itself under ``torch.compile``; engines that split their graphs at operators call them directly::

    ngram_ids_layer(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor(a!) out,
                    str layer_name) -> ()
    lookup_layer(Tensor ngram_ids, Tensor(a!) out, str layer_name) -> ()
    embed_layer(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor(a!) out,
                str layer_name) -> ()
    start_prefetch_layer(Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor(a!) ticket,
                         str layer_name) -> ()
    finalize_prefetch_layer(Tensor(a!) ticket, Tensor(b!) out, str layer_name) -> ()

They do what `NGramEmbedding.compute_ngram_ids`, ``sync_lookup``, ``forward``, ``start_prefetch`` and
``finalize_prefetch`` do, into `out`. A ticket is any tensor of the program that both halves of a prefetch
get: compilers keep the order of operators that write to the same tensor. Nothing is written to it. The
overloads ``.rows`` and ``.ticket`` return a new tensor instead.

Names are those of `NGramEmbedding.layer_name`. The registry holds its layers weakly: the model owns them.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ngram_ple import registration
from ngram_ple.errors import ConfigError, shown

registration.load()
_layers: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # of NGramEmbedding
_lock = threading.Lock()
_numbers = itertools.count()


def layer_names() -> list[str]:
    """Return the names of the layers that live."""
    return sorted(_layers.keys())


def register(layer: object, name: str | None = None, old: str | None = None) -> str:
    """Give a layer its name, a new one when it has none yet, and take its old one back.

    Raises
    ------
    ConfigError
        No string, or the name of another layer that lives.
    """
    is_new = name is None and old is None
    if not is_new and (not isinstance(name, str) or not name):
        raise ConfigError(f"layer_name must be a string that is not empty, got {shown(name)}")
    with _lock:
        while name is None:
            candidate = f"ngram_embedding_{next(_numbers)}"
            name = None if candidate in _layers else candidate
        if _layers.get(name, layer) is not layer:
            raise ConfigError(f"layer_name must be unique, got {name!r}, the name of another layer")
        if old is not None and _layers.get(old) is layer:
            del _layers[old]
        _layers[name] = layer
    return name


def _layer(op: str, name: str) -> Any:
    layer = _layers.get(name)
    if layer is None:
        known = ", ".join(map(repr, layer_names()))
        raise ConfigError(
            f"{op}: layer_name must be one of {known}, got {name!r}"
            if known
            else f"{op}: layer_name must be that of a layer, got {name!r} and there are none"
        )
    return layer


# --- kernels and what compilers know of them -----------------------------------------------------------


def _ngram_ids(tokens, bounds, context, out, name):  # type: ignore[no-untyped-def]
    _layer("ngram_ids_layer", name).compute_ngram_ids(tokens, bounds, context, out=out)


def _lookup(ids, out, name):  # type: ignore[no-untyped-def]
    _layer("lookup_layer", name).sync_lookup(ids, out=out)


def _lookup_rows(ids, name):  # type: ignore[no-untyped-def]
    return _layer("lookup_layer", name).sync_lookup(ids)


def _embed(tokens, bounds, context, out, name):  # type: ignore[no-untyped-def]
    _layer("embed_layer", name).forward(tokens, bounds, context, out=out)


def _embed_rows(tokens, bounds, context, name):  # type: ignore[no-untyped-def]
    return _layer("embed_layer", name).forward(tokens, bounds, context)


def _embed_ticket(tokens, bounds, context, ticket, name):  # type: ignore[no-untyped-def]
    return _layer("embed_layer", name).forward(tokens, bounds, context)


def _start(tokens, bounds, context, ticket, name):  # type: ignore[no-untyped-def]
    _layer("start_prefetch_layer", name).start_prefetch(tokens, bounds, context)


def _finalize(ticket, out, name):  # type: ignore[no-untyped-def]
    _layer("finalize_prefetch_layer", name).finalize_prefetch(out.shape[0], out=out)


def _fake_lookup_rows(ids, name):  # type: ignore[no-untyped-def]
    layer = _layer("lookup_layer", name)
    return ids.new_empty((*ids.shape, layer.config.head_dim), dtype=layer.dtype)


def _fake_embed_rows(tokens, *rest):  # type: ignore[no-untyped-def]
    layer = _layer("embed_layer", rest[-1])
    return tokens.new_empty((tokens.shape[0], layer.config.ple_embed_dim), dtype=layer.dtype)


def _fake_write(op, *args):  # type: ignore[no-untyped-def]
    _layer(op, args[-1])


def _counted_write(op, position, keyset, *args):  # type: ignore[no-untyped-def]
    """Count the write to `out`, so that autograd notices when it changes what a graph has saved."""
    if args[position].requires_grad:
        raise RuntimeError(f"{op}: out must not require grad: operators have no gradient")
    with torch._C._AutoDispatchBelowADInplaceOrView():
        op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args)
    torch.autograd.graph.increment_version(args[position])


_BATCH = "Tensor input_ids, Tensor query_start_loc, Tensor ngram_context"
_WRITING: dict[str, Callable[..., Any]] = {
    f"ngram_ids_layer({_BATCH}, Tensor(a!) out, str layer_name) -> ()": _ngram_ids,
    "lookup_layer(Tensor ngram_ids, Tensor(a!) out, str layer_name) -> ()": _lookup,
    f"embed_layer({_BATCH}, Tensor(a!) out, str layer_name) -> ()": _embed,
    f"start_prefetch_layer({_BATCH}, Tensor(a!) ticket, str layer_name) -> ()": _start,
    "finalize_prefetch_layer(Tensor(a!) ticket, Tensor(b!) out, str layer_name) -> ()": _finalize,
}
_RETURNING: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "lookup_layer.rows(Tensor ngram_ids, str layer_name) -> Tensor": (_lookup_rows, _fake_lookup_rows),
    f"embed_layer.rows({_BATCH}, str layer_name) -> Tensor": (_embed_rows, _fake_embed_rows),
    f"embed_layer.ticket({_BATCH}, Tensor(a!) ticket, str layer_name) -> Tensor": (
        _embed_ticket,
        _fake_embed_rows,
    ),
}
_library = torch.library.Library("ngram_ple", "FRAGMENT")  # type: ignore[no-untyped-call]


def _define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any] | None = None) -> None:
    name, _, arguments = schema.partition("(")
    _library.define(schema)  # type: ignore[no-untyped-call]
    _library.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"ngram_ple::{name}", fake or functools.partial(_fake_write, name))
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    if " out, " in arguments:
        op = getattr(torch.ops.ngram_ple, name).default
        position = [argument.name for argument in op._schema.arguments].index("out")
        counted = functools.partial(_counted_write, op, position)
        _library.impl(name, counted, "ADInplaceOrView", with_keyset=True)  # type: ignore[no-untyped-call]


for _schema, _kernel in _WRITING.items():
    _define(_schema, _kernel)
for _schema, (_kernel, _fake) in _RETURNING.items():
    _define(_schema, _kernel, _fake)
