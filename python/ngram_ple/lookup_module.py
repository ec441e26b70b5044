"""What a loaded table module computes: ids, rows at once, rows ahead of time, and counts of both."""

from __future__ import annotations

import torch

from ngram_ple import ops
from ngram_ple.errors import NgramPleError, PrefetchError
from ngram_ple.loaded_module import LoadedModule
from ngram_ple.parallel import ShardedTable, TokenCounts
from ngram_ple.prefetch import Prefetcher
from ngram_ple.stats import LookupStats, Watch
from ngram_ple.tables import Table


class LookupModule(LoadedModule):
    """Hashes batches and looks their rows up; who constructs it makes what the attributes below name."""

    _rows: Table | ShardedTable  # what looks ids up
    _out_dtype: str
    _layer_name: str
    _watch: Watch
    _prefetcher: Prefetcher | None
    _ticket: torch.Tensor  # keeps the halves of a compiled prefetch in order, see `layer_ops`

    def compute_ngram_ids(
        self,
        input_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        ngram_context: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hash a ragged batch: int64 ``[T, H]``, into `out` when given; see `ngram_ple.ops.ngram_ids`."""
        arguments = (
            input_ids.contiguous(),
            query_start_loc.contiguous(),
            ngram_context,
            *self._buffers_in_order(),
            self.config.eos_token_id,
            self.config.heads_per_ngram,
        )
        if out is None:
            return ops.ngram_ids(*arguments)
        torch.ops.ngram_ple.ngram_ids.out(*arguments, out=out)
        return out

    def forward(
        self,
        input_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        ngram_context: torch.Tensor,
        out: torch.Tensor | None = None,
        token_counts: TokenCounts | None = None,
    ) -> torch.Tensor:
        """Embed a ragged batch: ``[T, H·head_dim]`` of `dtype`, into `out` when given.

        A prefetch that this thread started is finalized, else one kernel hashes and looks up; with `etp`, the
        group exchanges rows.

        Parameters
        ----------
        input_ids, query_start_loc, ngram_context : Tensor
            int32 or int64 ``[T]``, ``[R + 1]``, ``[>= R, N - 1]``; see `ngram_ple.ops.ngram_ids`.
        token_counts : sequence of int, optional
            With `etp`: the tokens of each data-parallel rank of the group, which it asks them for otherwise.

        Raises
        ------
        NgramPleError
            The table is not loaded, or `torch.export` would bake it into its program as a constant.
        PrefetchError
            A prefetch was started for another count of tokens.
        RuntimeError
            A wrong dtype, shape or device, from the operator.
        """
        # Dynamo takes is_exporting() for true in torch.compile too on torch 2.11.
        if torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
            raise NgramPleError(
                "torch.export would copy the table into the program as a constant: export a function that "
                "calls ngram_ple.ops.embed with the table (embedding.table.slots) as an input instead"
            )
        batch = (input_ids, query_start_loc, ngram_context)
        if torch.compiler.is_compiling():
            return self._compiled_forward(batch, out)
        self._require_loaded()
        if self._prefetcher is not None and self._prefetcher.started:
            return self.finalize_prefetch(input_ids.shape[0], out)
        with self._watch.batch("embed", input_ids.shape[0], lambda: self.compute_ngram_ids(*batch)):
            arguments = (
                (input_ids.contiguous(), query_start_loc.contiguous(), ngram_context),
                self._buffers_in_order(),
                self.config.eos_token_id,
                self.config.heads_per_ngram,
                self._out_dtype,
                out,
            )
            if isinstance(self._rows, ShardedTable):
                return self._rows.embed(*arguments, token_counts)
            return self._rows.embed(*arguments)

    def _compiled_forward(
        self, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor], out: torch.Tensor | None
    ) -> torch.Tensor:
        """Call the operator that knows the layer by name: the table stays out of the graph."""
        op = torch.ops.ngram_ple.embed_layer
        if out is not None:
            op(*batch, out, self._layer_name)
            return out
        rows: torch.Tensor = (
            op.rows(*batch, self._layer_name)
            if self._prefetcher is None
            else op.ticket(*batch, self._ticket, self._layer_name)  # after a start_prefetch before it
        )
        return rows

    def sync_lookup(
        self,
        ngram_ids: torch.Tensor,
        out: torch.Tensor | None = None,
        token_counts: TokenCounts | None = None,
    ) -> torch.Tensor:
        """Look ids up on the current stream: ``[T, H]`` → ``[T, H, head_dim]``, into `out` when given."""
        if torch.compiler.is_compiling():
            if out is None:
                rows: torch.Tensor = torch.ops.ngram_ple.lookup_layer.rows(ngram_ids, self._layer_name)
                return rows
            torch.ops.ngram_ple.lookup_layer(ngram_ids, out, self._layer_name)
            return out
        self._require_loaded()
        with self._watch.batch("lookup", ngram_ids.shape[0], lambda: ngram_ids):
            return self._look_up(ngram_ids.contiguous(), out, token_counts)

    def _look_up(
        self, ids: torch.Tensor, out: torch.Tensor | None, token_counts: TokenCounts | None
    ) -> torch.Tensor:
        if isinstance(self._rows, ShardedTable):
            return self._rows.lookup(ids, self._out_dtype, out, token_counts)
        return self._rows.lookup(ids, self._out_dtype, out)

    @property
    def supports_prefetch(self) -> bool:
        """Whether `start_prefetch` does anything: for pinned tables; others are read fast where they are."""
        return self._prefetcher is not None

    def start_prefetch(
        self,
        input_ids: torch.Tensor,
        query_start_loc: torch.Tensor,
        ngram_context: torch.Tensor,
        token_counts: TokenCounts | None = None,
    ) -> None:
        """Begin looking a batch up on a side stream; nothing on placements without prefetch.

        The current stream hashes the batch, so the inputs may be overwritten in that stream's order. Works
        eagerly, and in a graph capture that has `finalize_prefetch` too; each replay hashes what the inputs
        hold by then. Buffers are allocated beforehand for `max_tokens`, or without it by the first batch of a
        size. The module must outlive the graphs that know its buffers.

        Raises
        ------
        PrefetchError
            `prefetch_depth` batches are under way, this one is larger than `max_tokens`, or there is no
            buffer for it inside a capture.
        NgramPleError
            The table is not loaded.
        RuntimeError
            A wrong dtype, shape or device, from the operator.
        """
        if self._prefetcher is not None:
            if torch.compiler.is_compiling():
                torch.ops.ngram_ple.start_prefetch_layer(
                    input_ids, query_start_loc, ngram_context, self._ticket, self._layer_name
                )
                return
            self._require_loaded()
            inputs, tokens = (input_ids, query_start_loc, ngram_context), input_ids.shape[0]
            with self._watch.batch("start", tokens, lambda: self.compute_ngram_ids(*inputs)):
                self._prefetcher.start(
                    tokens,
                    lambda ids: self.compute_ngram_ids(*inputs, out=ids),
                    None if self.etp is None else lambda ids, rows: self._look_up(ids, rows, token_counts),
                )

    def finalize_prefetch(self, total_tokens: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """Wait, on the current stream, for the oldest batch that this thread started.

        Returns
        -------
        Tensor
            ``[total_tokens, H·head_dim]`` of `dtype`: `out` when given, else memory of its own.

        Raises
        ------
        PrefetchError
            The placement has no prefetch, this thread started none, or one of another count of tokens or on
            the other side of a capture's boundary.
        """
        if self._prefetcher is None:
            raise PrefetchError(
                "finalize_prefetch needs a placement with prefetch (supports_prefetch), got "
                f"{self.placement!r}"
            )
        if torch.compiler.is_compiling():
            if out is None:
                shape = (total_tokens, self.config.ple_embed_dim)
                out = torch.empty(shape, dtype=self.dtype, device=self._ticket.device)
            torch.ops.ngram_ple.finalize_prefetch_layer(self._ticket, out, self._layer_name)
            return out
        with self._watch.stage("wait"):
            rows: torch.Tensor = self._prefetcher.finalize(total_tokens, out)
        return rows

    def drop_prefetch(self) -> None:
        """Forget what this thread started and did not finalize, after a step that was given up."""
        if self._prefetcher is not None:
            self._prefetcher.drop()

    def stats(self) -> LookupStats:
        """Return what was looked up since construction or `reset_stats`; in detail it waits for the GPU."""
        return self._watch.stats()

    def reset_stats(self) -> None:
        """Begin to count at zero again."""
        self._watch.reset()

    def set_detailed_stats(self, detailed: bool) -> None:
        """Count distinct rows, replays of graphs and times too, or no longer.

        It costs: every batch is hashed once more and its ids are sorted, on the calling stream. Graphs count
        their replays if they were captured meanwhile. Set it outside of captures.
        """
        self._watch.set_detailed(detailed)
