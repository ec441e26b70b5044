"""A table module that is filled tensor by tensor, or from a checkpoint's files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from tqdm import tqdm

from ngram_ple.checkpoint.loader import TableLoader
from ngram_ple.checkpoint.open import StoredTable, read_table
from ngram_ple.config import NGramConfig
from ngram_ple.errors import NgramPleError
from ngram_ple.formats import RowFormat
from ngram_ple.hash_plan import HashPlan
from ngram_ple.parallel import EtpGroup, RankGaveUpError, on_all_ranks
from ngram_ple.table_module import TableModule


class LoadedModule(TableModule):
    """Proves that every row came once before the table may be used.

    Parameters
    ----------
    config : NGramConfig
    format, plan, placement, device, dtype
        See `TableModule`.
    """

    etp: EtpGroup | None = None
    _loading: TableLoader | None

    def __init__(
        self,
        config: NGramConfig,
        format: RowFormat,
        plan: HashPlan,
        placement: str,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(format, plan, placement, device, dtype)
        self.config = config
        self._plan_before_loading = plan

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Take tensors by name, in any order and over any number of calls, until `finish_loading`.

        Parameters
        ----------
        weights : iterable of (str, Tensor)
            Names relative to the embedding's prefix (``ngram_embedding.shard_3.weight``).

        Returns
        -------
        set of str
            The parameters and buffers filled; each shard counts as ``ngram_embedding.weight``.

        Raises
        ------
        CheckpointError
            An unknown, misshapen, wrongly typed, doubled or out-of-range tensor. The load is over then; the
            next call starts another one.
        NgramPleError
            The module is on the meta device, or its table is shared and filled.
        """
        self._require_own_table()
        if self.table.slots.is_meta:
            raise NgramPleError(
                "load_weights needs memory, got a module on the meta device: call to_empty first"
            )
        weights = iter(weights)
        first = next(weights, None)
        if first is None:
            return set()  # nothing came, nothing is given up
        if self._loading is None or self._loaded:
            self._loading = TableLoader(
                self.table,
                padded_rows=self._plan.padded_rows,
                split_ngram_parts=self.config.split_ngram_parts,
            )
            self._loaded = False
        filled = set()
        try:
            for name, tensor in itertools.chain([first], weights):
                filled.add(self._loading.add(name, tensor))
        except BaseException as error:
            self._loading = None  # the next call starts over
            if self.etp is not None and isinstance(error, Exception):
                self.etp.fail(error)
            raise
        return {name for name in filled if name is not None}

    def finish_loading(self) -> None:
        """Prove that every owned row and scale came once; the table can be used from then on.

        Loading again afterwards fills the same memory, so addresses under captured graphs stay valid.

        Raises
        ------
        CheckpointError
            What is missing; more tensors may be loaded then, and the call repeated. Or hash buffers that fit
            neither the configuration nor the table: the load is over then, the next one starts anew.
        ExchangeError
            With `etp`: another rank failed; if that was in `load_weights`, the load is over on all ranks.
        """
        try:
            loading = on_all_ranks(self.etp, "the proof that the table is complete", self._proved)
        except RankGaveUpError:
            self._loading = None  # that rank starts over, and so do all
            raise
        self._loading = None

        def finish() -> None:
            self._set_plan(self._plan_before_loading.with_buffers(loading.buffers, "the loaded tensors"))
            loading.finish()

        on_all_ranks(self.etp, "the end of loading", finish, lambda _: self._shared_facts())
        self._finish_table()

    def _proved(self) -> TableLoader:
        if self._loading is None:
            raise NgramPleError("finish_loading needs load_weights first, got no tensor")
        self._loading.prove()
        return self._loading

    def _shared_facts(self) -> object:
        """Return what must be equal on all ranks of a group, who hash and decode for one another."""
        plan, scale = self._plan, self.table.global_scale
        return (
            plan.multipliers, plan.head_sizes, plan.head_offsets, str(self.dtype),
            None if scale is None else float(scale),
        )  # fmt: skip

    def _read(self, stored: StoredTable, derived: HashPlan, threads: int | None, progress: bool) -> None:
        """Fill the table from files; `derived` is the plan before the stored buffers had their say."""
        if self.table.slots.is_meta:
            raise NgramPleError("from_pretrained needs memory, got the meta device")
        self._plan_before_loading = derived
        if self._loaded:  # by another process
            return
        total = sum(tensor.nbytes for tensor in stored.tensors.values() if len(tensor.shape) == 2)
        with tqdm(
            total=total,
            desc=f"reading {stored.format} table",
            unit="B",
            unit_scale=True,
            disable=not progress,
        ) as bar:

            def advance(nbytes: int) -> None:
                bar.update(nbytes)
                if self._share is not None:
                    self._share.show_progress()

            on_all_ranks(
                self.etp,
                "reading the table",
                lambda: read_table(
                    stored, self.table, padded_rows=self._plan.padded_rows, threads=threads, progress=advance
                ),
                lambda _: self._shared_facts(),
            )
        self._finish_table()

    def _materialize(self, device: torch.device) -> None:
        self._loading = None  # one under way would fill the memory that is given up
        super()._materialize(device)
        if self._share is not None and self._share.is_filled:
            if self.table.global_scale is not None:
                self.table.set_global_scale(self._share.facts["global_scale"])
            self._loaded = True
