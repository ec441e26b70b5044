"""``ngram-ple plan``: does it fit, in which format and where, and what does that cost."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ngram_ple.benchmark.report import figure, table_text
from ngram_ple.checkpoint.open import open_checkpoint
from ngram_ple.cli import options, report
from ngram_ple.config import NGramConfig, read_config
from ngram_ple.errors import ConfigError
from ngram_ple.planning import SHIPPED, Machine, Option, Plan, Rates, make_plan, read_rates
from ngram_ple.quantization import explain_format

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(?:([KMGT])(i?B)?)?", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}
_MOST_GPUS = 65536

_DESCRIPTION = """\
For each format and place of a model's n-gram tables: whether they fit, memory on each
GPU and in the host, bytes a token moves over NVLink or PCIe, an expected time for a
batch of T tokens, and the error that the format adds to Gaussian rows; then one
recommendation with its reason.

Places: device (all rows on each GPU), device / N (rows split over N GPUs; the rest
comes over NVLink), pinned (one copy in host memory, read by the GPUs in place or by
way of CPU workers), cpu (with --gpus 0). Memory sizes are what is left for the tables:
80, 80G and 80GiB are the same, 80GB are 80e9 bytes. Times come from --rates, which
`ngram-ple bench --save` has written on the machine in question, else from shipped
figures of an H200. They are estimates: all rows distinct, nothing else running;
prefetching hides a pinned table's time behind earlier layers."""

_EPILOG = """\
example:
  ngram-ple plan ./model --gpus 8 --gpu-memory 20 --host-memory 500 --tokens 8192"""


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="tell what fits where, and its cost",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT|config.json",
        type=Path,
        help="checkpoint folder, or a config.json alone",
    )
    parser.add_argument("--gpus", required=True, type=_gpus, metavar="N", help="GPUs of one host; 0: none")
    parser.add_argument(
        "--gpu-memory",
        type=memory,
        metavar="G",
        help="for the tables, on each GPU, in GiB or with a unit (needed with GPUs)",
    )
    parser.add_argument(
        "--host-memory",
        required=True,
        type=memory,
        metavar="H",
        help="for the tables, in the host, in GiB or with a unit",
    )
    parser.add_argument(
        "--tokens", type=options.positive, default=8192, metavar="T", help="batch size (default: 8192)"
    )
    parser.add_argument(
        "--rates", type=Path, metavar="FILE", help="of `ngram-ple bench --save` (default: an H200's, shipped)"
    )
    options.add_output(parser)
    parser.set_defaults(run=run)


def memory(text: str) -> float:
    """Parse a size in GiB, or with a unit (G and GiB: 2^30 bytes, GB: 10^9), for argparse."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a size such as 80, 80GB or 512MiB, got {text!r}")
    base = 1e3 if (match[3] or "").upper() == "B" else 1024.0
    return float(match[1]) * base ** _POWERS[(match[2] or "G").upper()]


def _gpus(text: str) -> int:
    return options.within(text, 0, _MOST_GPUS)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if arguments.gpus and arguments.gpu_memory is None:
        raise ConfigError(f"--gpus {arguments.gpus} needs --gpu-memory, what is left for tables on each")
    if not arguments.gpus and arguments.gpu_memory is not None:
        raise ConfigError("--gpu-memory needs --gpus of at least 1, got --gpus 0")
    configs, stored_format = _model(arguments.checkpoint)
    rates = SHIPPED if arguments.rates is None else read_rates(arguments.rates)
    machine = Machine(arguments.gpus, arguments.gpu_memory or 0.0, arguments.host_memory)
    plan = make_plan(configs, machine, rates, stored_format=stored_format, tokens=arguments.tokens)
    if arguments.json:
        report.print_json(_facts(plan, machine, rates))
    else:
        _print(plan, configs[0], rates, arguments.checkpoint)


def _model(path: Path) -> tuple[list[NGramConfig], str]:
    """Return the PLE layers' configurations and the format that they are stored in."""
    if path.is_dir() and any(path.glob("*.safetensors")):
        checkpoint = open_checkpoint(path)
        first = checkpoint.ngram_config()
        stored_format = checkpoint.table(first).format
        source: Any = checkpoint.config
    else:
        source = read_config(path)
        first = NGramConfig.from_pretrained(path)
        prefix = f"model.language_model.layers.{first.decoder_layer}.ple.ple_embedding"
        found = explain_format(first.quantization_config, prefix, first.ple_embedding_dtype).format
        stored_format = "bf16" if found == "unquantized" else found
    layers = range(len(first.ple_layer_ids))
    return [NGramConfig.from_pretrained(source, layer) for layer in layers], stored_format


def _facts(plan: Plan, machine: Machine, rates: Rates) -> dict[str, Any]:
    chosen = plan.recommended
    return {
        "stored_format": plan.stored_format,
        "layers": plan.layers,
        "rows": plan.rows,
        "tokens": plan.tokens,
        "machine": asdict(machine),
        "rates": {"hardware": rates.hardware, "source": rates.source},
        "options": [{**asdict(one), "fits": one.fits} for one in plan.options],
        "recommended": None if chosen is None else {"format": chosen.format, "placement": chosen.placement},
        "reason": plan.reason,
    }


def _print(plan: Plan, config: NGramConfig, rates: Rates, path: Path) -> None:
    layers = report.count(plan.layers, "PLE layer")
    shape = f"{layers}, {plan.rows:,} rows of {config.head_dim} values in all, stored as {plan.stored_format}"
    report.print_table([("tables", shape), ("rates", f"{rates.hardware}: {rates.source}"), ("", "")])
    rows = []
    for one in plan.options:
        rows.append(
            {
                "": "->" if one is plan.recommended else "",
                "format": one.format,
                "place": one.placement,
                "fits": "yes" if one.fits else "NO",
                "GiB a GPU": _gib(one.gpu_bytes),
                "GiB host": _gib(one.host_bytes),
                "B/token": f"{one.link_bytes:.0f} {one.link}" if one.link else "-",
                f"us, {plan.tokens} tokens": _time(one),
                "error %": 100 * one.relative_error,
            }
        )
    report.print_text(table_text(rows))
    if beyond := sorted({one.extrapolated_from for one in plan.options if one.extrapolated_from}):
        largest = " or ".join(map(str, beyond))
        report.print_text(f"~ extrapolated from {largest} tokens, the most that were measured")
    chosen = plan.recommended
    name = "none" if chosen is None else f"{chosen.format}, {chosen.placement}"
    report.print_table([("", ""), ("recommended", f"{name}: {plan.reason}")])
    if chosen is not None and chosen.format != plan.stored_format:
        source = shlex.quote(str(path)) if path.is_dir() else "CHECKPOINT"
        report.print_table([("first", f"ngram-ple convert {source} DST --to {chosen.format}")])


def _time(one: Option) -> str:
    if one.time_us is None:
        return "?"
    return f"{'~' if one.extrapolated_from else ''}{figure(one.time_us)}"


def _gib(nbytes: int) -> str:
    size = nbytes / 2**30
    return "-" if not nbytes else f"{size:.2f}" if size >= 0.1 else f"{size:.2g}"
