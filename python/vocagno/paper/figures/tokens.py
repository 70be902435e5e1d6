"""Student tokens over teacher tokens, on one axis of characters, with lines between those that are
mapped to one another (Fig. 2 and 8 of arXiv 2503.19123)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from vocagno.errors import InputError
from vocagno.paper.figures.style import COLOURS, plain
from vocagno.views.aligned_text import AlignedText
from vocagno.views.glyphs import glyphs, token_label
from vocagno.views.layout import Columns, lanes, side_by_side
from vocagno.views.passage import Passage, StudentToken, TeacherToken
from vocagno.views.statistics import Link

MOST_COLUMNS = 100
"""Characters that stand side by side in a figure."""

_FONTS = ["DejaVu Sans Mono", "DejaVu Sans"]
"""Come with matplotlib; the second has some signs that the first has not."""
_PAGES = "pages take any text: --html, of `vocagno align` and `vocagno guidance`"
_HEIGHT = 0.68
"""Of a box, in units of the vertical axis; lanes of boxes are 1 apart."""
_TO_TEACHER = 1.75
_TO_NEXT_PAIR = 0.6
_INCHES = 0.38
"""Of such a unit."""
_LEAST_WIDTH = 5.2
"""In inches; the legend takes no less."""
_GREY = "#777777"
_TEACHERS_FILL = "#EEEEEE"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Of student tokens: what their lines are called, and how lines and boxes look."""

    name: str
    colour: str
    dashes: str
    width: float
    fill: str = "#DCEAF4"


_LINKS = {
    Link.ONE_TO_ONE: _Kind("1:1", _GREY, "-", 1.1),
    Link.ONE_TO_MANY: _Kind("1:N (one of the student's, N of the teacher's)", COLOURS[1], "-", 1.7),
    Link.MANY_TO_ONE: _Kind("N:1", COLOURS[0], "--", 1.3),
    Link.UNMAPPED: _Kind("unmapped", _GREY, ":", 1.0, "white"),
}
_CHOICE = {
    True: _Kind("trained on", COLOURS[1], "-", 1.7, "#FADCC8"),
    False: _Kind("left out", _GREY, "--", 1.0, "white"),
}


_ABOVE = 0.3
"""Room for the weights above the boxes of the first row, in units of the vertical axis."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A row of student tokens, and a row of teacher tokens below it."""

    student: str
    teacher: str
    passage: Passage
    kinds: Sequence[_Kind]
    """Of each student token."""


@dataclass(frozen=True, slots=True)
class _Box:
    """A token that has text."""

    left: int
    right: int
    bottom: float
    label: str

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


def draw_tokens(found: Sequence[AlignedText]) -> Figure:
    """Draws one text under a student's tokenizer and, below it, each teacher's; lines by how many
    tokens they tie. Tokens without text are counted, not drawn.

    Args:
        found: at least one, of one text and one student.
    Raises: InputError for a text without tokens, too long, or with characters that the fonts lack.
    """
    pairs = [
        _Pair(
            one.student.tokenizer, one.teacher.tokenizer, one.passage(""),
            [_LINKS[Link(kind)] for kind in one.links.tolist()],
        )
        for one in found
    ]  # fmt: skip
    return _draw(pairs, [kind for link, kind in _LINKS.items() if link != Link.UNMAPPED])


def draw_guidance(passage: Passage) -> Figure:
    """Draws one text with what the student is trained on, by the weights of its tokens; if some lie
    between 0 and 1, with all weights as numbers.

    Raises: as `draw_tokens`.
    """
    choice = _CHOICE
    if passage.has_soft_weights:
        least = f"{passage.least_kept:g}"
        names = {True: f"weight {least} or more", False: f"weight below {least}"}
        choice = {kept: replace(kind, name=names[kept]) for kept, kind in _CHOICE.items()}
    kinds = [choice[passage.is_kept(row)] for row in range(len(passage.student))]
    return _draw([_Pair("student", "teacher", passage, kinds)], [*choice.values()])


def _draw(pairs: Sequence[_Pair], kinds: Sequence[_Kind]) -> Figure:
    """`kinds`: of lines, for the legend."""
    columns = _columns([pair.passage for pair in pairs])
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    rows: list[tuple[float, str]] = []
    top = bottom = 0.0
    for pair in pairs:
        student, teacher = _boxes(pair.passage, columns, top)
        _draw_boxes(axes, student, [kind.fill for kind in pair.kinds])
        if pair.passage.has_soft_weights:
            _draw_weights(axes, pair.passage, student)
        _draw_boxes(axes, teacher, [_TEACHERS_FILL] * len(teacher))
        _draw_links(axes, pair, student, teacher)
        rows += [_row(pair.student, student), _row(pair.teacher, teacher)]
        bottom = min(box.bottom for box in teacher if box)
        top = bottom - _TO_NEXT_PAIR
    axes.set_yticks(*zip(*rows, strict=True), fontsize=9)
    above = _ABOVE if pairs[0].passage.has_soft_weights else 0.1
    axes.set_ylim(bottom - 0.1, above)
    axes.set_xlim(-0.3, columns.width + 0.3)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.set_frame_on(False)
    _legend(figure, [kind for kind in kinds if any(kind in pair.kinds for pair in pairs)])
    of_column = min(0.24, max(0.1, 7.2 / columns.width))
    width = max(_LEAST_WIDTH, 1.7 + columns.width * of_column)
    figure.set_size_inches(width, 0.5 - bottom * _INCHES)
    return figure


def check_text(text: str) -> None:
    """Refuses what takes more than a line, or would be drawn as empty squares.

    Raises: InputError with what to do instead.
    """
    characters = glyphs(text)
    _check_width(sum(glyph.columns for glyph in characters))
    fonts = [get_font(findfont(FontProperties(family=name))) for name in _FONTS]
    for sign in "".join(glyph.shown for glyph in characters):
        if not any(font.get_char_index(ord(sign)) for font in fonts):
            raise InputError(
                f"{sign} (U+{ord(sign):04X}) is in none of the figure's fonts, "
                f"{' and '.join(_FONTS)}; {_PAGES}"
            )


def _check_width(columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise InputError(
            f"the text takes {columns:,} columns; at most {MOST_COLUMNS} stand in a line of a "
            f"figure. Give a shorter one; {_PAGES}"
        )


def _columns(passages: Sequence[Passage]) -> Columns:
    """The one axis of all rows."""
    text = passages[0].text
    check_text(text)
    sides = [_edges(side) for one in passages for side in (one.student, one.teacher)]
    if not all(sides):
        raise InputError(f"no tokens in {text[:40]!r} to draw; give it some text")
    columns = side_by_side(glyphs(text), set().union(*sides))
    _check_width(columns.width)  # characters that are cut take more
    return columns


def _edges(tokens: Iterable[StudentToken | TeacherToken]) -> set[int]:
    """Where the tokens that have text begin and end, in bytes."""
    return {
        edge for token in tokens if token.end > token.start for edge in (token.start, token.end)
    }


def _boxes(
    passage: Passage, columns: Columns, top: float
) -> tuple[list[_Box | None], list[_Box | None]]:
    """Both rows: lanes of the student's go up to `top`, those of the teacher's down from theirs."""
    upper, lower = _lanes(passage.student), _lanes(passage.teacher)
    student_base = top - max(upper.values()) - _HEIGHT
    teacher_base = student_base - _TO_TEACHER

    def boxes(
        tokens: Sequence[StudentToken | TeacherToken], bottoms: dict[int, float]
    ) -> list[_Box | None]:
        return [
            _Box(
                columns.before[token.start], columns.before[token.end], bottoms[row],
                token_label(passage.data, token.start, token.end, token.text),
            )
            if row in bottoms
            else None
            for row, token in enumerate(tokens)
        ]  # fmt: skip

    return (
        boxes(passage.student, {row: student_base + lane for row, lane in upper.items()}),
        boxes(passage.teacher, {row: teacher_base - lane for row, lane in lower.items()}),
    )


def _lanes(tokens: Sequence[StudentToken | TeacherToken]) -> dict[int, int]:
    """By the rows of the tokens that have text."""
    spans = {
        row: (token.start, token.end) for row, token in enumerate(tokens) if token.end > token.start
    }
    return dict(zip(spans, lanes(spans.values()), strict=True))


def _draw_boxes(axes: Axes, boxes: Sequence[_Box | None], fills: Sequence[str]) -> None:
    for box, fill in zip(boxes, fills, strict=True):
        if box is None:
            continue
        corner, width = (box.left + 0.06, box.bottom), box.right - box.left - 0.12
        outline = Rectangle(corner, width, _HEIGHT, facecolor=fill, edgecolor=_GREY, linewidth=0.7)
        axes.add_patch(outline)
        axes.text(
            box.middle, box.bottom + 0.48 * _HEIGHT, plain(box.label), ha="center", va="center",
            family=_FONTS, fontsize=9,
        )  # fmt: skip


def _draw_weights(axes: Axes, passage: Passage, boxes: Sequence[_Box | None]) -> None:
    """Above each student token; ".4" is 0.4."""
    for box, token in zip(boxes, passage.student, strict=True):
        if box is not None:
            weight = f"{token.weight:.2f}".removeprefix("0").rstrip("0").rstrip(".") or "0"
            axes.text(
                box.middle, box.bottom + _HEIGHT + 0.03, weight, ha="center", va="bottom",
                family=_FONTS, fontsize=5.5,
            )  # fmt: skip


def _draw_links(
    axes: Axes, pair: _Pair, student: Sequence[_Box | None], teacher: Sequence[_Box | None]
) -> None:
    for box, kind, (first, stop) in zip(student, pair.kinds, pair.passage.mapping, strict=True):
        for other in teacher[first:stop] if first >= 0 else ():
            if box is not None and other is not None:
                axes.plot(
                    [box.middle, other.middle], [box.bottom, other.bottom + _HEIGHT],
                    color=kind.colour, linestyle=kind.dashes, linewidth=kind.width, zorder=0.5,
                )  # fmt: skip


def _row(name: str, boxes: Sequence[_Box | None]) -> tuple[float, str]:
    """Where the name of a row stands, and the name."""
    bottoms = [box.bottom for box in boxes if box]
    without = len(boxes) - len(bottoms)
    counted = f"{len(boxes):,} token{'s'[: len(boxes) != 1]}"
    counted += f", {without:,} without text" if without else ""
    return (min(bottoms) + max(bottoms) + _HEIGHT) / 2, f"{plain(name)}\n{counted}"


def _legend(figure: Figure, kinds: Sequence[_Kind]) -> None:
    handles = [
        Line2D([], [], color=kind.colour, linestyle=kind.dashes, linewidth=kind.width,
               label=kind.name)
        for kind in kinds
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, fontsize=9
    )
