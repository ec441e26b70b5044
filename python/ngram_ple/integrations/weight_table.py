"""A table made of a weight that a model already holds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import torch

from ngram_ple import ops
from ngram_ple.config import NGramConfig
from ngram_ple.embedding import NGramEmbedding
from ngram_ple.encoding import global_scale
from ngram_ple.errors import ConfigError, NgramPleError, NgramPleWarning
from ngram_ple.formats import OUT_DTYPES, RowFormat, row_format
from ngram_ple.hash_plan import HashPlan
from ngram_ple.tables import Table

_BLOCK_BYTES = 64 << 20


class WeightEmbedding(NGramEmbedding):
    """`NGramEmbedding` over the ``[padded_rows, head_dim]`` weight of an ``nn.Embedding``.

    Where format, device and layout allow it the table is the weight's own memory, else a copy.

    Parameters
    ----------
    config : NGramConfig
    weight : Tensor
        bfloat16, float16 or float32.
    buffers : mapping of str to Tensor
        The hash buffers that the model holds; they win over derived ones.
    format : str, optional
        Any; the weight's by default. Others are encoded, as `ngram_ple.ops.encode` has it.
    placement, device
        As for `NGramEmbedding`.

    Attributes
    ----------
    shares_weight : bool
        Whether the table is the weight's memory.

    Raises
    ------
    ConfigError
        A weight of another shape or dtype, or without memory; an unknown format, or one that its head_dim
        does not allow.
    NgramPleError
        A NaN or an infinity in a weight that is to be encoded.
    """

    def __init__(
        self,
        config: NGramConfig,
        weight: torch.Tensor,
        buffers: Mapping[str, torch.Tensor],
        *,
        format: str | None = None,
        placement: str,
        device: torch.device | None = None,
    ) -> None:
        plan = _checked_plan(config, weight, buffers)
        own = OUT_DTYPES[weight.dtype]
        self._weight: torch.Tensor | None = weight.detach()
        self.shares_weight = False
        super().__init__(
            config, format=format or own, placement=placement, device=device, dtype=weight.dtype, plan=plan
        )
        if not self.shares_weight:
            self.write_weight(weight.detach())
        self._weight = None
        self._loaded = True

    def _make_table(self, device: torch.device) -> Table:
        weight = self._weight
        if (
            weight is None
            or self.placement == "pinned"
            or weight.device != device
            or not weight.is_contiguous()
            or OUT_DTYPES[weight.dtype] != self._format.name
        ):
            return super()._make_table(device)
        self.shares_weight = True
        self._rows = Table(self._format, weight.view(torch.uint8), 0)
        return self._rows

    def write_weight(self, weight: torch.Tensor) -> None:
        """Write all rows, encoded block by block.

        Raises
        ------
        NgramPleError
            A NaN or an infinity, for fp8 and nvfp4 tables. Nothing is written then.
        """
        format = self._format
        amax = _finite_amax(weight, format)
        scale = None
        if amax is not None and format.has_global_scale:
            scale = global_scale(amax, format.name)
            self.table.set_global_scale(float(scale))
        for begin, rows in _blocks_of(weight, format):
            codes, scales = ops.encode(rows, scale, format=format.name, scale_dtype="fp32")
            self.table.write("weight", begin, codes.view(torch.uint8))
            if format.scale_bytes:
                self.table.write("weight_scale", begin, scales.view(torch.uint8))

    def weight(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the table as a weight: its own memory where it is stored so, else a decoded copy."""
        slots = self.table.slots
        if OUT_DTYPES[dtype] == self._format.name and slots.device == device:
            return slots.view(dtype)
        rows = slots.shape[0]
        weight = torch.empty((rows, self._format.head_dim), dtype=dtype, device=device)
        step = _block_rows(self._format)
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            ids = torch.arange(begin, end, device=self.layer_multipliers.device)
            weight[begin:end] = self.table.lookup(ids, OUT_DTYPES[dtype])
        return weight


def check_weight(
    config: NGramConfig, weight: torch.Tensor, buffers: Mapping[str, torch.Tensor], format: str | None
) -> None:
    """Refuse what `WeightEmbedding` would, without making one: all of a model's before the first is given up.

    Raises
    ------
    ConfigError, NgramPleError
        As `WeightEmbedding` does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NgramPleWarning)  # it will be told when it is made
        _checked_plan(config, weight, buffers)
    _finite_amax(weight, row_format(format or OUT_DTYPES[weight.dtype], config.head_dim))


def _checked_plan(config: NGramConfig, weight: torch.Tensor, buffers: Mapping[str, torch.Tensor]) -> HashPlan:
    if weight.dtype not in OUT_DTYPES:
        raise ConfigError(f"weight must be one of {', '.join(map(str, OUT_DTYPES))}, got {weight.dtype}")
    plan = HashPlan.from_config(config).with_buffers(
        {name: [int(value) for value in tensor.tolist()] for name, tensor in buffers.items()}, "the model"
    )
    shape = [plan.padded_rows, config.head_dim]
    if list(weight.shape) != shape or weight.is_meta:
        raise ConfigError(
            f"weight must be {shape} in memory, got {list(weight.shape)} on {weight.device} (one that is "
            "offloaded to disk cannot be taken over)"
        )
    return plan


def _finite_amax(weight: torch.Tensor, format: RowFormat) -> torch.Tensor | None:
    """Return the largest magnitude, None for formats that take any value."""
    if format.name in OUT_DTYPES.values():
        return None
    amax = torch.stack([ops.row_amax(rows).max() for _, rows in _blocks_of(weight, format)]).max()
    if not bool(amax.isfinite()):
        raise NgramPleError(f"weight must be finite for format {format.name}, got a NaN or an infinity")
    return amax


def _block_rows(format: RowFormat) -> int:
    return max(1, _BLOCK_BYTES // format.slot_bytes)


def _blocks_of(weight: torch.Tensor, format: RowFormat) -> Iterator[tuple[int, torch.Tensor]]:
    step = _block_rows(format)
    for begin in range(0, weight.shape[0], step):
        yield begin, weight.detach()[begin : begin + step].contiguous()
