"""The module that serves one PLE layer."""

from __future__ import annotations

import contextlib
import os

import torch

from ngram_ple import layer_ops
from ngram_ple.checkpoint.identity import table_identity
from ngram_ple.checkpoint.open import open_table
from ngram_ple.config import NGramConfig
from ngram_ple.errors import ConfigError, shown
from ngram_ple.formats import out_dtype_name, row_format
from ngram_ple.hash_plan import HashPlan
from ngram_ple.lookup_module import LookupModule
from ngram_ple.parallel import EtpGroup, ShardedTable, on_all_ranks
from ngram_ple.prefetch import Prefetcher
from ngram_ple.stats import Watch
from ngram_ple.tables import (
    NodeCopy,
    PinnedTable,
    Table,
    home_device,
    make_table,
    node_copy,
    parse_device,
)
from ngram_ple.tables.reader import check_options, has_readers


class NGramEmbedding(LookupModule):
    """N-gram embedding of one PLE layer: each token's H hashed rows, side by side.

    ``forward`` computes ``table[ngram_ids(tokens)]`` decoded to `dtype`, ``[T, H·head_dim]``; see
    `ngram_ple.ops.ngram_ids` and `ngram_ple.ops.lookup` for both halves.

    The table is raw bytes outside Parameters and buffers: ``.to()``, ``.half()`` and their like leave it, and
    the hash buffers beside it, where and as they are, with a warning where that would surprise.
    ``state_dict()`` has the three hash buffers, and the table too while `table_in_state_dict` is True. There
    are no gradients. Construction on the meta device takes no memory until ``to_empty``.

    Parameters
    ----------
    config : NGramConfig
    format : str
        How rows are stored: bf16, fp16, fp32, fp8, fp8-rowwise or nvfp4.
    placement : {"device", "pinned", "cpu"}
        Where the table lives: in the memory of a GPU, in pinned host memory that a GPU reads in place, or in
        host memory for the CPU.
    device : torch.device, optional
        For ``"device"`` and ``"pinned"``: which GPU, the current one by default.
    dtype : torch.dtype
        Of the result: bfloat16, float16 or float32.
    plan : HashPlan, optional
        Derived from `config` by default.
    max_tokens : int, optional
        Tokens of the largest batch that is prefetched; see `start_prefetch`.
    prefetch_depth : int
        How many batches may be started before the first is finalized.
    share : NodeCopy, optional
        Memory for the table that other processes of the host use too, from `ngram_ple.tables.node_copy`; with
        ``share="node"``, `from_pretrained` sees to it.
    etp : EtpGroup, optional
        Ranks that share the table by rows. Construction, loading and every step are collective then: each
        rank takes part, with as many tokens as it has, zero included.
    reduce_results : bool
        With `etp`, for ranks that all embed the same tokens: False returns this rank's rows with zeros for
        the others', to a caller that sums over the group itself.
    strategy : {"auto", "zero-copy", "ordered", "staged"}
        How a GPU reads pinned rows: each in place; distinct rows in address order; gathered by CPU workers
        first. ``"auto"`` measures the ways when the table is made and goes by a batch's size.
    host_threads : int, optional
        Those workers; all CPUs but three by default, 24 at most.
    prefetch_sms : int, optional
        At most so many multiprocessors look prefetched rows up, the others are left to the main stream. Rows
        that workers gather need none, see docs/host_tables.md.

    Attributes
    ----------
    table : ngram_ple.tables.Table
    table_in_state_dict : bool
        Whether ``state_dict`` includes the table's bytes; False by default.
    layer_name : str
        What `ngram_ple.layer_ops` know this layer as; may be set, to a name that no other layer has.

    Raises
    ------
    ConfigError
        An unknown format, placement or dtype, a head_dim that the format does not allow, no GPU.
    PinnedMemoryError
        The table does not fit into pinned memory, with the numbers.
    """

    def __init__(
        self,
        config: NGramConfig,
        *,
        format: str = "bf16",
        placement: str = "device",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        plan: HashPlan | None = None,
        max_tokens: int | None = None,
        prefetch_depth: int = 1,
        share: NodeCopy | None = None,
        etp: EtpGroup | None = None,
        reduce_results: bool = True,
        strategy: str = "auto",
        host_threads: int | None = None,
        prefetch_sms: int | None = None,
    ) -> None:
        if not isinstance(config, NGramConfig):
            raise ConfigError(f"config must be an NGramConfig, got {type(config).__name__}")
        geometry = row_format(format, config.head_dim)
        out_dtype = out_dtype_name(dtype)
        plan = HashPlan.from_config(config) if plan is None else plan
        if share is not None and not isinstance(share, NodeCopy):
            raise ConfigError(f"share must be what node_copy() gives, or None, got {shown(share)}")
        if etp is not None and not isinstance(etp, EtpGroup):
            raise ConfigError(f"etp must be an EtpGroup or None, got {shown(etp)}")
        on_meta = (torch.get_default_device() if device is None else parse_device(device)).type == "meta"
        home = on_all_ranks(
            etp,
            "finding the device",
            lambda: torch.device("meta") if on_meta else home_device(placement, device),
        )
        if max_tokens is not None:
            _check_positive("max_tokens", max_tokens)
        _check_positive("prefetch_depth", prefetch_depth)
        if share is not None:
            _check_shareable("meta" if on_meta else placement)
        if etp is not None and share is not None:
            raise ConfigError("share and etp exclude each other, got both")
        if etp is None and not reduce_results:
            raise ConfigError("reduce_results=False needs etp, got None")
        self._share = share
        self.etp, self._reduce_results = etp, reduce_results
        check_options(strategy, host_threads)
        if prefetch_sms is not None:
            _check_positive("prefetch_sms", prefetch_sms)
        self._reading = {"strategy": strategy, "host_threads": host_threads}  # _materialize needs all three
        self._prefetch_size = (max_tokens, prefetch_depth, prefetch_sms or 0)
        super().__init__(config, geometry, plan, placement, home, dtype)
        self._out_dtype = out_dtype
        self._layer_name = layer_ops.register(self)

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        layer: int = 0,
        *,
        format: str | None = None,
        placement: str = "device",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        max_tokens: int | None = None,
        prefetch_depth: int = 1,
        share: str | None = None,
        etp: EtpGroup | None = None,
        reduce_results: bool = True,
        strategy: str = "auto",
        host_threads: int | None = None,
        prefetch_sms: int | None = None,
        threads: int | None = None,
        progress: bool = False,
    ) -> NGramEmbedding:
        """Load PLE layer `layer` of a checkpoint folder.

        Headers are checked before the table is allocated, rows are read in blocks by many threads straight to
        their place, and the load ends with proof that every row was written once.

        Parameters
        ----------
        path : path
            A Hugging Face checkpoint folder; the PLE files alone suffice.
        layer : int
            Index among the PLE layers.
        format : str, optional
            The format it must be stored in; whatever it is by default.
        placement, device, dtype, max_tokens, prefetch_depth, strategy, host_threads, prefetch_sms
            As for the class.
        share : {"node"}, optional
            Whether the processes of this host that load the same table hold one copy of it, in host memory.
            The first fills it while the others wait; where that is impossible, which a line in the log tells,
            each has its own.
        etp, reduce_results
            As for the class. Each rank reads its own rows alone; one that fails makes all fail.
        threads : int, optional
            Reading threads.
        progress : bool
            Whether to show a progress bar on stderr.

        Raises
        ------
        ConfigError, CheckpointError
            What is wrong, naming the field, tensor or file. Nothing half-loaded is returned.
        PinnedMemoryError
            There is no room, or the process that fills a shared table failed.
        """
        if share not in (None, "node"):
            raise ConfigError(f"share must be 'node' or None, got {shown(share)}")
        if share is not None:
            _check_shareable(placement)
        if share is not None and etp is not None:
            raise ConfigError("share and etp exclude each other, got both")
        found = on_all_ranks(etp, "opening the checkpoint", lambda: open_table(path, layer, format))
        config, stored, plan = found.config, found.stored, found.plan
        shared = node_copy(table_identity(stored, 0, plan.padded_rows)) if share else contextlib.nullcontext()
        with shared as copy:
            embedding = cls(
                config,
                format=stored.format,
                placement=placement,
                device=device,
                dtype=dtype,
                plan=plan,
                max_tokens=max_tokens,
                prefetch_depth=prefetch_depth,
                share=copy,
                etp=etp,
                reduce_results=reduce_results,
                strategy=strategy,
                host_threads=host_threads,
                prefetch_sms=prefetch_sms,
            )
            embedding._read(stored, found.derived, threads, progress)
        return embedding

    @property
    def layer_name(self) -> str:
        """The layer's name in `ngram_ple.layer_ops`, whose operators the module calls when compiled."""
        return self._layer_name

    @layer_name.setter
    def layer_name(self, name: str) -> None:
        self._layer_name = layer_ops.register(self, name, self._layer_name)

    def extra_repr(self) -> str:
        """Return format, dtype, placement, rows, bytes, and the place in the ETP group."""
        if not isinstance(self._rows, ShardedTable):
            return super().extra_repr()
        group, table = self._rows.group, self.table
        return (
            f"{super().extra_repr()}, etp=rank {group.rank} of {group.size} with rows "
            f"{table.row_start}..{table.row_end - 1}, exchange={self._rows.exchange}"
        )

    def _make_table(self, device: torch.device) -> Table:
        """Allocate the rows that this rank owns."""
        if self.etp is None:
            self._rows = super()._make_table(device)
            return self._rows
        self._rows = ShardedTable(
            self.etp,
            self._format,
            self.placement,
            self._plan.padded_rows,
            device,
            lambda start, end: make_table(self.placement, self._format, start, end, device),
            self._reduce_results,
        )
        return self._rows.table

    def _materialize(self, device: torch.device) -> None:
        super()._materialize(device)
        on_all_ranks(self.etp, "making the table's readers", lambda: self._equip(device))

    def _equip(self, device: torch.device) -> None:
        """Make what reads the table, ahead of time too, and counts."""
        heads, max_tokens = len(self._plan.head_sizes), self._prefetch_size[0]
        if isinstance(self.table, PinnedTable) and has_readers() and self.table.nbytes > 0:
            self.table.open_reader(**self._reading, max_ids=max_tokens and max_tokens * heads)
        self._watch = Watch(self.table, heads, device)  # what the reader has measured does not count
        self._prefetcher = None
        if self.placement == "pinned" and device.type != "meta":
            ticket = torch.zeros(1, dtype=torch.int64, device=device)
            self.register_buffer("_ticket", ticket, persistent=False)
            self._prefetcher = Prefetcher(
                self.table,
                heads,
                self.dtype,
                out_dtype_name(self.dtype),
                device,
                *self._prefetch_size,
            )


def _check_shareable(placement: str) -> None:
    if placement not in ("pinned", "cpu"):
        raise ConfigError(f"share needs placement 'pinned' or 'cpu', got {placement!r}")


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a positive int, got {shown(value)}")
