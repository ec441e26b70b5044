"""Figures as a table on the terminal, as JSON, and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ngram_ple.errors import NgramPleError

Row = Mapping[str, Any]


def table_text(rows: Sequence[Row]) -> str:
    """Return rows of figures as an aligned table, their keys as its head."""
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(columns)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in [columns, *cells]
    )


def write_json(file: str | Path, facts: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write facts of the run and its rows."""
    Path(file).write_text(json.dumps({**facts, "rows": list(rows)}, indent=1) + "\n", encoding="utf-8")


def plot(file: str | Path, title: str, rows: Sequence[Row]) -> None:
    """Draw time against T, one panel a format, one line an operator, the floor dashed.

    Parameters
    ----------
    rows : sequence of mapping
        With keys ``format``, ``T``, ``floor us`` and one ``<operator> us`` an operator.

    Raises
    ------
    NgramPleError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NgramPleError("a plot needs matplotlib: pip install 'ngram_ple[bench]'") from None
    formats = list(dict.fromkeys(row["format"] for row in rows))
    lines = [key for key in rows[0] if key.endswith(" us")]
    figure = Figure(figsize=(4.2 * len(formats), 4.2), layout="constrained")
    axes = figure.subplots(1, len(formats), squeeze=False, sharey=True)[0]
    for axis, format in zip(axes, formats, strict=True):
        chosen = [row for row in rows if row["format"] == format]
        for key in lines:
            style = {"color": "black", "linestyle": "--"} if key == "floor us" else {"marker": "o"}
            axis.plot([row["T"] for row in chosen], [row[key] for row in chosen], label=key[:-3], **style)
        axis.set(xscale="log", yscale="log", xlabel="tokens T", title=format)
        axis.grid(visible=True, which="major", alpha=0.3)
    axes[0].set_ylabel("time of one call, µs")
    axes[0].legend()
    figure.suptitle(title)
    figure.savefig(file, dpi=150, format="png")


def figure(value: float) -> str:
    """Return a number with three digits, or all before its point."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cell(value: object) -> str:
    return figure(value) if isinstance(value, float) else str(value)
