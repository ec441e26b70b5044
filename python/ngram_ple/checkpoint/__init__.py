"""Checkpoints of n-gram tables: names, safetensors headers, block reads, coverage proof, writing.

The usual way in::

    checkpoint = open_checkpoint(path)                    # folder, config dict, headers
    config = checkpoint.ngram_config(layer=0)
    stored = checkpoint.table(config)                     # prefix, tensors, format, stored buffers
    stored.check(padded_rows)                             # coverage by headers, before the table is allocated
    read_table(stored, sink, padded_rows=padded_rows)     # block reads, many threads
"""

from ngram_ple.checkpoint.loader import TableLoader
from ngram_ple.checkpoint.open import Checkpoint, StoredTable, open_checkpoint, read_table
from ngram_ple.checkpoint.safetensors_file import TensorSlice
from ngram_ple.checkpoint.safetensors_writer import TensorToWrite, write_folder
from ngram_ple.checkpoint.survey import LayerSurvey, Survey, survey_checkpoint
from ngram_ple.checkpoint.verify import Verdict, verify_checkpoint
from ngram_ple.checkpoint.write import stored_config, table_tensors, write_checkpoint

__all__ = [
    "Checkpoint",
    "LayerSurvey",
    "StoredTable",
    "Survey",
    "TableLoader",
    "TensorSlice",
    "TensorToWrite",
    "Verdict",
    "open_checkpoint",
    "read_table",
    "stored_config",
    "survey_checkpoint",
    "table_tensors",
    "verify_checkpoint",
    "write_checkpoint",
    "write_folder",
]
