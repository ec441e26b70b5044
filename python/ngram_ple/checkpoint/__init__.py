"""Checkpoints of n-gram tables: names, safetensors headers, block reads, coverage proof, writing.

The usual way in::

    checkpoint = open_checkpoint(path)                    # folder, config dict, headers
    config = NGramConfig.from_pretrained(checkpoint.config, layer=0)
    stored = checkpoint.table(config)                     # prefix, tensors, format, stored buffers
    stored.check(padded_rows)                             # coverage by headers, before the table is allocated
    read_table(stored, sink, padded_rows=padded_rows)     # block reads, many threads
"""
