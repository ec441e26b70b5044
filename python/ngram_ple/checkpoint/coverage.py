"""The proof that a load fills every owned row once, from names, dtypes and shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ngram_ple.checkpoint import names
from ngram_ple.checkpoint.layout import RowLeaf, shard_rows, shard_size, table_layout
from ngram_ple.errors import CheckpointError

_MAX_BUFFER = 4096
_LISTED = 4


@dataclass(frozen=True)
class Part:
    """What an accepted tensor fills.

    Attributes
    ----------
    kind
        "rows" of a leaf, the "global_scale", or a stored hash "buffer".
    parameter : str
        The parameter or buffer it counts as, relative to the prefix (``ngram_embedding.weight`` for a shard).
    leaf : str
        Canonical leaf ("weight", "weight_scale") or the buffer's name.
    first_row, num_rows : int
        Global rows, for "rows".
    reciprocal : bool
        The tensor holds one over the global scale.
    """

    kind: Literal["rows", "global_scale", "buffer"]
    parameter: str
    leaf: str
    first_row: int = 0
    num_rows: int = 0
    reciprocal: bool = False


@dataclass(frozen=True)
class Missing:
    """Tensors of one leaf that did not come, by shard; None stands for one that is of no shard."""

    leaf: str
    shards: tuple[int | None, ...]


class Coverage:
    """Accept a table's tensors one by one in any order, then prove that they cover the owned rows.

    Parameters
    ----------
    format : str
        bf16, fp16, fp32, fp8, fp8-rowwise or nvfp4.
    head_dim, padded_rows, split_ngram_parts : int
        The table's geometry.
    row_start, row_end : int
        The owned global rows [row_start, row_end); all by default.
    prefix : str
        What messages put before a tensor's relative name.
    """

    def __init__(
        self,
        format: str,
        head_dim: int,
        padded_rows: int,
        split_ngram_parts: int,
        row_start: int = 0,
        row_end: int | None = None,
        prefix: str = "",
    ) -> None:
        self._layout = table_layout(format, head_dim)
        self._leaves = {leaf.name: leaf for leaf in self._layout.rows}
        self._padded_rows = padded_rows
        self._parts = split_ngram_parts
        self._owned = (row_start, padded_rows if row_end is None else row_end)
        self._prefix = prefix
        self._seen: dict[str, dict[int | None, str]] = {}  # canonical leaf -> shard -> name given

    def accept(self, name: str, dtype: str, shape: tuple[int, ...], origin: str = "") -> Part | None:
        """Check one tensor and say what it fills; None when it is to be ignored.

        Parameters
        ----------
        name : str
            Relative to the prefix.
        dtype : str
            Safetensors code; torch dtypes without one by their name.
        shape : tuple of int
        origin : str
            Where it comes from (a file), for messages.

        Raises
        ------
        CheckpointError
            An unknown name, a wrong dtype or shape, a shard out of range, a tensor given twice.
        """
        if names.is_ignored(name):
            return None
        where = f"{origin}: {self._prefix}{name}" if origin else f"{self._prefix}{name}"
        if name in names.BUFFERS:
            if dtype != "I64" or len(shape) != 1 or not 1 <= shape[0] <= _MAX_BUFFER:
                raise CheckpointError(
                    f"{where}: expected I64 [n] with 1..{_MAX_BUFFER} values, got {dtype} {list(shape)}"
                )
            self._once(name, None, name, where)
            return Part("buffer", name, name)
        tensor = names.parse_table_tensor(name)
        leaf = self._layout.aliases.get(tensor.leaf, tensor.leaf) if tensor else ""
        scale = self._layout.global_scale
        if tensor is None or not (leaf in self._leaves or (scale and leaf == scale.name)):
            raise CheckpointError(f"{where}: unknown tensor; {self._expected_names()}")
        if tensor.shard is not None and tensor.shard >= self._parts:
            raise CheckpointError(
                f"{where}: expected shards 0..{self._parts - 1} (split_ngram_parts {self._parts})"
            )
        parameter = names.shard_name(None, leaf)
        if scale and leaf == scale.name:
            if dtype not in scale.dtypes or shape not in ((), (1,)):
                raise CheckpointError(
                    f"{where}: expected one {' or '.join(scale.dtypes)} value, [1] or [], "
                    f"got {dtype} {list(shape)}"
                )
            self._once(leaf, tensor.shard, name, where)
            return Part("global_scale", parameter, leaf, reciprocal=tensor.leaf in self._layout.reciprocal)
        first, last = self._rows(tensor.shard)
        row_leaf = self._leaves[leaf]
        if dtype not in row_leaf.dtypes or shape != (last - first, row_leaf.width):
            raise CheckpointError(
                f"{where}: expected {self._described(row_leaf, last - first)}, got {dtype} {list(shape)}"
            )
        self._once(leaf, tensor.shard, name, where)
        return Part("rows", parameter, leaf, first, last - first)

    def prove(self) -> None:
        """Raise CheckpointError naming what is missing, unless every owned row and scale was given once."""
        for missing in self.missing():
            more = f" and {len(missing.shards) - _LISTED} more" if len(missing.shards) > _LISTED else ""
            raise CheckpointError(self.missing_message(missing.leaf, *missing.shards[:_LISTED], more=more))

    def missing(self) -> Iterator[Missing]:
        """Tell what must still come, leaf by leaf."""
        for leaf in self._layout.rows:
            seen = self._seen.get(leaf.name, {})
            shards = [] if None in seen else [s for s in self._owned_shards() if s not in seen]
            if shards:
                yield Missing(leaf.name, tuple(shards))
        scale = self._layout.global_scale
        if scale and not self._seen.get(scale.name):
            yield Missing(scale.name, (None,))

    def missing_message(self, leaf: str, *shards: int | None, more: str = "") -> str:
        """Say that tensors of a leaf are missing and what the first one should be."""
        listed = ", ".join(names.shard_name(shard, leaf) for shard in shards)
        if leaf in self._leaves:
            first, last = self._rows(shards[0])
            what = f"{self._described(self._leaves[leaf], last - first)} for rows {first}..{last - 1}"
        else:
            assert self._layout.global_scale
            what = f"one {' or '.join(self._layout.global_scale.dtypes)} value, the global scale"
        return f"{self._prefix}{listed}{more} missing: expected {what} of the {self._layout.format} table"

    def _rows(self, shard: int | None) -> tuple[int, int]:
        return (0, self._padded_rows) if shard is None else shard_rows(shard, self._padded_rows, self._parts)

    def _owned_shards(self) -> range:
        first, last = self._owned
        size = shard_size(self._padded_rows, self._parts)
        return range(first // size, -(-last // size)) if first < last else range(0)

    def _once(self, leaf: str, shard: int | None, name: str, where: str) -> None:
        seen = self._seen.setdefault(leaf, {})
        rows = leaf in self._leaves
        # The whole table and a shard of it are the same rows twice.
        earlier = seen.get(shard) or (seen.get(None) if rows else None)
        if earlier is None and rows and shard is None and seen:
            earlier = next(iter(seen.values()))
        if earlier is not None:
            raise CheckpointError(f"{where}: expected once, but {self._prefix}{earlier} was given already")
        seen[shard] = name

    def _described(self, leaf: RowLeaf, rows: int) -> str:
        return f"{' or '.join(leaf.dtypes)} [{rows}, {leaf.width}]"

    def _expected_names(self) -> str:
        known = [leaf.name for leaf in self._layout.rows]
        if self._layout.global_scale:
            known.append(self._layout.global_scale.name)
        known += self._layout.aliases
        return (
            f"expected ngram_embedding[.shard_N].({'|'.join(known)}) of the {self._layout.format} table "
            f"or one of {', '.join(names.BUFFERS)}"
        )
