"""One table over the ranks of a group (embedding tensor parallel, ETP), on torch.distributed."""

from __future__ import annotations

from ngram_ple.parallel.group import EXCHANGES, EtpGroup, RankGaveUpError, on_all_ranks
from ngram_ple.parallel.sharded import ShardedTable, TokenCounts

__all__ = ["EXCHANGES", "EtpGroup", "RankGaveUpError", "ShardedTable", "TokenCounts", "on_all_ranks"]
