"""Students' scores: by teacher, by granularity, by an option (Fig. 4 to 7 of arXiv 2503.19123)."""

from collections.abc import Sequence
from itertools import pairwise
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from vocagno.evaluation.result_tables import one_decimal
from vocagno.paper.comparisons import OURS, AlignedStudent, GuidedStudents
from vocagno.paper.figures.style import (
    COLOURS,
    MARKERS,
    legend_above,
    line_style,
    plain,
    shared_legend,
    tidy,
    write_near,
)
from vocagno.paper.sweeps import VALIDATION_LOSS, Sweep

_GREY = "#555555"
_BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
_LETTERS = 17
"""Of a teacher's name that fit under its bars."""


def draw_scores(found: GuidedStudents) -> Figure:
    """Draws a group of bars for each teacher, a bar for each method, and naive pretraining."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    groups = [[s for s in found.students if s.teacher == teacher] for teacher in found.teachers]
    width = 0.8 / max(map(len, groups))
    for middle, group in enumerate(groups):
        group.sort(key=lambda student: found.methods.index(student.method))
        for index, student in enumerate(group):
            place = middle + (index - (len(group) - 1) / 2) * width
            colour = COLOURS[_index(found, student.method)]
            axes.bar(place, student.score, width * 0.94, color=colour)
            write_near(axes, one_decimal(student.score), (place, student.score), 2)
    axes.axhline(found.naive_score, color=_GREY, linewidth=1, linestyle="--")
    names = [_under_bars(group[0].teacher, group[0].teacher_score) for group in groups]
    axes.set_xticks(range(len(groups)), names, fontsize=8)
    axes.set_xlabel("teacher, and its own score (%)")
    axes.set_ylabel(f"{found.column} of the student (%)")
    axes.set_ylim(0, 1.12 * max(student.score for student in found.students))
    tidy(axes)
    axes.grid(visible=False, axis="x")
    _legend(axes, found)
    return figure


def draw_gains(found: GuidedStudents) -> Figure:
    """Draws the gain over naive pretraining against the teacher's own score, a line a method.

    Students whose teacher has no score of its own are not drawn.
    """
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    axes = figure.subplots()
    named: set[str] = set()
    for method in reversed(found.methods):
        index = _index(found, method)
        known = [(s.teacher_score, s) for s in found.of(method) if s.teacher_score is not None]
        scores = [score for score, _ in known]
        gains = [student.gain for _, student in known]
        axes.plot(scores, gains, color=COLOURS[index], marker=MARKERS[index], linewidth=1.2)
        is_below = _turns_up(scores, gains)
        for (score, student), below in zip(known, is_below, strict=True):
            if student.teacher not in named:
                place, above = (score, student.gain), -15 if below else 8
                write_near(axes, plain(student.teacher), place, above, color=_GREY, bbox=_BOX)
                named.add(student.teacher)
    axes.axhline(0, color=_GREY, linewidth=1, linestyle="--")
    axes.margins(x=0.12, y=0.1)
    axes.set_xlabel(f"{found.column} of the teacher (%)")
    axes.set_ylabel(f"{found.column} of the student above {found.naive} (points)")
    tidy(axes)
    _legend(axes, found)
    return figure


def _turns_up(scores: Sequence[float], gains: Sequence[float]) -> list[bool]:
    """Of each point, whether the line through it bends upwards, so that there is room below."""
    points = list(zip(scores, gains, strict=True))
    slopes = [(b[1] - a[1]) / max(b[0] - a[0], 1e-9) for a, b in pairwise(points)]
    bends = [after > before for before, after in pairwise(slopes)]
    return [False, *bends, False][: len(points)] if len(points) > 1 else [False] * len(points)


def _under_bars(teacher: str, score: float | None) -> str:
    lines = wrap(plain(teacher), _LETTERS)
    return "\n".join(lines if score is None else [*lines, one_decimal(score)])


def _index(found: GuidedStudents, method: str) -> int:
    """Of its colour: ours has the first, whatever the baselines are."""
    return 0 if method == OURS else 1 + found.methods.index(method)


def _legend(axes: Axes, found: GuidedStudents) -> None:
    """Above the panel: the methods, and the line of naive pretraining."""
    handles: list[Patch | Line2D] = [
        Patch(color=COLOURS[_index(found, method)], label=plain(method)) for method in found.methods
    ]
    naive = f"{plain(found.naive)} ({one_decimal(found.naive_score)})"
    handles.append(Line2D([], [], color=_GREY, linestyle="--", linewidth=1, label=naive))
    legend_above(axes, handles=handles, ncols=len(handles))


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
    shared_legend(figure, panels[0])
    return figure


def _draw_line(panel: Axes, found: Sequence[AlignedStudent], share: str, index: int) -> None:
    """Each level of chunks has its number next to it."""
    guidance = plain(found[0].guidance.lower())
    by = {"teacher": "the teacher", "random": "chance"}.get(guidance, guidance)
    colour = COLOURS[index]
    chunks = [one for one in found if one.chunks is not None]
    tokens = [one for one in found if one.chunks is None]
    for some, kind in ((chunks, "chunks"), (tokens, "tokens")):
        if some:
            shares, scores = [getattr(one, share) for one in some], [one.score for one in some]
            (line,) = panel.plot(shares, scores, color=colour, marker=MARKERS[index], linewidth=1.2)
            line.set_label(f"{kind} chosen by {by}")
            if kind == "tokens":
                line.set(marker="*", markersize=12, linestyle="")
    for one in chunks:
        place = getattr(one, share), one.score
        write_near(panel, str(one.chunks), place, -15 if index else 7, color=colour)


def draw_sweep(found: Sweep) -> Figure:
    """Draws the mean of the runs of each value; where there are several, a bar from the lowest to
    the highest of them."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    points = found.points
    for index, teacher in enumerate(dict.fromkeys(point.teacher for point in points)):
        line = [point for point in points if point.teacher == teacher]
        values, means = [point.x for point in line], [point.mean for point in line]
        down = [point.mean - point.lowest for point in line]
        up = [point.highest - point.mean for point in line]
        style = line_style(index) | {"markersize": 6, "capsize": 3, "label": plain(teacher)}
        axes.errorbar(values, means, yerr=[down, up], **style)
    is_loss = found.quantity == VALIDATION_LOSS
    axes.set_ylabel("validation loss (nats per token)" if is_loss else f"{found.quantity} (%)")
    axes.set_xlabel(found.option)
    axes.set_xticks(sorted({point.x for point in points}))
    axes.margins(x=0.06, y=0.12)
    tidy(axes)
    legend_above(axes, ncols=3)
    return figure
