"""A table of a study as dots: every seed, and the mean of each variant."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from research.study.comparison import Row, Spread
from research.style import tidy
from vocagno.views.figure import COLOURS, plain


def draw_study(rows: Sequence[Row]) -> Figure:
    """One line a variant, top down as given: differences of the held-out loss from what each is
    compared with, seed by seed (left is better); and exact answers, where there are any."""
    has_answers = any(row.exact_answers for row in rows)
    panels = 2 if has_answers else 1
    figure = Figure(figsize=(7.2, 1.1 + 0.27 * len(rows)), layout="constrained")
    axes = list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])
    places = range(len(rows), 0, -1)
    for place, row in zip(places, rows, strict=True):
        if row.against is None:
            axes[0].plot([0], [place], linestyle="", marker="|", color="#555555", markersize=11)
        elif row.difference:
            _dots(axes[0], place, row.difference, COLOURS[0])
        if has_answers and row.exact_answers:
            _dots(axes[1], place, row.exact_answers, COLOURS[1])
    axes[0].axvline(0, color="#555555", linewidth=0.8, linestyle="--")
    axes[0].set_yticks(list(places), [plain(row.variant) for row in rows], fontsize=8)
    axes[0].set_ylim(0.4, len(rows) + 0.6)
    baselines = {row.against for row in rows if row.against is not None}
    baseline = plain(baselines.pop()) if len(baselines) == 1 else "naive training"
    axes[0].set_xlabel(f"held-out loss less that of\n{baseline} (nats a token)")
    if has_answers:
        axes[1].set_xlabel("exact answers (%)")
    for panel in axes:
        tidy(panel)
    return figure


def _dots(axes: Axes, place: int, spread: Spread, colour: str) -> None:
    style: dict[str, Any] = {"linestyle": "", "color": colour}
    places = [place] * len(spread.values)
    axes.plot(
        spread.values, places, marker="o", markersize=4, alpha=0.35, markeredgewidth=0, **style
    )
    axes.plot([spread.mean], [place], marker="|", markersize=11, markeredgewidth=2, **style)
