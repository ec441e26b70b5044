"""``ngram-ple inspect``: what a checkpoint holds for each PLE layer, and how a text hits its rows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ngram_ple.checkpoint.survey import survey_checkpoint
from ngram_ple.cli import options, out_file, report
from ngram_ple.cli.inspect_facts import survey_facts
from ngram_ple.cli.inspect_hits import layer_hits, plot_hits
from ngram_ple.errors import NgramPleError

_SHOWN = 16  # values of a list

_DESCRIPTION = """\
Show what a checkpoint holds for each PLE layer: the hash plan, shards, formats and the
rule that decided them, bytes on disk and in memory, and whether the hash buffers that
are stored agree with those that config.json gives. No rows are read. What is missing or
wrong is shown, not refused; `ngram-ple verify` looks closer and tells by its exit status.

With --plot, FILE.png shows how the tokens of a text hit each head's rows: hits folded
into 256 equal bins of rows, and the distinct rows beside the number that an even hash
would give. A skewed or broken hash leaves the band."""

_EPILOG = """\
example:
  ngram-ple inspect ./checkpoint --plot hits.png --text book.txt --tokenizer tokenizer.json"""


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect",
        help="show what a checkpoint holds",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_checkpoint(parser)
    options.add_layer(parser, "all")
    options.add_plot(parser, "draw how a text hits the rows")
    parser.add_argument("--text", metavar="FILE", type=Path, help="UTF-8 text, for --plot")
    parser.add_argument(
        "--tokenizer", metavar="FILE", type=Path, help="the model's tokenizer.json, for --plot"
    )
    options.add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    together = {"--plot": arguments.plot, "--text": arguments.text, "--tokenizer": arguments.tokenizer}
    given = [name for name, value in together.items() if value is not None]
    if given and len(given) < len(together):
        raise NgramPleError(
            f"--plot, --text and --tokenizer must be given together, got {' and '.join(given)}"
        )
    if given:
        inputs = (arguments.text, arguments.tokenizer)
        out_file.check("--plot", arguments.plot, arguments.checkpoint, inputs, overwrite=True)
    survey = survey_checkpoint(arguments.checkpoint, arguments.layer)
    facts = survey_facts(survey)
    if given:
        hits = [
            layer_hits(layer, arguments.text, arguments.tokenizer, options.shows_progress(arguments))
            for layer in survey.layers
        ]
        plot_hits(arguments.plot, arguments.text.name, hits)
        for layer, hit in zip(facts["layers"], hits, strict=True):
            layer["hits"] = hit.facts()
        facts["plot"] = str(arguments.plot)
    if arguments.json:
        report.print_json(facts)
    else:
        report.print_table(_lines(facts))


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    files = facts["files"]
    total = report.size(sum(file["bytes"] for file in files))
    yield "checkpoint", f"{facts['checkpoint']} ({report.count(len(files), 'file')} with tables, {total})"
    for layer in facts["layers"]:
        yield "", ""
        yield from _layer_lines(layer)
    for label in ("problems", "notes"):
        lines = [*facts[label], *(line for layer in facts["layers"] for line in layer[label])]
        if lines:
            yield "", ""
        for number, line in enumerate(lines):
            yield label if number == 0 else "", line
    if "plot" in facts:
        yield "plot", facts["plot"]


def _layer_lines(layer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    place = "nowhere" if layer["prefix"] is None else layer["prefix"] or "(no prefix)"
    yield f"PLE layer {layer['layer']}", f"decoder layer {layer['decoder_layer']}, {place}"
    plan = layer["plan"]
    yield (
        "heads",
        f"{plan['heads']} of {layer['head_dim']} values: n-grams up to {layer['ngram_size']}, "
        f"{layer['heads_per_ngram']} heads an order",
    )
    yield "multipliers", _some(plan["multipliers"])
    yield "head sizes", _some(plan["head_sizes"])
    yield "head offsets", _some(plan["head_offsets"])
    yield "rows", f"{plan['num_rows']:,} hashed, {plan['padded_rows']:,} in the table"
    for name, buffer in layer["buffers"].items():
        yield name, _buffer_line(buffer)
    if layer["prefix"] is None:
        return
    yield "format", layer["format"] or "none that is supported"
    yield "decided by", layer["rule"] or "nothing"
    for leaf, tensor in layer["tensors"].items():
        yield leaf, _leaf_line(tensor)
    yield "on disk", f"{layer['disk_bytes']:,} bytes ({report.size(layer['disk_bytes'])})"
    if layer["memory_bytes"] is not None:
        yield (
            "in memory",
            f"{layer['memory_bytes']:,} bytes ({report.size(layer['memory_bytes'])}): "
            f"{plan['padded_rows']:,} slots of {layer['slot_bytes']}",
        )
    if "hits" in layer:
        hits = layer["hits"]
        odd = [str(head["head"]) for head in hits["heads"] if head["odd"]]
        yield (
            "hits",
            f"{hits['tokens']:,} tokens: "
            + (f"heads {', '.join(odd)} are not hit evenly" if odd else "every head is hit evenly"),
        )


def _buffer_line(buffer: dict[str, Any]) -> str:
    if not buffer["stored"]:
        return "not stored"
    if buffer["agrees"]:
        return "stored, as config.json gives it"
    if buffer["agrees"] is None:
        return "stored, of a wrong size or dtype"
    first = buffer["differences"][0]
    differing = report.count(len(buffer["differences"]), "value")
    return (
        f"stored and DIFFERENT in {differing}, first [{first['index']}]: "
        f"{first['stored']} stored, {first['derived']} derived"
    )


def _leaf_line(tensor: dict[str, Any]) -> str:
    what = f"{' and '.join(tensor['dtypes']) or 'nothing'}, {report.size(tensor['bytes'])}"
    if "value" in tensor:
        return f"{what}, {tensor['value']}"
    parts = "whole" if tensor["whole"] else f"{tensor['shards']} of {tensor['expected_shards']} shards"
    line = f"{what}, {parts} in {report.count(len(tensor['files']), 'file')}, {tensor['rows']:,} rows"
    if tensor["shards_without_rows"]:
        line += f", {tensor['shards_without_rows']} shards without rows absent"
    if tensor["absent"]:
        line += f"; ABSENT: shards {_some(tensor['absent'])}"
    return line


def _some(values: list[Any]) -> str:
    texts = [str(value) for value in values]
    if len(texts) > _SHOWN:
        texts[_SHOWN - 2 : -1] = [f"… ({len(values)})"]
    return " ".join(texts)
