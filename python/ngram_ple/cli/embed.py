"""``ngram-ple embed``: the n-gram embeddings of a text, from a checkpoint into a safetensors file."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ngram_ple.checkpoint.open import open_checkpoint
from ngram_ple.checkpoint.safetensors_writer import write_safetensors
from ngram_ple.cli import options, out_file, ranks, report
from ngram_ple.cli.embed_pieces import Pieces
from ngram_ple.config import NGramConfig
from ngram_ple.embedding import NGramEmbedding
from ngram_ple.errors import NgramPleError
from ngram_ple.formats import OUT_DTYPES
from ngram_ple.parallel import EtpGroup, on_all_ranks
from ngram_ple.tables import PLACEMENTS, home_device
from ngram_ple.text import RaggedTokens, TextTokenizer, read_paragraphs, tokenize

_DTYPES = {name: dtype for dtype, name in OUT_DTYPES.items()}
_BATCH_TOKENS = 8192

_DESCRIPTION = """\
Compute the n-gram embeddings of a text.

Each blank-line separated paragraph of FILE is one request: its first tokens have no
history. Paragraphs are tokenized as they are, without special tokens around them. The
result is a safetensors file, for T tokens in R requests and H heads:

  embeddings       [T, H * head_dim]  --dtype  the H rows of each token, side by side
  ngram_ids        [T, H]             int64    their row numbers in the table
  input_ids        [T]                int64    the tokens
  query_start_loc  [R + 1]            int64    where each request begins, and T

It is written block by block and appears under its name once it is whole.

Started by torchrun, the ranks share the table by rows, one GPU each or on CPUs, each embeds
a part of every batch, and the first one writes."""

_EPILOG = """\
example:
  ngram-ple embed ./checkpoint --text book.txt --tokenizer tokenizer.json --out book.safetensors
  torchrun --nproc_per_node 2 -m ngram_ple embed ./checkpoint --placement device ..."""


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "embed",
        help="compute the n-gram embeddings of a text",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        type=options.folder,
        help="Hugging Face checkpoint folder; its config.json, index and PLE files suffice",
    )
    parser.add_argument("--text", required=True, metavar="FILE", type=Path, help="UTF-8 text")
    parser.add_argument(
        "--tokenizer", required=True, metavar="FILE", type=Path, help="the model's tokenizer.json"
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        type=Path,
        help="safetensors file to write, outside CHECKPOINT",
    )
    parser.add_argument("--force", action="store_true", help="overwrite --out when it exists")
    parser.add_argument(
        "--layer", type=options.natural, default=0, metavar="L", help="index among the PLE layers (default 0)"
    )
    parser.add_argument(
        "--dtype", choices=_DTYPES, default="bf16", help="what rows are decoded to (default bf16)"
    )
    parser.add_argument(
        "--placement", choices=PLACEMENTS, default="cpu", help="where the table lives (default cpu)"
    )
    options.add_threads(parser, "CPU threads (default: what torch chooses)")
    parser.add_argument(
        "--batch-tokens",
        type=options.positive,
        default=_BATCH_TOKENS,
        metavar="N",
        help=f"tokens looked up at a time (default {_BATCH_TOKENS}); the result is the same for any",
    )
    options.add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    with ranks.started_by_torchrun(arguments.placement) as etp:
        first = etp is None or etp.rank == 0
        done = embed_text(
            arguments.checkpoint,
            arguments.text,
            arguments.tokenizer,
            arguments.out,
            layer=arguments.layer,
            dtype=arguments.dtype,
            placement=arguments.placement,
            threads=arguments.threads,
            batch_tokens=arguments.batch_tokens,
            force=arguments.force,
            progress=first and options.shows_progress(arguments),
            etp=etp,
        )
    if not first:
        return
    if arguments.json:
        report.print_json(asdict(done))
    else:
        report.print_table(done.lines())


@dataclass(frozen=True)
class EmbedReport:
    """What `embed_text` did: the fields of ``--json``.

    Attributes
    ----------
    checkpoint, text, tokenizer, out : str
        The files, as given.
    layer, format, dtype, placement, device
        What the table is, and where it was.
    ranks : int
        Processes that shared it.
    tokens, requests : int
        T and R.
    rows, distinct_rows, table_rows : int
        Rows looked up (T·H), different ones among them, rows of the table.
    bytes_read : int
        Bytes of the rows looked up as stored, scales included.
    embedding_dim : int
        H·head_dim.
    out_bytes : int
        Size of the result.
    seconds, tokens_per_second : float
        Of the pass that hashes and looks up. The pass before it, for `ngram_ids`, is not in it.
    total_seconds : float
        Of everything: tokenizing, loading, both passes and writing.
    """

    checkpoint: str
    text: str
    tokenizer: str
    out: str
    layer: int
    format: str
    dtype: str
    placement: str
    device: str
    ranks: int
    tokens: int
    requests: int
    rows: int
    distinct_rows: int
    table_rows: int
    bytes_read: int
    embedding_dim: int
    out_bytes: int
    seconds: float
    tokens_per_second: float
    total_seconds: float

    def lines(self) -> list[tuple[str, str]]:
        """Return the table for people."""
        return [
            ("tokens", f"{self.tokens:,}"),
            ("requests", f"{self.requests:,}"),
            ("rows looked up", f"{self.rows:,}"),
            ("distinct rows", f"{self.distinct_rows:,} of the table's {self.table_rows:,}"),
            ("bytes read", f"{self.bytes_read:,} ({report.size(self.bytes_read)})"),
            (
                "tokens/s",
                f"{self.tokens_per_second:,.0f} (the pass that hashes and looks up: {self.seconds:.3f} s of "
                f"{self.total_seconds:.3f} s in all)",
            ),
            ("placement", f"{self.placement} ({self.device})" + (f", {self.ranks} ranks" * (self.ranks > 1))),
            ("format", self.format),
            ("dtype", self.dtype),
            ("result", f"{self.out} ({report.size(self.out_bytes)})"),
        ]


def embed_text(
    checkpoint: Path,
    text: Path,
    tokenizer: Path,
    out: Path,
    *,
    layer: int = 0,
    dtype: str = "bf16",
    placement: str = "cpu",
    threads: int | None = None,
    batch_tokens: int = _BATCH_TOKENS,
    force: bool = False,
    progress: bool = False,
    etp: EtpGroup | None = None,
) -> EmbedReport:
    """Embed the paragraphs of a text and write the result; the parameters are the command's.

    Memory: the table, 8 bytes a token, a byte a table row, and a batch of results. The ranks of `etp` share
    the table and the work, and the first of them writes.

    Raises
    ------
    NgramPleError
        `out` exists or lies in the checkpoint, no token in the text, a token outside the vocabulary, not
        enough room on the disk, and what `NGramEmbedding.from_pretrained` raises.
    OSError
        A file that cannot be read or written. Nothing half-written is left.
    """
    began = time.perf_counter()
    writes = etp is None or etp.rank == 0
    on_all_ranks(
        etp,
        "embed",
        lambda: out_file.check("--out", out, checkpoint, (text, tokenizer), force) if writes else None,
    )
    if threads is not None:
        torch.set_num_threads(threads)
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # the tokenizer's, read at its first use
    home_device(placement)
    config = open_checkpoint(checkpoint).ngram_config(layer)
    tokens = read_tokens(text, TextTokenizer(tokenizer), config, progress)
    row_bytes = config.ple_embed_dim * _DTYPES[dtype].itemsize
    if writes:
        out_file.check_room(out, tokens.num_tokens * (row_bytes + 8 * config.num_heads + 8))
    embedding = NGramEmbedding.from_pretrained(
        checkpoint,
        layer,
        placement=placement,
        dtype=_DTYPES[dtype],
        threads=threads,
        progress=progress,
        etp=etp,
    )
    with tqdm(total=tokens.num_tokens, desc="embedding", unit="token", disable=not progress) as bar:
        pieces = Pieces(tokens, embedding, bar.update)
        try:
            if writes:
                write_safetensors(out_file.real(out), pieces.tensors(batch_tokens))
            else:
                pieces.take_part(batch_tokens)
        except OSError as error:
            error.filename = str(out)  # not the file that becomes it, and none at all when a disk is full
            raise
    format = embedding.table.format
    rows = tokens.num_tokens * config.num_heads
    return EmbedReport(
        checkpoint=str(checkpoint),
        text=str(text),
        tokenizer=str(tokenizer),
        out=str(out),
        layer=layer,
        format=format.name,
        dtype=dtype,
        placement=placement,
        device=str(embedding.layer_multipliers.device),
        ranks=1 if etp is None else etp.size,
        tokens=tokens.num_tokens,
        requests=tokens.num_requests,
        rows=rows,
        distinct_rows=int(torch.count_nonzero(pieces.seen)),
        table_rows=pieces.seen.shape[0],
        bytes_read=rows * (format.row_bytes + format.scale_bytes),
        embedding_dim=config.ple_embed_dim,
        out_bytes=out.stat().st_size if writes else 0,
        seconds=pieces.seconds,
        tokens_per_second=tokens.num_tokens / max(pieces.seconds, 1e-9),
        total_seconds=time.perf_counter() - began,
    )


def read_tokens(text: Path, tokenizer: TextTokenizer, config: NGramConfig, progress: bool) -> RaggedTokens:
    """Read and tokenize a text, one request a paragraph; NgramPleError when it has no token."""
    total = text.stat().st_size
    with tqdm(total=total, desc="tokenizing", unit="B", unit_scale=True, disable=not progress) as bar:
        tokens = tokenize(read_paragraphs(text, bar.update), tokenizer, config.vocab_size)
    if tokens.num_requests == 0:
        raise NgramPleError(f"{text}: must have a paragraph to embed, got only blank lines or nothing")
    if tokens.num_tokens == 0:
        raise NgramPleError(f"{text}: must have a token to embed, got none from {tokenizer.path}")
    return tokens
