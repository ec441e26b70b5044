"""One checkpoint's tables into another checkpoint in another format, shard by shard.

`convert_checkpoint` is all of it; `ngram-ple convert` calls it.
"""

from ngram_ple.convert.head_errors import HeadErrors
from ngram_ple.convert.run import TARGETS, Conversion, convert_checkpoint

__all__ = ["TARGETS", "Conversion", "HeadErrors", "convert_checkpoint"]
