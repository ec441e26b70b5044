"""The n-gram embeddings of a `transformers` Qwen4Exp model, computed by this library.

`accelerate` replaces them in place, `restore` undoes it. Written for transformers 5.17 and later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

from ngram_ple.config import NGramConfig
from ngram_ple.errors import ConfigError
from ngram_ple.formats import OUT_DTYPES
from ngram_ple.hash_plan import BUFFER_FIELDS
from ngram_ple.integrations.weight_table import WeightEmbedding, check_weight
from ngram_ple.padding import padded_batch

_CONTEXT_STATE = 2  # where the model's cache keeps the tokens before, as one of a layer's conv states
_WEIGHT = "ngram_embedding.weight"
_STATE = (_WEIGHT, *BUFFER_FIELDS)


@dataclass(frozen=True)
class Replaced:
    """One n-gram embedding that `accelerate` replaced.

    Attributes
    ----------
    name : str
        Of the module, ``model.layers.1.ple.ple_embedding``.
    layer : int
        Index among the PLE layers.
    format, placement : str
        How and where the table is stored now.
    rows, nbytes : int
        Of the table.
    shares_weight : bool
        Whether the table is the memory that the model's weight had; else it was copied, and the weight given
        up.
    prefetched : bool
        Whether the decoder layer before starts the lookups.
    """

    name: str
    layer: int
    format: str
    placement: str
    rows: int
    nbytes: int
    shares_weight: bool
    prefetched: bool


class AcceleratedNGramEmbedding(torch.nn.Module):
    """Stands where a `Qwen4ExpTextNGramEmbedding` stood: the same call, result, cache and state dict.

    Its table is no parameter, so nothing casts or moves it, optimizers do not see it, and it has no gradient.

    Parameters
    ----------
    theirs : Qwen4ExpTextNGramEmbedding
    embedding : WeightEmbedding
    home : torch.device
        Where the weight was.
    """

    def __init__(self, theirs: torch.nn.Module, embedding: WeightEmbedding, home: torch.device) -> None:
        super().__init__()
        self.home = home
        # In a tuple, out of reach of what walks the model: neither has parameters or buffers that are its.
        self._held = (theirs, embedding)
        self._layer_idx: int = theirs.layer_idx  # type: ignore[assignment]
        self._prefetched: torch.Tensor | None = None
        self.prefetch_hook: Any = None

    @property
    def theirs(self) -> torch.nn.Module:
        """The module that was replaced."""
        return self._held[0]

    @property
    def embedding(self) -> WeightEmbedding:
        """The module that computes in its place."""
        return self._held[1]

    def forward(
        self, input_ids: torch.Tensor, cache: Any = None, *, past_key_values: Any = None
    ) -> torch.Tensor:
        """Embed ``[B, S]`` tokens, whose predecessors the cache knows: ``[B, S, H·head_dim]``."""
        cache = past_key_values if cache is None else cache
        embedding = self.embedding
        begun, self._prefetched = self._prefetched, None
        if begun is not None and begun is not input_ids:
            embedding.drop_prefetch()
        rows: torch.Tensor = embedding(*self._batch(input_ids, cache))
        self._remember(input_ids.long(), cache)
        return rows.to(input_ids.device).view(*input_ids.shape, -1)

    def begin(self, input_ids: torch.Tensor, cache: Any) -> None:
        """Start the lookups of the next call, which gets the same tensor."""
        self.embedding.drop_prefetch()  # of a step that was given up
        self.embedding.start_prefetch(*self._batch(input_ids, cache))
        self._prefetched = input_ids

    def _batch(self, input_ids: torch.Tensor, cache: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config, home = self.embedding.config, self.embedding.layer_multipliers.device
        context = self._context(cache)
        return padded_batch(
            input_ids.to(home, torch.int64),
            ngram_size=config.ngram_size,
            eos_token_id=config.eos_token_id,
            ngram_context=None if context is None else context[:, 1 - config.ngram_size :].to(home),
        )

    def _context(self, cache: Any) -> torch.Tensor | None:
        if cache is None or not cache.has_previous_state(self._layer_idx, state_idx=_CONTEXT_STATE):
            return None
        context: torch.Tensor = cache.layers[self._layer_idx].conv_states[_CONTEXT_STATE]
        return context

    def _remember(self, input_ids: torch.Tensor, cache: Any) -> None:
        """Let the cache keep the last tokens, as the model does."""
        if cache is None:
            return
        columns, eos = self.embedding.config.ngram_size - 1, self.embedding.config.eos_token_id
        if self._context(cache) is None and input_ids.shape[1] < columns:
            missing = columns - input_ids.shape[1]
            input_ids = torch.nn.functional.pad(input_ids, (missing, 0), value=eos)
        cache.update_conv_state(
            input_ids, self._layer_idx, state_idx=_CONTEXT_STATE, conv_kernel_size=columns
        )

    def _apply(self, fn: Any, recurse: bool = True) -> AcceleratedNGramEmbedding:
        self.embedding._apply(fn, recurse)  # stays, and says so
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        embedding = self.embedding
        destination[prefix + _WEIGHT] = embedding.weight(embedding.dtype, embedding.table.slots.device)
        for name in BUFFER_FIELDS:
            destination[prefix + name] = self.embedding.get_buffer(name)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        _, strict, missing, unexpected, errors = args
        known = {name: state_dict[prefix + name] for name in _STATE if prefix + name in state_dict}
        if strict:
            missing += [prefix + name for name in _STATE if name not in known]
            unexpected += [
                key for key in state_dict if key.startswith(prefix) and key[len(prefix) :] not in _STATE
            ]
        weight = known.pop(_WEIGHT, None)
        rows = [self.embedding.table.slots.shape[0], self.embedding.config.head_dim]
        if weight is not None and (
            list(weight.shape) != rows or weight.dtype not in OUT_DTYPES or weight.is_meta
        ):
            errors.append(
                f"{prefix}{_WEIGHT} must be {rows} of {', '.join(map(str, OUT_DTYPES))}, got {weight.dtype} "
                f"{list(weight.shape)} on {weight.device}"
            )
            return
        self.embedding.load_state_dict(known, strict=False)
        if weight is not None:
            self.embedding.write_weight(weight)

    def extra_repr(self) -> str:
        """Return what the table is."""
        return self.embedding.extra_repr()


def accelerate(
    model: torch.nn.Module,
    *,
    placement: str | None = None,
    format: str | None = None,
    prefetch: bool = True,
) -> list[Replaced]:
    """Replace the n-gram embeddings of a Qwen4Exp model in place.

    Results, cache and state dict stay what they were, to the bit (while `format` is that of the weights). The
    weights are taken over: a table shares the memory of its weight or replaces it, one layer after the other,
    so at most one layer's is there twice. For inference: a table has no gradient.

    Parameters
    ----------
    model : Module
        A model that contains Qwen4Exp PLE layers.
    placement : {"device", "pinned", "cpu"}, optional
        Where the tables live; by default with the layer's other weights.
    format : str, optional
        Any row format; that of the weights by default. In another one rows are rounded, logits with them.
    prefetch : bool
        Whether lookups in pinned tables start while the decoder layer before runs.

    Returns
    -------
    list of Replaced
        What was changed, in the model's order.

    Raises
    ------
    ConfigError
        Nothing to replace, or something that does not fit. The model is as it was then.
    PinnedMemoryError
        A table does not fit into pinned memory. The model is as it was then, but that a `format` has rounded
        the layers before.
    NgramPleError
        A NaN or an infinity in a weight that is to be encoded. The model is as it was then.
    """
    found = [(name, module) for name, module in model.named_modules() if _is_theirs(module)]
    if not found:
        raise ConfigError(
            f"model must have a Qwen4ExpTextNGramEmbedding, got a {type(model).__name__} with "
            + ("one that is accelerated already" if _accelerated(model) else "none")
        )
    settings: Any = getattr(model, "config", None)
    if not hasattr(settings, "get_text_config"):
        raise ConfigError(
            f"model must be a transformers model with its config, got a part of one, a {type(model).__name__}"
        )
    config = settings.get_text_config().to_dict()
    for _, theirs in found:
        check_weight(*_taken_over(theirs, config), format)
    done = []
    try:
        for name, theirs in found:
            done.append(_replace(model, name, theirs, config, placement, format, prefetch))
    except BaseException:
        restore(model)
        raise
    return done


def restore(model: torch.nn.Module) -> list[str]:
    """Put the modules back that `accelerate` replaced, with the weights as they are in the tables.

    Returns
    -------
    list of str
        Their names; none when nothing was replaced.
    """
    names = []
    for name, module in _accelerated(model):
        weight = module.theirs.get_parameter(_WEIGHT)
        if not module.embedding.shares_weight:
            weight.data = module.embedding.weight(weight.dtype, module.home)
        if module.prefetch_hook is not None:
            module.prefetch_hook.remove()
        _set(model, name, module.theirs)
        names.append(name)
    return names


def _replace(
    model: torch.nn.Module,
    name: str,
    theirs: Any,
    config: dict[str, Any],
    placement: str | None,
    format: str | None,
    prefetch: bool,
) -> Replaced:
    layer = model.get_submodule(name.rpartition(".")[0])
    device = layer.get_parameter("key_proj.weight").device
    settings, weight, buffers = _taken_over(theirs, config)
    if placement is None:
        placement = "cpu" if device.type == "cpu" else "device"
    embedding = WeightEmbedding(
        settings,
        weight,
        buffers,
        format=format,
        placement=placement,
        device=None if placement == "cpu" or device.type == "cpu" else device,
    )
    ours = AcceleratedNGramEmbedding(theirs, embedding, weight.device).train(theirs.training)
    if not embedding.shares_weight:
        weight.data = weight.data.new_empty(0)
    if prefetch and embedding.supports_prefetch:
        ours.prefetch_hook = _prefetch_before(model, name, ours)
    _set(model, name, ours)
    table = embedding.table
    return Replaced(
        name,
        theirs.ple_layer_index,
        table.format.name,
        placement,
        table.slots.shape[0],
        table.nbytes,
        embedding.shares_weight,
        ours.prefetch_hook is not None,
    )


def _taken_over(
    theirs: Any, config: dict[str, Any]
) -> tuple[NGramConfig, torch.nn.Parameter, dict[str, torch.Tensor]]:
    """Return what an embedding is made of: configuration, weight and hash buffers."""
    buffers = {field: getattr(theirs, field) for field in BUFFER_FIELDS}
    return NGramConfig.from_pretrained(config, theirs.ple_layer_index), theirs.get_parameter(_WEIGHT), buffers


def _prefetch_before(model: torch.nn.Module, name: str, ours: AcceleratedNGramEmbedding) -> Any:
    """Let the decoder layer before the PLE layer start its lookups; None where there is none."""
    layers = name.rpartition(f".{ours._layer_idx}.ple.")[0]
    if not layers or ours._layer_idx == 0:
        return None

    def start(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        input_ids = kwargs.get("ple_input_ids")
        if input_ids is not None and not torch.compiler.is_compiling():
            ours.begin(input_ids, kwargs.get("cache", kwargs.get("past_key_values")))

    before = model.get_submodule(f"{layers}.{ours._layer_idx - 1}")
    return before.register_forward_pre_hook(start, with_kwargs=True)


def _is_theirs(module: torch.nn.Module) -> bool:
    return isinstance(module, Qwen4ExpTextNGramEmbedding)


def _accelerated(model: torch.nn.Module) -> list[tuple[str, AcceleratedNGramEmbedding]]:
    return [
        (n, module) for n, module in model.named_modules() if isinstance(module, AcceleratedNGramEmbedding)
    ]


def _set(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)
