"""Padded batches as the ragged ones that the operators take."""

from __future__ import annotations

import torch

from ngram_ple.errors import ConfigError, shown


def padded_batch(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    ngram_size: int,
    eos_token_id: int,
    ngram_context: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make the ragged inputs of a padded batch: B requests of S tokens each, without a sync.

    Masked tokens become EOS, so a request that is padded on the left hashes as if it began at its first
    token; rows at masked positions mean nothing.

    Parameters
    ----------
    input_ids : Tensor
        int32 or int64 ``[B, S]``.
    attention_mask : Tensor, optional
        ``[B, S]`` of bool or numbers, zero where there is no token.
    ngram_size, eos_token_id : int
        N and EOS.
    ngram_context : Tensor, optional
        int32 or int64 ``[B, N - 1]``, the tokens before; EOS by default.

    Returns
    -------
    tuple of Tensor
        ``input_ids [B·S]``, ``query_start_loc [B + 1]``, ``ngram_context [B, N - 1]``, what `NGramEmbedding`
        takes; its result is ``.view(B, S, -1)``.

    Raises
    ------
    ConfigError
        A shape or dtype that does not fit, N below 2.
    """
    if ngram_size < 2:
        raise ConfigError(f"ngram_size must be at least 2, got {shown(ngram_size)}")
    if input_ids.dim() != 2:
        raise ConfigError(f"input_ids must be [B, S], got {list(input_ids.shape)}")
    if input_ids.dtype not in (torch.int32, torch.int64):
        raise ConfigError(f"input_ids must be int32 or int64, got {input_ids.dtype}")
    batch, length = input_ids.shape
    if attention_mask is not None:
        if attention_mask.shape != input_ids.shape:
            raise ConfigError(
                f"attention_mask must have the shape {list(input_ids.shape)} of input_ids, got "
                f"{list(attention_mask.shape)}"
            )
        input_ids = torch.where(attention_mask.bool(), input_ids, eos_token_id)
    if ngram_context is None:
        ngram_context = input_ids.new_full((batch, ngram_size - 1), eos_token_id)
    elif ngram_context.shape != (batch, ngram_size - 1):
        raise ConfigError(
            f"ngram_context must be [{batch}, {ngram_size - 1}], got {list(ngram_context.shape)}"
        )
    bounds = torch.arange(batch + 1, device=input_ids.device, dtype=torch.int64) * length
    return input_ids.reshape(-1), bounds, ngram_context
