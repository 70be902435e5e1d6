"""Figures 1 to 3 of arXiv 2503.19123: shared vocabularies, a text in tokens, chunks and tokens."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from research.paper.granularity import Granularity
from research.style import line_style, shared_legend, tidy
from vocagno.views.figure import COLOURS, GREY, Kind, Pair, draw_pairs, plain
from vocagno.views.statistics import Link, VocabularyOverlap
from vocagno.views.texts import AlignedText

_SHARES = (
    ("string_share", "of the teacher's, as strings"),
    ("teacher_byte_share", "of the teacher's, as bytes"),
    ("student_byte_share", "of the student's, as bytes"),
)
_HEIGHT = 0.26
"""The height of a bar. The bars of two teachers are 1 apart."""
_LINKS = {
    Link.ONE_TO_ONE: Kind("1:1", GREY, "-", 1.1),
    Link.ONE_TO_MANY: Kind("1:N (one of the student's, N of the teacher's)", COLOURS[1], "-", 1.7),
    Link.MANY_TO_ONE: Kind("N:1", COLOURS[0], "--", 1.3),
    Link.UNMAPPED: Kind("unmapped", GREY, ":", 1.0, "white"),
}
_GAP = 1.6
"""The distance from the last number of chunks to the token level, in doublings."""
_SPREAD = 0.22
"""The distance of two teachers at token level, where they have nearly the same values."""


def draw_vocabulary_overlap(student: str, overlaps: Mapping[str, VocabularyOverlap]) -> Figure:
    """Draws the shared part of the vocabularies, three bars a teacher, first teacher on top
    (Fig. 1)."""
    figure = Figure(figsize=(7.2, 1.3 + 0.75 * len(overlaps)), layout="constrained")
    panel = figure.subplots()
    for index, (share, label) in enumerate(_SHARES):
        values = [getattr(overlap, share) for overlap in overlaps.values()]
        heights = [row + (index - 1) * _HEIGHT for row in range(len(overlaps))]
        bars = panel.barh(heights, values, _HEIGHT * 0.92, color=COLOURS[index], label=label)
        panel.bar_label(bars, [f"{100 * value:.3g}%" for value in values], padding=2, fontsize=8)
    panel.set_xlim(0, 1.12)  # room for "100%"
    panel.set_xticks([0, 0.25, 0.5, 0.75, 1])
    panel.xaxis.set_major_formatter(PercentFormatter(1))
    panel.set_yticks(range(len(overlaps)), list(map(plain, overlaps)))
    panel.set_ylim(len(overlaps) - 0.5, -0.5)
    panel.set_xlabel(f"shared part of the vocabularies of {plain(student)} and teacher")
    tidy(panel)
    panel.grid(visible=False, axis="y")
    panel.tick_params(axis="y", length=0)
    shared_legend(figure, panel, fontsize=9)
    return figure


def draw_tokens(alignments: Sequence[AlignedText]) -> Figure:
    """Draws one text under a student's tokenizer and, below it, under each teacher's (Fig. 2). The
    kind of a line says how many tokens it connects.

    Raises: InputError for a text without tokens, too long, or with characters that the fonts lack.
    """
    pairs = []
    for alignment in alignments:
        kinds = [_LINKS[Link(kind)] for kind in alignment.links.tolist()]
        names = alignment.student.tokenizer, alignment.teacher.tokenizer
        pairs.append(Pair(names, alignment.passage(""), kinds))
    return draw_pairs(pairs, [kind for link, kind in _LINKS.items() if link != Link.UNMAPPED])


def draw_granularity(results: Sequence[Granularity]) -> Figure:
    """Draws mean IoU and IoS, a line a teacher; all with one student and the same levels (Fig.
    3)."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, title, share in zip(panels, ("IoU", "IoS"), ("iou", "ios"), strict=True):
        for index, result in enumerate(results):
            positions = _level_positions(result)
            positions[-1] += (index - (len(results) - 1) / 2) * min(_SPREAD, 1 / len(results))
            values = [getattr(level, share) for level in result.levels]
            _draw_line(panel, positions, values, index, result.teacher)
        _name_levels(panel, results[0])
        panel.set_title(f"{title} with {plain(results[0].student)}", fontsize=11)
        panel.set_ylim(0, 1.04)
        panel.yaxis.set_major_formatter(PercentFormatter(1))
        tidy(panel)
    panels[0].set_ylabel("mean over chunks (characters)")
    shared_legend(figure, panels[0])
    return figure


def _draw_line(
    panel: Axes, positions: Sequence[float], values: Sequence[float], index: int, name: str
) -> None:
    """Draws the levels of chunks as a line, and the token level as a marker."""
    # The first ones are wide and their markers large, so that they show behind others like them.
    size = max(4.0, 8.0 - 1.5 * index)
    style = line_style(index) | {"markersize": size, "linewidth": size / 3.5}
    style["markerfacecolor"] = "none"
    panel.plot(positions[:-1], values[:-1], **style, label=plain(name))
    panel.plot(positions[-1:], values[-1:], **style | {"linestyle": ""})


def _level_positions(result: Granularity) -> list[float]:
    """Places levels at the logarithm of their number of chunks, the token level at the end."""
    positions = [math.log2(level.chunks) for level in result.levels if level.chunks]
    return [*positions, max(positions, default=0.0) + _GAP]


def _name_levels(panel: Axes, result: Granularity) -> None:
    names = [str(level.chunks or "token") for level in result.levels]
    positions = _level_positions(result)
    panel.set_xticks(positions, names, fontsize=8)
    panel.axvline(positions[-1] - _GAP / 2, color="#999999", linewidth=0.8, linestyle=":")
    panel.set_xlabel(f"chunks of a sequence of {result.seq_len:,} student tokens")
