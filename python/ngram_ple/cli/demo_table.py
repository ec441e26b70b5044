"""The demo's table: seeded Gaussian rows, stored in any format, and decoded again in plain torch.

The encoders are as plain as they can be: scales from the largest value, codes by the nearest one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_PLAIN = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_STD = 0.02
_LARGEST = 8 * _STD  # the global scales represent values up to here
_BLOCK_ROWS = 32  # rows of one seed
_E4M3_MAX = 448.0
_E2M1_MAX = 6.0
_NVFP4_GROUP = 16  # values that share a block scale
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_E2M1_MIDDLES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


class DemoTable:
    """Rows that follow from a seed and their number alone, so that any of them can be made again.

    Parameters
    ----------
    format : str
        bf16, fp16, fp32, fp8, fp8-rowwise or nvfp4.
    head_dim, seed : int

    Attributes
    ----------
    global_scale : Tensor
        One fp32 value; 1 for formats without one.
    """

    def __init__(self, format: str, head_dim: int, seed: int) -> None:
        self.format = format
        self._head_dim = head_dim
        self._seed = seed
        largest_code = {"fp8": _E4M3_MAX, "nvfp4": _E4M3_MAX * _E2M1_MAX}.get(format, _LARGEST)
        self.global_scale = torch.tensor([_LARGEST / largest_code])

    def weight(self, first: int, last: int) -> torch.Tensor:
        """Return rows [first, last) as a checkpoint stores them."""
        values = self._rows(first, last)
        return self._codes(values, self._scales(values))

    def weight_scale(self, first: int, last: int) -> torch.Tensor:
        """Return the scales of rows [first, last) as a checkpoint stores them."""
        return self._scales(self._rows(first, last))

    def decoded(self, rows: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Decode rows in plain torch: ``[len(rows), head_dim]``, what a lookup must give."""
        blocks = sorted({row // _BLOCK_ROWS for row in rows})
        place = {block: index * _BLOCK_ROWS for index, block in enumerate(blocks)}
        made = torch.cat([self._rows(block * _BLOCK_ROWS, (block + 1) * _BLOCK_ROWS) for block in blocks])
        values = made[[place[row // _BLOCK_ROWS] + row % _BLOCK_ROWS for row in rows]]
        scale = self._scales(values)
        weight = self._codes(values, scale)
        if self.format in _PLAIN:
            return weight.to(dtype)
        if self.format == "nvfp4":
            codes = torch.stack((weight & 15, weight >> 4), dim=2).flatten(1).long()
            decoded = torch.where(codes < 8, _E2M1[codes & 7], -_E2M1[codes & 7])
            scales = scale.float().repeat_interleave(_NVFP4_GROUP, dim=1)
            return (decoded * scales * self.global_scale).to(dtype)
        return weight.to(dtype) * scale.to(dtype)

    def _rows(self, first: int, last: int) -> torch.Tensor:
        """Make rows [first, last) before they are encoded, fp32 ``[last - first, head_dim]``."""
        begin = first // _BLOCK_ROWS
        blocks = range(begin, -(-last // _BLOCK_ROWS))
        gaussian = np.empty((len(blocks), _BLOCK_ROWS, self._head_dim), dtype=np.float32)
        for block, number in zip(gaussian, blocks, strict=True):
            np.random.default_rng((self._seed, number)).standard_normal(dtype=np.float32, out=block)
        values = torch.from_numpy(gaussian).flatten(0, 1)[first - begin * _BLOCK_ROWS :][: last - first]
        return values.mul_(_STD).clamp_(-_LARGEST, _LARGEST)

    def _scales(self, values: torch.Tensor) -> torch.Tensor:
        """Return what codes are multiplied by: a scale a row or a block, or the global one, or 1."""
        if self.format == "fp8-rowwise":
            return values.abs().amax(dim=1, keepdim=True) / _E4M3_MAX
        if self.format == "nvfp4":
            largest = values.view(values.shape[0], -1, _NVFP4_GROUP).abs().amax(dim=2)
            return (largest / (_E2M1_MAX * self.global_scale)).to(torch.float8_e4m3fn)
        return self.global_scale

    def _codes(self, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return rows as stored."""
        if self.format in _PLAIN:
            return values.to(_PLAIN[self.format])
        if self.format != "nvfp4":
            return (values / scale).clamp_(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
        units = values.view(values.shape[0], -1, _NVFP4_GROUP) / (
            scale.float() * self.global_scale
        ).unsqueeze(2)
        signs = (units < 0).to(torch.uint8) << 3
        codes = (
            torch.bucketize(units.abs_(), _E2M1_MIDDLES, out_int32=True).to(torch.uint8) | signs
        ).flatten(1)
        return codes[:, 0::2] | codes[:, 1::2] << 4
