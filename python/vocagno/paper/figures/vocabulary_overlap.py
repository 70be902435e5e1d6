"""Vocabulary overlap of one student with several teachers (Fig. 1 of arXiv 2503.19123)."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vocagno.paper.figures.style import COLOURS, plain, shared_legend, tidy
from vocagno.paper.vocabulary_overlaps import TeacherOverlap

_SHARES = (
    ("string_share", "of the teacher's, as strings"),
    ("teacher_byte_share", "of the teacher's, as bytes"),
    ("student_byte_share", "of the student's, as bytes"),
)
_HEIGHT = 0.26
"""Of a bar; teachers are 1 apart."""


def draw_vocabulary_overlap(student: str, found: Sequence[TeacherOverlap]) -> Figure:
    """Draws the shared part of the vocabularies, three bars a teacher, first teacher on top.

    A second panel has the teachers' own scores, if any of them has one.
    """
    scored = any(one.score is not None for one in found)
    figure = Figure(figsize=(9 if scored else 7.2, 1.3 + 0.75 * len(found)), layout="constrained")
    panels = figure.subplots(
        1, 1 + scored, sharey=True, squeeze=False, width_ratios=(3, 1.4)[: 1 + scored]
    )[0]
    shares = panels[0]
    _draw_shares(shares, found)
    shares.set_yticks(range(len(found)), [plain(one.teacher) for one in found])
    shares.set_ylim(len(found) - 0.5, -0.5)
    shares.set_xlabel(f"shared part of the vocabularies of {plain(student)} and teacher")
    if scored:
        _draw_scores(panels[1], found)
    for panel in panels:
        tidy(panel)
        panel.grid(visible=False, axis="y")
        panel.tick_params(axis="y", length=0)
    shared_legend(figure, shares, fontsize=9)
    return figure


def _draw_shares(panel: Axes, found: Sequence[TeacherOverlap]) -> None:
    for index, (share, label) in enumerate(_SHARES):
        values = [getattr(one.overlap, share) for one in found]
        places = [row + (index - 1) * _HEIGHT for row in range(len(found))]
        bars = panel.barh(places, values, _HEIGHT * 0.92, color=COLOURS[index], label=label)
        panel.bar_label(bars, [f"{100 * value:.3g}%" for value in values], padding=2, fontsize=8)
    panel.set_xlim(0, 1.12)  # room for "100%"
    panel.set_xticks([0, 0.25, 0.5, 0.75, 1])
    panel.xaxis.set_major_formatter(PercentFormatter(1))


def _draw_scores(panel: Axes, found: Sequence[TeacherOverlap]) -> None:
    """A bar for each score, with the model's name in it if it is another than the tokenizer's."""
    scores = {row: one.score for row, one in enumerate(found) if one.score is not None}
    bars = panel.barh([*scores], [*scores.values()], 2 * _HEIGHT, color="#666666")
    panel.bar_label(bars, [f"{score:#.3g}" for score in scores.values()], padding=2, fontsize=8)
    for row, one in enumerate(found):
        if one.score is None:
            panel.text(0, row, " no score", va="center", fontsize=8, color="#666666")
        elif one.model:
            panel.text(0, row, f" {plain(one.model)}", va="center", fontsize=8, color="white")
    panel.set_xlim(min(0.0, *scores.values()), 1.2 * max(0.0, *scores.values()) or 1.0)
    panel.set_xlabel("teacher's score (AVG)")
