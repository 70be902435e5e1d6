"""Students by their teachers: scores, and what they gain (Fig. 4 and 5 of arXiv 2503.19123)."""

from collections.abc import Sequence
from itertools import pairwise
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from vocagno.evaluation.result_tables import one_decimal
from vocagno.paper.comparisons import OURS, GuidedStudents
from vocagno.paper.figures.style import COLOURS, MARKERS, tidy

_GREY = "#555555"
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
            axes.annotate(
                one_decimal(student.score), (place, student.score), (0, 2), ha="center", fontsize=8,
                textcoords="offset points",
            )  # fmt: skip
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
                _name(axes, student.teacher, (score, student.gain), below=below)
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


def _name(axes: Axes, teacher: str, place: tuple[float, float], *, below: bool) -> None:
    axes.annotate(
        _plain(teacher), place, (0, -15 if below else 8), textcoords="offset points", ha="center",
        fontsize=8, color=_GREY,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
    )  # fmt: skip


def _under_bars(teacher: str, score: float | None) -> str:
    lines = wrap(_plain(teacher), _LETTERS)
    return "\n".join(lines if score is None else [*lines, one_decimal(score)])


def _index(found: GuidedStudents, method: str) -> int:
    """Of its colour: ours has the first, whatever the baselines are."""
    return 0 if method == OURS else 1 + found.methods.index(method)


def _plain(name: str) -> str:
    """A name as it is: matplotlib takes $ for mathematics."""
    return name.replace("$", r"\$")


def _legend(axes: Axes, found: GuidedStudents) -> None:
    """Above the panel: the methods, and the line of naive pretraining."""
    handles: list[Patch | Line2D] = [
        Patch(color=COLOURS[_index(found, method)], label=_plain(method))
        for method in found.methods
    ]
    naive = f"{_plain(found.naive)} ({one_decimal(found.naive_score)})"
    handles.append(Line2D([], [], color=_GREY, linestyle="--", linewidth=1, label=naive))
    axes.legend(
        handles=handles, ncols=len(handles), loc="lower left", bbox_to_anchor=(0, 1),
        borderaxespad=0, frameon=False,
    )  # fmt: skip
