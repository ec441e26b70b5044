"""The picture of ``ngram-ple inspect --plot``: how a text hits each head's rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ngram_ple.checkpoint.survey import LayerSurvey
from ngram_ple.cli.embed import read_tokens
from ngram_ple.errors import NgramPleError
from ngram_ple.row_hits import ODD_SIGMAS, HeadHits, row_hits
from ngram_ple.text import TextTokenizer

_MAX_PANELS = 64
_MAX_LAYERS = 8
_GOOD, _ODD, _HITS = "tab:blue", "tab:red", "0.82"


@dataclass(frozen=True)
class LayerHits:
    """A layer's heads under a text of `tokens` tokens."""

    layer: int
    tokens: int
    heads: list[HeadHits]

    def facts(self) -> dict[str, Any]:
        """Return the numbers for ``--json``."""
        return {
            "tokens": self.tokens,
            "heads": [
                {
                    "head": head.head,
                    "order": head.order,
                    "rows": head.size,
                    "ngrams": head.ngrams,
                    "distinct_rows": head.distinct_rows,
                    "expected_distinct_rows": head.expected,
                    "shortfall_sigmas": head.shortfall,
                    "skew_sigmas": head.skew,
                    "odd": head.odd,
                }
                for head in self.heads
            ],
        }


def layer_hits(layer: LayerSurvey, text: Path, tokenizer: Path, progress: bool) -> LayerHits:
    """Tokenize a text, one request a paragraph, and count the rows that it hits."""
    tokens = read_tokens(text, TextTokenizer(tokenizer), layer.config, progress)
    return LayerHits(layer.config.layer, tokens.num_tokens, row_hits(tokens, layer.config, layer.plan))


def plot_hits(file: Path, text: str, layers: Sequence[LayerHits]) -> None:
    """Draw the layers (at most 8) and their heads (at most 64 each) to a PNG.

    Raises
    ------
    NgramPleError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NgramPleError("a plot needs matplotlib: pip install 'ngram_ple[bench]'") from None
    shown = layers[:_MAX_LAYERS]
    panels = max(min(len(layer.heads), _MAX_PANELS) for layer in shown)
    columns = min(8, math.ceil(math.sqrt(panels)))
    rows = math.ceil(panels / columns)
    height = 2.2 + 1.7 * rows
    figure = Figure(figsize=(3.2 * columns + 1, height * len(shown) + 0.6), layout="constrained")
    figure.suptitle(
        f"Rows hit by {text}, in bins of equal size: grey all hits, dots the distinct rows among them.\n"
        f"Band: what an even hash does, 3 standard deviations. Red: outside it by more than {ODD_SIGMAS:g}."
    )
    parts = figure.subfigures(len(shown), 1, squeeze=False)[:, 0]
    for part, layer in zip(parts, shown, strict=True):
        part.suptitle(f"PLE layer {layer.layer}, {layer.tokens:,} tokens")
        grid = part.add_gridspec(rows + 1, columns, height_ratios=[1.3, *[1] * rows])
        _draw_shares(part.add_subplot(grid[0, :]), layer.heads)
        for number, head in enumerate(layer.heads[:_MAX_PANELS]):
            axis = part.add_subplot(grid[1 + number // columns, number % columns])
            _draw_head(axis, head)
            if number % columns == 0:
                axis.set_ylabel("rows a bin", fontsize=7)
    figure.savefig(file, dpi=110, format="png")


def _draw_shares(axis: Any, heads: Sequence[HeadHits]) -> None:
    """Distinct rows of each head as a share of what is expected."""
    numbers = np.arange(len(heads))
    expected = np.array([head.expected for head in heads])
    shares = np.array([head.distinct_rows for head in heads]) / expected
    sigmas = np.array([max(head.sigma, 1.0) for head in heads]) / expected
    axis.bar(numbers, shares, color=[_ODD if head.odd else _GOOD for head in heads], alpha=0.75)
    axis.errorbar(numbers, np.ones(len(heads)), yerr=3 * sigmas, fmt="none", color="black", capsize=3)
    axis.axhline(1, color="black", linewidth=0.8)
    labels = [f"{head.head}\n{head.order}-gram\n{head.distinct_rows:,}" for head in heads]
    if len(heads) <= 24:
        axis.set_xticks(numbers, labels, fontsize=7)
    axis.set_ylim(0, max(1.15, float(shares.max()) * 1.1))
    axis.set_xlim(-0.6, len(heads) - 0.4)
    axis.set_ylabel("distinct rows,\nshare of expected", fontsize=8)


def _draw_head(axis: Any, head: HeadHits) -> None:
    mean, sigma = head.band()
    bins = np.arange(len(mean))
    axis.bar(bins, head.hits, width=1.0, color=_HITS)
    axis.fill_between(bins, mean - 3 * sigma, mean + 3 * sigma, color="tab:green", alpha=0.3, linewidth=0)
    color = np.where(np.abs(head.distinct - mean) > np.maximum(ODD_SIGMAS * sigma, 1), _ODD, _GOOD)
    axis.scatter(bins, head.distinct, s=3, c=color.tolist(), zorder=3)
    top = max(float((mean + 4 * sigma).max()) * 1.25, float(np.quantile(head.hits, 0.9)) * 1.1, 1.0)
    axis.set_ylim(0, top if not head.odd else max(top, float(head.distinct.max()) * 1.1))
    axis.set_xlim(-0.5, len(mean) - 0.5)
    axis.tick_params(labelsize=6)
    axis.set_xticks([])
    title = f"head {head.head}, {head.order}-gram: {head.distinct_rows / head.size:.1%} of {head.size:,} rows"
    axis.set_title(title, fontsize=7, color=_ODD if head.odd else "black")
