"""IoU and IoS over the number of chunks, and at token level (Fig. 3 of arXiv 2503.19123)."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vocagno.paper.figures.style import line_style, plain, shared_legend, tidy
from vocagno.paper.granularity import Granularity

_GAP = 1.6
"""Between the last number of chunks and the token level, in doublings."""
_SPREAD = 0.22
"""Between the teachers at token level, where they have much the same values."""


def draw_granularity(found: Sequence[Granularity]) -> Figure:
    """Draws mean IoU and mean IoS, in two panels, one line a teacher.

    Args:
        found: at least one, of one student and with the same levels.
    """
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, title, share in zip(panels, ("IoU", "IoS"), ("iou", "ios"), strict=True):
        for index, one in enumerate(found):
            places = _places(one)
            places[-1] += (index - (len(found) - 1) / 2) * min(_SPREAD, 1 / len(found))
            values = [getattr(level, share) for level in one.levels]
            _draw_line(panel, places, values, index, one.teacher)
        _name_levels(panel, found[0])
        panel.set_title(f"{title} with {plain(found[0].student)}", fontsize=11)
        panel.set_ylim(0, 1.04)
        panel.yaxis.set_major_formatter(PercentFormatter(1))
        tidy(panel)
    panels[0].set_ylabel("mean over chunks (characters)")
    shared_legend(figure, panels[0])
    return figure


def _draw_line(
    panel: Axes, places: Sequence[float], values: Sequence[float], index: int, name: str
) -> None:
    """The chunks as a line; the token level as only a marker."""
    # The first ones are wide and their markers large, so that they show behind others like them.
    size = max(4.0, 8.0 - 1.5 * index)
    style = line_style(index) | {"markersize": size, "linewidth": size / 3.5}
    style["markerfacecolor"] = "none"
    panel.plot(places[:-1], values[:-1], **style, label=plain(name))
    panel.plot(places[-1:], values[-1:], **style | {"linestyle": ""})


def _places(one: Granularity) -> list[float]:
    """Where the levels stand: at the logarithm of their number of chunks, tokens at the end."""
    places = [math.log2(level.chunks) for level in one.levels if level.chunks]
    return [*places, max(places, default=0.0) + _GAP]


def _name_levels(panel: Axes, one: Granularity) -> None:
    names = [str(level.chunks or "token") for level in one.levels]
    places = _places(one)
    panel.set_xticks(places, names, fontsize=8)
    panel.axvline(places[-1] - _GAP / 2, color="#999999", linewidth=0.8, linestyle=":")
    panel.set_xlabel(f"chunks of a sequence of {one.seq_len:,} student tokens")
