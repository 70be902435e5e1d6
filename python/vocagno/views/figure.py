"""Draws the tokens of one text under two tokenizers with matplotlib, in one line: student tokens
above, teacher tokens below, lines between them (Fig. 8 of arXiv 2503.19123)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from vocagno.errors import InputError
from vocagno.system.files import atomic_file
from vocagno.views.layout import Block, Columns, Placed, over_whole_text, side_by_side, token_edges
from vocagno.views.passage import Passage, Token, glyphs

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, which colour-blind people can tell apart, without its yellow, which
is pale on white."""
GREY = "#777777"
FORMATS = (".png", ".svg")
MOST_COLUMNS = 100
"""Width of the longest text that is drawn, in columns of a fixed-width font."""

_FONTS = ["DejaVu Sans Mono", "DejaVu Sans"]
"""Fonts that are part of matplotlib. The second has some signs that the first lacks."""
_PAGES = "pages take any text: --html, of `vocagno align` and `vocagno guidance`"
_HEIGHT = 0.68
"""Height of a box, in units of the vertical axis. Lanes of boxes are 1 apart."""
_TO_TEACHER = 1.75
_TO_NEXT_PAIR = 0.6
_INCHES = 0.38
"""Height of such a unit, in inches."""
_LEAST_WIDTH = 5.2
"""Width that the legend needs, in inches."""
_TEACHERS_FILL = "#EEEEEE"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of student tokens: its name, and the look of its lines and boxes."""

    name: str
    colour: str
    dashes: str
    width: float
    fill: str = "#DCEAF4"

    @property
    def line(self) -> dict[str, Any]:
        """The keyword arguments of matplotlib that give a line its look."""
        return {"color": self.colour, "linestyle": self.dashes, "linewidth": self.width}


_CHOICE = {
    True: Kind("trained on", COLOURS[1], "-", 1.7, "#FADCC8"),
    False: Kind("dropped", GREY, "--", 1.0, "white"),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A row of student tokens, and a row of teacher tokens below it."""

    names: tuple[str, str]
    """Names of the student and the teacher."""
    passage: Passage
    kinds: Sequence[Kind]
    """The kind of each student token."""


Bottoms = Mapping[int, float]
"""Lower edge of the box of each token that has text, by the token's row."""


def draw_guidance(passage: Passage) -> Figure:
    """Draws one text with the tokens that the student is trained on.

    Raises: InputError for a text without tokens, too long, or with characters that the fonts lack.
    """
    kinds = [_CHOICE[passage.is_kept(row)] for row in range(len(passage.student))]
    return draw_pairs([Pair(("student", "teacher"), passage, kinds)], [*_CHOICE.values()])


def draw_pairs(pairs: Sequence[Pair], kinds: Sequence[Kind]) -> Figure:
    """Draws one text in each pair of rows, one below the other.

    Tokens without text are counted, not drawn.

    Args:
        pairs: at least one; all have the same text.
        kinds: the kinds of lines, in the order of the legend.
    Raises: InputError for a text without tokens, too long, or with characters that the fonts lack.
    """
    axis = _axis([pair.passage for pair in pairs])
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    rows: list[tuple[float, str]] = []
    top = bottom = 0.0
    for pair in pairs:
        block = over_whole_text(pair.passage, axis)
        student_base = top - max(token.lane for token in block.student) - _HEIGHT
        teacher_base = student_base - _TO_TEACHER
        bottoms = (
            {token.row: student_base + token.lane for token in block.student},
            {token.row: teacher_base - token.lane for token in block.teacher},
        )
        _draw_pair(axes, pair, block, bottoms)
        rows += map(_row, pair.names, pair.passage.sides, bottoms)
        bottom = min(bottoms[1].values())
        top = bottom - _TO_NEXT_PAIR
    axes.set_yticks(*zip(*rows, strict=True), fontsize=9)
    axes.set_ylim(bottom - 0.1, 0.1)
    axes.set_xlim(-0.3, axis.width + 0.3)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.set_frame_on(False)
    used_kinds = [kind for kind in kinds if any(kind in pair.kinds for pair in pairs)]
    handles = [Line2D([], [], label=kind.name, **kind.line) for kind in used_kinds]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, fontsize=9
    )
    inches_per_column = min(0.24, max(0.1, 7.2 / axis.width))
    width = max(_LEAST_WIDTH, 1.7 + axis.width * inches_per_column)
    figure.set_size_inches(width, 0.5 - bottom * _INCHES)
    return figure


def check_text(text: str) -> None:
    """Refuses a text that needs more than a line, or characters that the fonts lack.

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
            f"the text takes {columns:,} columns; at most {MOST_COLUMNS} fit in a line of a "
            f"figure. Give a shorter one; {_PAGES}"
        )


def _axis(passages: Sequence[Passage]) -> Columns:
    """Returns the one axis of all rows. All edges of their tokens lie between its columns."""
    text = passages[0].text
    check_text(text)
    edges = [token_edges(side) for passage in passages for side in passage.sides]
    if not all(edges):
        raise InputError(f"no tokens in {text[:40]!r} to draw; give it some text")
    axis = side_by_side(glyphs(text), set().union(*edges))
    _check_width(axis.width)  # characters that are cut take more
    return axis


def _draw_pair(axes: Axes, pair: Pair, block: Block, bottoms: tuple[Bottoms, Bottoms]) -> None:
    for token in block.student:
        label = pair.passage.label(pair.passage.student[token.row])
        _draw_box(axes, token, bottoms[0][token.row], label, pair.kinds[token.row].fill)
    for token in block.teacher:
        label = pair.passage.label(pair.passage.teacher[token.row])
        _draw_box(axes, token, bottoms[1][token.row], label, _TEACHERS_FILL)
    for line in block.lines:
        upper = bottoms[0][line.student.row]
        lower = bottoms[1][line.teacher.row] + _HEIGHT
        style = pair.kinds[line.student.row].line
        axes.plot([line.student.middle, line.teacher.middle], [upper, lower], zorder=0.5, **style)


def _draw_box(axes: Axes, token: Placed, bottom: float, label: str, fill: str) -> None:
    corner, width = (token.left + 0.06, bottom), token.right - token.left - 0.12
    axes.add_patch(Rectangle(corner, width, _HEIGHT, facecolor=fill, edgecolor=GREY, linewidth=0.7))
    centre = token.middle, bottom + 0.48 * _HEIGHT
    axes.text(*centre, plain(label), ha="center", va="center", family=_FONTS, fontsize=9)


def _row(name: str, tokens: Sequence[Token], bottoms: Bottoms) -> tuple[float, str]:
    """Returns the middle of a row, and its name with the number of tokens."""
    num_empty = len(tokens) - len(bottoms)
    counts = f"{len(tokens):,} token{'s'[: len(tokens) != 1]}"
    counts += f", {num_empty:,} without text" if num_empty else ""
    middle = (min(bottoms.values()) + max(bottoms.values()) + _HEIGHT) / 2
    return middle, f"{plain(name)}\n{counts}"


def plain(name: str) -> str:
    """Escapes a name, so that matplotlib shows it as it is."""
    # matplotlib takes $ for mathematics, and hides from the legend what begins with a `_`.
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def check_format(path: Path, option: str) -> None:
    """Refuses a file that `save` cannot write.

    Raises: InputError naming the option.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{option}: expected a file ending in .png or .svg, got {path}")


def save(figure: Figure, path: Path) -> None:
    """Writes PNG or SVG, by the suffix; the same figure gives the same bytes."""
    kind = path.suffix.lower().removeprefix(".")
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "vocagno"}), atomic_file(path) as file:
        figure.savefig(file, format=kind, dpi=160, metadata=metadata)
