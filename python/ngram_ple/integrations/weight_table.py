"""A table made of a weight that a model already holds."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ngram_ple.config import NGramConfig
from ngram_ple.embedding import NGramEmbedding
from ngram_ple.errors import ConfigError
from ngram_ple.formats import OUT_DTYPES
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
        bf16, fp16 or fp32; the weight's by default.
    placement, device
        As for `NGramEmbedding`.

    Attributes
    ----------
    shares_weight : bool
        Whether the table is the weight's memory.

    Raises
    ------
    ConfigError
        A weight of another shape or dtype, without memory, or a format that is no plain one.
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
        if weight.dtype not in OUT_DTYPES:
            raise ConfigError(f"weight must be one of {', '.join(map(str, OUT_DTYPES))}, got {weight.dtype}")
        own = OUT_DTYPES[weight.dtype]
        if format is not None and format not in OUT_DTYPES.values():
            raise ConfigError(
                f"format must be one of {', '.join(OUT_DTYPES.values())} for weights that a model holds, got "
                f"{format!r}; NGramEmbedding.from_pretrained reads other formats from a checkpoint"
            )
        plan = HashPlan.from_config(config).with_buffers(
            {name: [int(value) for value in tensor.tolist()] for name, tensor in buffers.items()}, "the model"
        )
        shape = [plan.padded_rows, config.head_dim]
        if list(weight.shape) != shape or weight.is_meta:
            raise ConfigError(
                f"weight must be {shape} in memory, got {list(weight.shape)} on {weight.device} (one that is "
                "offloaded to disk cannot be taken over)"
            )
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
        return Table(self._format, weight.view(torch.uint8), 0)

    def write_weight(self, weight: torch.Tensor) -> None:
        """Write all rows, converted to the table's format block by block."""
        for begin, end in self._blocks():
            rows = weight[begin:end].to(self._stored_dtype).contiguous()
            self.table.write("weight", begin, rows.view(torch.uint8))

    def weight(self) -> torch.Tensor:
        """Return the table as a weight of its stored dtype: the same memory."""
        return self.table.slots.view(self._stored_dtype)

    @property
    def _stored_dtype(self) -> torch.dtype:
        return next(dtype for dtype, name in OUT_DTYPES.items() if name == self._format.name)

    def _blocks(self) -> list[tuple[int, int]]:
        rows, step = self.table.slots.shape[0], max(1, _BLOCK_BYTES // self._format.slot_bytes)
        return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]
