"""What tells one stored table from every other: for memory that processes share."""

from __future__ import annotations

import json

from ngram_ple.checkpoint.open import StoredTable


def table_identity(stored: StoredTable, first_row: int, last_row: int) -> str:
    """Describe rows [first_row, last_row) of a stored table by the files that they lie in.

    Two loads have the same identity if they read the same bytes of the same files, none of which was written
    in between, into the same layout in memory.
    """
    states = {tensor.file: tensor.file.stat() for tensor in stored.tensors.values()}
    files = {file: (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns) for file, at in states.items()}
    tensors = [
        (name, tensor.dtype, tensor.shape, tensor.offset, files[tensor.file])
        for name, tensor in sorted(stored.tensors.items())
    ]
    layout = (stored.format, stored.config.head_dim, stored.config.layer, first_row, last_row)
    return json.dumps(["slots 1", layout, tensors])
