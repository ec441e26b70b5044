"""What a conversion has changed, head by head: numbers, a table, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ngram_ple.benchmark.report import table_text
from ngram_ple.cli import report
from ngram_ple.convert import HeadErrors
from ngram_ple.convert.head_errors import total
from ngram_ple.errors import NgramPleError

_MAX_LAYERS = 8


def error_facts(layers: Sequence[Sequence[HeadErrors]]) -> list[dict[str, Any]]:
    """Return the errors of each PLE layer and head for JSON."""
    return [
        {
            "layer": number,
            **total(heads).facts(),
            "heads": [{"head": head, **errors.facts()} for head, errors in enumerate(heads)],
        }
        for number, heads in enumerate(layers)
    ]


def error_lines(layers: Sequence[Sequence[HeadErrors]]) -> str:
    """Return a table with a line a head and one for all heads of a layer."""
    rows = []
    for layer, heads in enumerate(layers):
        for name, errors in [*((str(head), one) for head, one in enumerate(heads)), ("all", total(heads))]:
            facts = errors.facts()
            rows.append(
                {
                    **({"layer": layer} if len(layers) > 1 else {}),
                    "head": name,
                    "rel. RMS error %": 100 * facts["relative_rms"],
                    "largest error": facts["largest_error"],
                    "saturated %": 100 * facts["saturated_share"],
                    "became zero %": 100 * facts["zero_share"],
                    **({"not finite": facts["not_finite"]} if total(heads).not_finite else {}),
                }
            )
    return table_text(rows)


def plot_errors(file: Path | None, title: str, layers: Sequence[Sequence[HeadErrors]]) -> None:
    """Draw relative RMS error, largest error, saturated and zero shares of every head; None only tries.

    Raises
    ------
    NgramPleError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NgramPleError("a plot needs matplotlib: pip install 'ngram_ple[bench]'") from None
    if file is None:
        return
    shown = layers[:_MAX_LAYERS]
    panels = [
        ("relative RMS error, %", "relative_rms", 100),
        ("largest error", "largest_error", 1),
        ("saturated, %", "saturated_share", 100),
        ("became zero, %", "zero_share", 100),
    ]
    figure = Figure(figsize=(4 * len(panels), 0.8 + 2.8 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), len(panels), squeeze=False)
    for number, (line, heads) in enumerate(zip(axes, shown, strict=True)):
        whole = total(heads).facts()
        for axis, (name, key, factor) in zip(line, panels, strict=True):
            average = factor * whole[key]
            axis.bar(range(len(heads)), [factor * head.facts()[key] for head in heads], color="tab:blue")
            axis.axhline(average, color="black", linestyle="--", linewidth=1)
            axis.set_title(f"{name} (all: {average:.3g})", fontsize=10)
            axis.set_xlabel("head" if len(shown) == 1 else f"head of PLE layer {number}")
            axis.set_ylim(bottom=0)
            if len(heads) <= 24:
                axis.set_xticks(range(len(heads)))
    figure.suptitle(title)
    with report.naming(file):
        figure.savefig(file, dpi=110, format="png")
