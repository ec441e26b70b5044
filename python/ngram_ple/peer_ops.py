"""The operators over tables in blocks, each in its own memory, as typed functions; see `ngram_ple.ops`."""

from __future__ import annotations

from typing import cast

import torch

from ngram_ple import registration

_ops = registration.load()


def lookup_peers(
    ids: torch.Tensor,
    block: torch.Tensor,
    block_addresses: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    *,
    format: str,
    out_dtype: str,
    head_dim: int,
    num_rows: int,
) -> torch.Tensor:
    """`ngram_ple.ops.lookup` over a table in equal blocks of several memories, each read where it is.

    Parameters
    ----------
    ids : Tensor
        int32 or int64 of any shape. One outside ``[0, num_rows)`` gives a row of zeros, and nothing is read.
    block : Tensor
        uint8 ``[rows, slot_bytes]`` on the ids' device: one of the blocks, which all have its shape, strides
        and alignment. Scales lie inside the rows.
    block_addresses : Tensor
        int64 ``[blocks]`` on the ids' device: where each block begins. The device must be able to read there;
        nothing checks that. Global row i is row ``i % rows`` of block ``i // rows``.
    global_scale, format, out_dtype, head_dim
        As in `ngram_ple.ops.lookup`.
    num_rows : int
        Rows of the whole table, at most those of all blocks.

    Returns
    -------
    Tensor
        ``[*ids.shape, head_dim]`` of `out_dtype`, as from `lookup`. There is no ``out`` form.
    """
    return cast(
        torch.Tensor,
        _ops.lookup_peers(
            ids,
            block,
            block_addresses,
            global_scale,
            format=format,
            out_dtype=out_dtype,
            head_dim=head_dim,
            num_rows=num_rows,
        ),
    )


def embed_peers(
    input_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    ngram_context: torch.Tensor,
    layer_multipliers: torch.Tensor,
    ngram_heads_vocab_sizes: torch.Tensor,
    ngram_heads_offsets: torch.Tensor,
    eos_token_id: int,
    heads_per_ngram: int,
    block: torch.Tensor,
    block_addresses: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    *,
    format: str,
    out_dtype: str,
    head_dim: int,
    num_rows: int,
) -> torch.Tensor:
    """`ngram_ple.ops.ngram_ids` and `lookup_peers` in one kernel.

    Parameters are those of `ngram_ids`, then those of `lookup_peers` after ids.

    Returns
    -------
    Tensor
        ``[T, H·head_dim]`` of `out_dtype`. There is no ``out`` form.
    """
    return cast(
        torch.Tensor,
        _ops.embed_peers(
            input_ids,
            query_start_loc,
            ngram_context,
            layer_multipliers,
            ngram_heads_vocab_sizes,
            ngram_heads_offsets,
            eos_token_id,
            heads_per_ngram,
            block,
            block_addresses,
            global_scale,
            format=format,
            out_dtype=out_dtype,
            head_dim=head_dim,
            num_rows=num_rows,
        ),
    )
