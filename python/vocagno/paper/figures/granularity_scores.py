"""Scores against how well the aligned pieces meet (Fig. 6 of arXiv 2503.19123)."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vocagno.paper.comparisons import AlignedStudent
from vocagno.paper.figures.style import COLOURS, MARKERS, tidy


def draw_granularity_scores(found: Sequence[AlignedStudent], column: str) -> Figure:
    """Draws the students over IoU and over IoS, in two panels: chunks as a line from few to many,
    whoever chose them, and tokens as a star.

    Args:
        found: at least one, as `compare_granularities` orders them.
        column: the score's name.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    guidances = sorted({one.guidance for one in found}, reverse=True)  # the teacher before chance
    for panel, title, share in zip(panels, ("IoU", "IoS"), ("iou", "ios"), strict=True):
        for index, guidance in enumerate(guidances):
            _draw_line(panel, [one for one in found if one.guidance == guidance], share, index)
        panel.set_xlabel(f"mean {title} of the aligned pieces (characters)")
        panel.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        panel.margins(x=0.08, y=0.12)
        tidy(panel)
    panels[0].set_ylabel(f"{column} of the student (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _draw_line(panel: Axes, found: Sequence[AlignedStudent], share: str, index: int) -> None:
    """Each level of chunks has its number beside it."""
    guidance = found[0].guidance.lower().replace("$", r"\$")
    by = {"teacher": "the teacher", "random": "chance"}.get(guidance, guidance)
    colour = COLOURS[index]
    chunks = [one for one in found if one.chunks is not None]
    if chunks:
        panel.plot(
            [getattr(one, share) for one in chunks], [one.score for one in chunks], color=colour,
            marker=MARKERS[index], linewidth=1.2, label=f"chunks chosen by {by}",
        )  # fmt: skip
    for one in chunks:
        panel.annotate(
            f"{one.chunks}", (getattr(one, share), one.score), (0, -15 if index else 7),
            textcoords="offset points", ha="center", fontsize=8, color=colour,
        )  # fmt: skip
    tokens = [one for one in found if one.chunks is None]
    if tokens:
        panel.plot(
            [getattr(one, share) for one in tokens], [one.score for one in tokens], color=colour,
            marker="*", markersize=12, linestyle="", label=f"tokens chosen by {by}",
        )  # fmt: skip
