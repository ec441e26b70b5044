"""A module around a table: what may and what may not be done to its memory."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from ngram_ple.errors import ConfigError, NgramPleError, NgramPleWarning
from ngram_ple.formats import RowFormat
from ngram_ple.hash_plan import BUFFER_FIELDS, HashPlan
from ngram_ple.tables import NodeCopy, PinnedTable, Table, home_device, make_table

_log = logging.getLogger("ngram_ple")
_TABLE_KEY = "ngram_embedding.slots"
_SCALE_KEY = "ngram_embedding.global_scale"
_Self = TypeVar("_Self", bound="TableModule")
_forks = 0  # between the first process and this one
_of_gpus: weakref.WeakSet[TableModule] = weakref.WeakSet()


class TableModule(torch.nn.Module):
    """Holds one table and the hash buffers beside it, where and as they were made.

    The table is raw bytes, neither Parameter nor buffer: no cast, move or copy of a model reaches it.

    Parameters
    ----------
    format : RowFormat
    plan : HashPlan
    placement : str
        One of `ngram_ple.tables.PLACEMENTS`.
    device : torch.device
        The home of hash buffers and results; meta allocates nothing until ``to_empty``.
    dtype : torch.dtype
        Of the results.

    Attributes
    ----------
    table : ngram_ple.tables.Table
    table_in_state_dict : bool
        Whether ``state_dict`` includes the table's bytes; False by default.
    """

    layer_multipliers: torch.Tensor
    ngram_heads_vocab_sizes: torch.Tensor
    ngram_heads_offsets: torch.Tensor
    _share: NodeCopy | None = None  # the table's memory, where other processes use it too

    def __init__(
        self, format: RowFormat, plan: HashPlan, placement: str, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.placement = placement
        self.dtype = dtype
        self.table_in_state_dict = False
        self._format = format
        self._plan = plan
        self._materialize(device)

    def _materialize(self, device: torch.device) -> None:
        """Allocate table and hash buffers on `device`; nothing is loaded then."""
        self._loaded = False
        self._home = device
        self._made_after = _forks
        if device.type == "cuda":
            _of_gpus.add(self)
        self.table = self._make_table(device)
        for name, field in BUFFER_FIELDS.items():
            values = getattr(self._plan, field)
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64, device=device))
        _log.info("%s: %s", type(self).__name__, self.extra_repr())

    def _make_table(self, device: torch.device) -> Table:
        """Allocate the rows to hold, on `device` or, when it is meta, nowhere."""
        return make_table(self.placement, self._format, 0, self._plan.padded_rows, device, self._share)

    def _set_plan(self, plan: HashPlan) -> None:
        """Take other hash buffers for the same table, in place."""
        if plan.padded_rows != self._plan.padded_rows:
            raise ConfigError(
                f"the loaded hash buffers need a table of {plan.padded_rows} rows, got one of "
                f"{self._plan.padded_rows}: construct with plan="
            )
        for name, field in BUFFER_FIELDS.items():
            getattr(self, name).copy_(torch.tensor(getattr(plan, field), dtype=torch.int64, device="cpu"))
        self._plan = plan

    @property
    def padded_rows(self) -> int:
        """Rows of the whole table, those of other ranks included."""
        return self._plan.padded_rows

    def _buffers_in_order(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.layer_multipliers, self.ngram_heads_vocab_sizes, self.ngram_heads_offsets

    def _require_loaded(self) -> None:
        if self._made_after != _forks and self._home.type == "cuda":
            raise NgramPleError(
                "a forked child cannot use its parent's GPU: start worker processes by spawn, or before the "
                "first use of a GPU, and construct the module in them"
            )
        if not self._loaded:
            raise NgramPleError(
                "the table is not loaded: use from_pretrained, or load_weights and finish_loading"
            )

    def _require_own_table(self) -> None:
        if self._share is not None and self._share.is_filled:
            raise NgramPleError(
                "the table is shared with other processes, which may be reading it: it is filled once; load "
                "into a module without share"
            )

    def _require_whole(self) -> None:
        if self.table.is_shard:
            raise NgramPleError(
                "a state dict holds whole tables, got one whose rows are shared out over a group: use "
                "load_weights, and table_in_state_dict = False"
            )

    def _finish_table(self) -> None:
        """Take the table as it is now for loaded, for the processes that share it too."""
        if self._share is not None:
            scale = self.table.global_scale
            self._share.publish(**({} if scale is None else {"global_scale": float(scale)}))
        self._loaded = True

    def extra_repr(self) -> str:
        """Return format, dtype, placement, rows and bytes."""
        table = self.table
        pinned = table if isinstance(table, PinnedTable) else None
        return (
            f"format={self._format.name}, dtype={self.dtype}, placement={self.placement}, "
            f"device={self._home}, rows={table.slots.shape[0]}, bytes={table.nbytes}"
            + (f", huge_page_bytes={pinned.huge_page_bytes}" if pinned else "")
            + (", share=node" if self._share is not None else "")
            + (f", {pinned.reader!r}" if pinned and pinned.reader else "")
        )

    def _apply(self: _Self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> _Self:
        """Keep table and buffers where they are, whatever .to(), .half(), .cuda() ask."""
        here = self._home
        probe = fn(torch.empty(0, dtype=self.dtype, device=here))
        if here.type == "meta" and probe.device.type != "meta":
            self._materialize(home_device(self.placement, None if self.placement == "cpu" else probe.device))
            here = self._home
        asked = [str(probe.device)] if probe.device != here else []
        asked += [str(probe.dtype)] if probe.dtype != self.dtype else []
        if here.type == "cpu" and probe.is_shared():  # type: ignore[no-untyped-call]
            asked.append("shared memory")
        if asked:
            warnings.warn(
                f"{type(self).__name__} stays on {here} with dtype {self.dtype}, got a move or cast to "
                f"{' and '.join(asked)}: choose placement, device and dtype when it is constructed",
                NgramPleWarning,
                stacklevel=_level_outside_torch(),
            )
        return self

    def requires_grad_(self: _Self, requires_grad: bool = True) -> _Self:
        """Refuse True: lookups have no gradient."""
        if requires_grad:
            raise NgramPleError(
                f"{type(self).__name__} has no gradients: its table is stored bytes, not a Parameter"
            )
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        """Refuse: a copy would double the table."""
        raise NgramPleError(
            f"{type(self).__name__} cannot be copied or pickled: its table of {self.table.nbytes} bytes "
            "would be doubled; share the module, or load the checkpoint again"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse, as for a copy."""
        self.__deepcopy__({})

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.table_in_state_dict:
            self._require_whole()
            self._require_loaded()
            destination[prefix + _TABLE_KEY] = self.table.slots
            if self.table.global_scale is not None:
                destination[prefix + _SCALE_KEY] = self.table.global_scale

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Take hash buffers and, when there, the table's bytes, into the memory that is held.

        Everything is checked before anything is written.
        """
        stored = {
            name: self._stored_buffer(prefix + name, state_dict[prefix + name])
            for name in BUFFER_FIELDS
            if prefix + name in state_dict
        }
        plan = self._plan.with_buffers(stored, "the state dict")
        slots, scale = state_dict.get(prefix + _TABLE_KEY), state_dict.get(prefix + _SCALE_KEY)
        if slots is not None:
            self._check_stored_table(prefix, slots, scale)
        self._set_plan(plan)
        if slots is not None:
            if self.table.global_scale is not None and scale is not None:
                self.table.global_scale.copy_(scale)
            self.table.slots.copy_(slots)
            self._finish_table()
        strict, missing, unexpected = args[1], args[2], args[3]
        if strict:
            missing += [prefix + name for name in BUFFER_FIELDS if name not in stored]
            known = {prefix + name for name in (*BUFFER_FIELDS, _TABLE_KEY)}
            known |= {prefix + _SCALE_KEY} if self._format.has_global_scale else set()
            unexpected += [key for key in state_dict if key.startswith(prefix) and key not in known]

    def _stored_buffer(self, key: str, value: Any) -> list[int]:
        expected = list(self.get_buffer(key.rpartition(".")[2]).shape)
        if not isinstance(value, torch.Tensor) or value.dtype != torch.int64 or list(value.shape) != expected:
            raise NgramPleError(f"{key} must be int64 {expected}, got {_described(value)}")
        if value.is_meta:
            raise NgramPleError(f"{key} must have values, got a tensor on the meta device")
        return [int(number) for number in value.tolist()]

    def _check_stored_table(self, prefix: str, slots: Any, scale: Any) -> None:
        self._require_own_table()
        self._require_whole()
        if self.table.slots.is_meta:
            raise NgramPleError(
                f"{prefix}{_TABLE_KEY} needs memory, got a module on the meta device: call to_empty first"
            )
        shape = list(self.table.slots.shape)
        if not isinstance(slots, torch.Tensor) or slots.dtype != torch.uint8 or list(slots.shape) != shape:
            raise NgramPleError(f"{prefix}{_TABLE_KEY} must be uint8 {shape}, got {_described(slots)}")
        if self.table.global_scale is None:
            return
        fits = isinstance(scale, torch.Tensor) and scale.dtype == torch.float32 and list(scale.shape) == [1]
        if not fits or not bool(torch.isfinite(scale).all()):
            raise NgramPleError(f"{prefix}{_SCALE_KEY} must be a finite float32 [1], got {_described(scale)}")


def _after_fork() -> None:
    """Keep a child's modules of a GPU for good: destroying what belongs to the parent's driver may end it."""
    global _forks
    _forks += 1
    for module in list(_of_gpus):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))


os.register_at_fork(after_in_child=_after_fork)


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    numbers = f" with {value.tolist()}" if value.numel() == 1 and not value.is_meta else ""
    return f"{value.dtype} {list(value.shape)}{numbers}"


def _level_outside_torch() -> int:
    """Return the stacklevel, for a warning of the caller, of the first frame outside torch."""
    torch_folder = str(Path(torch.__file__).parent)
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(torch_folder):
        frame, level = frame.f_back, level + 1
    return level
