"""The operators ``torch.ops.ngram_ple.*`` as typed functions.

The functions here are the operators themselves with keyword names and types; those over tables in blocks are
in `ngram_ple.peer_ops`. Every one here has an ``out`` form in ``torch.ops.ngram_ple``
(``torch.ops.ngram_ple.lookup.out(..., out=out)``), which writes in place and returns nothing. Operators raise
RuntimeError: torch's stable ABI knows no other exception.
"""

from __future__ import annotations

from typing import cast

import torch

from ngram_ple import registration

_ops = registration.load()


def ngram_ids(
    input_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    ngram_context: torch.Tensor,
    layer_multipliers: torch.Tensor,
    ngram_heads_vocab_sizes: torch.Tensor,
    ngram_heads_offsets: torch.Tensor,
    eos_token_id: int,
    heads_per_ngram: int,
) -> torch.Tensor:
    """Hash the n-grams that end in each token of a ragged batch to table rows.

    For orders n = 2..N and heads k = 0..K-1, with h = (n-2)·K + k::

        mixed(n) = tok·m[0] ^ pred_1·m[1] ^ … ^ pred_(n-1)·m[n-1]        (wrapping signed 64-bit)
        id[h]    = floor_mod(mixed(n), ngram_heads_vocab_sizes[h]) + ngram_heads_offsets[h]

    A predecessor comes from the token's own request, before its chunk from `ngram_context`; the first one
    that is EOS and every older one count as EOS.

    Parameters
    ----------
    input_ids : Tensor
        int32 or int64 ``[T]``, the requests' tokens one after another.
    query_start_loc : Tensor
        int32 or int64 ``[R + 1]``, where each request begins; starts at 0, does not decrease, ends at most at
        T. Tokens from ``query_start_loc[R]`` on (a captured graph's padding) count as the last request's.
    ngram_context : Tensor
        int32 or int64 ``[>= R, N - 1]``, the tokens before each request's chunk, newest in the last column,
        EOS where there is none. The row stride is free.
    layer_multipliers, ngram_heads_vocab_sizes, ngram_heads_offsets : Tensor
        int64 ``[N]``, ``[H]``, ``[H]``, see `ngram_ple.HashPlan`.
    eos_token_id, heads_per_ngram : int
        EOS and K; H = (N - 1)·K.

    Returns
    -------
    Tensor
        int64 ``[T, H]`` on the inputs' device.

    Raises
    ------
    RuntimeError
        A wrong dtype, shape, device or stride; on the CPU also boundaries that are none. On a GPU what only
        the values tell is not looked at, and never leads outside the buffers.

    Notes
    -----
    Source: the public Qwen4Exp n-gram embedding (`transformers`, ``Qwen4ExpTextNGramEmbedding``).
    """
    return cast(
        torch.Tensor,
        _ops.ngram_ids(
            input_ids,
            query_start_loc,
            ngram_context,
            layer_multipliers,
            ngram_heads_vocab_sizes,
            ngram_heads_offsets,
            eos_token_id,
            heads_per_ngram,
        ),
    )


def lookup(
    ids: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
    *,
    format: str,
    out_dtype: str,
    head_dim: int,
    row_start: int = 0,
    row_end: int = -1,
) -> torch.Tensor:
    """Look rows up and decode them.

    Parameters
    ----------
    ids : Tensor
        int32 or int64 of any shape, global row numbers. One outside ``[row_start, row_end)`` gives a row of
        zeros, and no memory is read for it.
    weight : Tensor
        ``[rows, …]`` on the ids' device or, for a GPU, in pinned host memory; contiguous: uint8, or the
        format's own dtype (bfloat16, float16, float32, float8_e4m3fn). Row i of it is global row
        ``row_start + i``.
    scale : Tensor, optional
        fp8-rowwise: float32 or bfloat16 ``[rows]`` or ``[rows, 1]``; nvfp4: uint8 or float8_e4m3fn
        ``[rows, head_dim / 16]``. None when the scales lie inside `weight`, as `RowFormat.slot_bytes` has it.
    global_scale : Tensor, optional
        float32 of one element, for fp8 and nvfp4.
    format : str
        bf16, fp16, fp32, fp8, fp8-rowwise or nvfp4.
    out_dtype : str
        bf16, fp16, fp32, or bytes for the slots as tables hold them.
    head_dim : int
        Elements of a row.
    row_start, row_end : int
        The global rows that `weight` holds; -1 stands for row_start + rows.

    Returns
    -------
    Tensor
        ``[*ids.shape, head_dim]`` of `out_dtype`; uint8 ``[*ids.shape, slot_bytes]`` for bytes. Plain formats
        are copied or converted once; fp8: ``row.to(out)·scale.to(out)``; nvfp4:
        ``(e2m1(code)·e4m3(scale))·global`` in fp32, rounded once.

    Raises
    ------
    RuntimeError
        A wrong dtype, shape, device or stride, an unknown format.
    """
    return cast(
        torch.Tensor,
        _ops.lookup(
            ids,
            weight,
            scale,
            global_scale,
            format=format,
            out_dtype=out_dtype,
            head_dim=head_dim,
            row_start=row_start,
            row_end=row_end,
        ),
    )


def embed(
    input_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    ngram_context: torch.Tensor,
    layer_multipliers: torch.Tensor,
    ngram_heads_vocab_sizes: torch.Tensor,
    ngram_heads_offsets: torch.Tensor,
    eos_token_id: int,
    heads_per_ngram: int,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
    *,
    format: str,
    out_dtype: str,
    head_dim: int,
    row_start: int = 0,
    row_end: int = -1,
) -> torch.Tensor:
    """`ngram_ids` and `lookup` in one kernel: no ids are written to memory.

    Parameters are those of `ngram_ids`, then those of `lookup` after ids.

    Returns
    -------
    Tensor
        ``[T, H·head_dim]`` of `out_dtype`, a token's H rows side by side.
    """
    return cast(
        torch.Tensor,
        _ops.embed(
            input_ids,
            query_start_loc,
            ngram_context,
            layer_multipliers,
            ngram_heads_vocab_sizes,
            ngram_heads_offsets,
            eos_token_id,
            heads_per_ngram,
            weight,
            scale,
            global_scale,
            format=format,
            out_dtype=out_dtype,
            head_dim=head_dim,
            row_start=row_start,
            row_end=row_end,
        ),
    )


def decode(
    rows: torch.Tensor,
    scale: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
    *,
    format: str,
    out_dtype: str,
    head_dim: int,
) -> torch.Tensor:
    """Decode rows that are at hand as stored.

    Parameters
    ----------
    rows : Tensor
        ``[…, row]``, what `lookup` takes as weight (with `scale`, or as slots without).
    scale, global_scale, format, out_dtype, head_dim
        As in `lookup`.

    Returns
    -------
    Tensor
        ``[…, head_dim]`` of `out_dtype`.
    """
    return cast(
        torch.Tensor,
        _ops.decode(rows, scale, global_scale, format=format, out_dtype=out_dtype, head_dim=head_dim),
    )


def row_amax(rows: torch.Tensor, *, finite_only: bool = False) -> torch.Tensor:
    """Return the largest magnitude of each row: what scales are chosen from.

    Parameters
    ----------
    rows : Tensor
        bfloat16, float16 or float32 ``[…, head_dim]``, contiguous.
    finite_only : bool
        Leave NaN and infinities out; by default they are the result of a row that has them.

    Returns
    -------
    Tensor
        float32 ``[…]``.
    """
    return cast(torch.Tensor, _ops.row_amax(rows, finite_only=finite_only))


def encode(
    rows: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    *,
    format: str,
    scale_dtype: str = "fp32",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode rows of numbers as a table stores them: what `decode` undoes, but for the rounding.

    All in fp32, each step rounded to nearest even, amax the largest finite magnitude::

        fp8          code = e4m3(x · (1 / global_scale))
        fp8-rowwise  scale = amax(row) / 448, rounded to `scale_dtype`;  code = e4m3(x · (1 / scale))
        nvfp4        scale = e4m3(max(amax(block of 16) · (1 / (6 · global_scale)), 2^-9))
                     code = e2m1(x · (1 / (scale · global_scale)))

    Magnitudes beyond the largest code become that one, infinities too, and NaN becomes zero of its sign: no
    result is NaN or infinite. A row of zeros has the scale 1 (nvfp4: its blocks 2^-9). Row scales are at
    least 2^-117. `ngram_ple.encoding.encode_rows` chooses the global scale and refuses what is not finite.

    Parameters
    ----------
    rows : Tensor
        bfloat16, float16 or float32 ``[…, head_dim]``, contiguous; nvfp4 needs a head_dim divisible by 16.
    global_scale : Tensor, optional
        float32 of one element, for fp8 (amax / 448 of the whole table) and nvfp4 (amax / 2688); finite, at
        least 2^-117. On a GPU what is less counts as that.
    format : str
        bf16, fp16, fp32, fp8, fp8-rowwise or nvfp4.
    scale_dtype : str
        fp32 or bf16: that of fp8-rowwise scales, which are rounded to it before they are used.

    Returns
    -------
    weight, scale : Tensor
        What `decode` takes as rows and scale: ``[…, head_dim]`` in the format's dtype, nvfp4 uint8
        ``[…, head_dim / 2]``; ``[…, 1]`` of `scale_dtype` for fp8-rowwise, float8_e4m3fn
        ``[…, head_dim / 16]`` for nvfp4, else an empty float32 ``[…, 0]``.

    Raises
    ------
    RuntimeError
        A wrong dtype, shape or stride, an unknown format, a global scale that is missing or not wanted.
    """
    weight, scale = _ops.encode(rows, global_scale, format=format, scale_dtype=scale_dtype)
    return weight, scale
