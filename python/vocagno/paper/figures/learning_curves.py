"""Learning curves: the losses of training runs, and below them the share of tokens selected."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from vocagno.paper.figures.style import count_tokens, legend_above, line_style, plain, tidy
from vocagno.training.run_log import Run

_MARKED: dict[str, Any] = {"markersize": 5, "zorder": 3}
_THIN: dict[str, Any] = {"marker": "", "linewidth": 0.9, "alpha": 0.5}
_GREY = "#555555"
_MOST_MARKERS = 30
_LETTERS = 84
"""That fit in a line above a panel."""


def draw_learning_curves(
    runs: Sequence[Run], *, axes: Sequence[Axes] | None = None
) -> tuple[Figure, Sequence[Axes]]:
    """Draws validation losses (with markers) and training losses (thin), in nats a token, and the
    selected share of the tokens, all over predicted tokens; one colour a run.

    Args:
        axes: two to draw into, losses first; by default those of a new figure.
    Returns: the figure, and its two axes.
    """
    if axes is None:
        new = Figure(figsize=(7.2, 5.4), layout="constrained")
        axes = list(new.subplots(2, 1, sharex=True, height_ratios=(3, 1)))
        new.align_ylabels(axes)
    losses, selected = axes
    drawn = []
    for index, run in enumerate(runs):
        style = line_style(index)
        tokens, values = run.curve("validation_loss")
        every = 1 + len(values) // _MOST_MARKERS
        drawn += losses.plot(tokens, values, **style | _MARKED, markevery=every)
        losses.plot(*run.curve("loss"), **style | _THIN)
        selected.plot(*run.curve("kept_fraction"), **style | _THIN | {"alpha": 1})
    _name_lines(losses, drawn, [run.name for run in runs])
    losses.set_ylabel("loss (nats per token)")
    selected.set_ylabel("selected")
    selected.set_ylim(0, 1.05)
    selected.yaxis.set_major_formatter(PercentFormatter(1))
    count_tokens(selected)
    for panel in axes:
        tidy(panel)
    return losses.figure.figure, axes


def _name_lines(losses: Axes, drawn: Sequence[Line2D], names: Sequence[str]) -> None:
    """A legend above the panel: the runs, then what the two kinds of lines are."""
    validation = Line2D([], [], color=_GREY, marker="o", **_MARKED)
    training = Line2D([], [], color=_GREY, **_THIN)
    labels = [*map(_label, names), "validation", "training"]
    widths = [8 + max(map(len, label.splitlines())) for label in labels]
    columns = len(labels) if sum(widths) <= _LETTERS else max(1, _LETTERS // max(widths))
    handles = [*drawn, validation, training]
    legend_above(losses, handles=handles, labels=labels, ncols=columns)


def _label(name: str) -> str:
    return plain("\n".join(wrap(name, _LETTERS - 10)))
