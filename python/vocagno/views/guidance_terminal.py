"""What the teacher chose in a terminal: a line for each student token and each teacher token of it.

    student  loss       teacher  loss    max  excess
    ␣quick   7.00  ━┳━  ␣qu      3.00   3.00   +4.00  ● top
                    ┗━  ick      0.10

Signs say what colours say; a narrow terminal gets fewer columns. Where there are weights between 0
and 1, the last column begins with the weight.
"""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.glyphs import columns
from vocagno.views.passage import Passage, StudentToken, TeacherToken
from vocagno.views.terminal import short_label
from vocagno.views.verdicts import Verdict, verdicts

_WIDE, _NARROW = 80, 56
"""Terminals from so many columns on show all; under the second, excess losses alone."""
_LEAST_LABEL = 8
_WEIGHT = 4
"""Columns of a weight."""

_SIGNS = {True: "●", False: "○", None: "·"}
_LINKS = {True: ("━━━", "━┳━", " ┣━", " ┗━"), False: ("╌╌╌", "╌┬╌", " ├╌", " └╌")}
"""To one teacher token; to the first, one in the middle, and the last of several."""


def legend(passage: Passage, guidance: GuidanceConfig) -> str:
    """The signs of the table, in a line."""
    kept, dropped = "kept", "dropped"
    if guidance.weight != "hard":
        kept, dropped = f"weight {passage.least_kept:g} or more", "less"
    unmapped = "in no whole group" if guidance.unit == "group" else "unmapped"
    return f"● ━ {kept}   ○ ╌ {dropped}   · not predicted   × {unmapped}   - no loss"


def guidance_table(passage: Passage, guidance: GuidanceConfig, width: int) -> Table:
    """The table for a terminal of so many columns, at least 44."""
    found = verdicts(passage, guidance)
    sizes = _column_sizes(passage, guidance, found, width)
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for name, size in sizes.items():
        on_left = name in ("student", "teacher", "why", "")
        table.add_column(
            _heading(name, passage, guidance), justify="left" if on_left else "right", width=size,
            no_wrap=True, overflow="ellipsis",
        )  # fmt: skip
    for row, verdict in enumerate(found):
        for cells in _lines(passage, row, verdict, sizes):
            style = "" if verdict.kept else "dim"
            table.add_row(*(cells.get(name, "") for name in sizes), style=style)
    return table


def _column_sizes(
    passage: Passage, guidance: GuidanceConfig, found: list[Verdict], width: int
) -> dict[str, int]:
    """The columns that there is room for, by name; tokens share what the others leave."""
    words = max((len(_why(passage, verdict)) for verdict in found), default=0)
    sizes = {
        "#": len(str(max(1, len(found) - 1))), "student": 0, "nll": 6, "": 3, "teacher": 0,
        "loss": 6, "aggregated": max(6, len(_compared(guidance))), "excess": 7, "why": 2 + words,
    }  # fmt: skip
    if width < _WIDE:
        sizes |= {"why": 2 + _WEIGHT if passage.has_soft_weights else 1}
        del sizes["#"]
    if width < _NARROW:
        del sizes["nll"], sizes["aggregated"]
        if passage.has_soft_weights:
            del sizes["loss"]
    between = 2 * (len(sizes) - 1)
    room = max(_LEAST_LABEL, (width - sum(sizes.values()) - between) // 2)
    for side, tokens in (("student", passage.student), ("teacher", passage.teacher)):
        needed = [columns(short_label(passage, token, 2 * room)) for token in tokens]
        sizes[side] = max([len(side), *needed])
    return sizes


def _heading(name: str, passage: Passage, guidance: GuidanceConfig) -> str:
    why = "weight" if passage.has_soft_weights else ""
    headings = {"nll": "loss", "aggregated": _compared(guidance), "why": why}
    return headings.get(name, name)


def _compared(guidance: GuidanceConfig) -> str:
    """How a token's teacher loss came about."""
    return "group" if guidance.unit == "group" else guidance.aggregation


def _why(passage: Passage, verdict: Verdict) -> str:
    """The last column after its sign: the weight, if there are any between 0 and 1, and why."""
    if not passage.has_soft_weights or verdict.why == "not predicted":
        return verdict.short
    weight = f"{verdict.weight:.2f}"
    return weight if verdict.short == "weighted" else f"{weight} {verdict.short}"


def _lines(
    passage: Passage, row: int, verdict: Verdict, sizes: dict[str, int]
) -> Iterator[dict[str, Text]]:
    """Cells of a student token by their columns: a line, and one more for each further teacher
    token that it is mapped to."""
    token, (first, stop) = passage.student[row], passage.mapping[row]
    mark = _SIGNS[None if verdict.why == "not predicted" else verdict.kept]
    words = _why(passage, verdict)[: max(0, sizes["why"] - 2)]
    style = "bold" if verdict.kept else ""
    line = {
        "#": Text(str(row)),
        "student": Text(_label(passage, token, sizes["student"]), f"{style} cyan"),
        "nll": _number(token.nll),
        "": Text(" × ", "red"),
        "aggregated": _number(token.teacher_loss),
        "excess": _number(token.excess, "+", style),
        "why": Text(f"{mark} {words}".rstrip(), f"{style} green" if verdict.kept else ""),
    }
    for place in range(first, stop):
        other = passage.teacher[place]
        line[""] = Text(_link(place - first, stop - first, kept=verdict.kept))
        line["teacher"] = Text(_label(passage, other, sizes["teacher"]), "yellow")
        line["loss"] = _number(other.nll)
        yield line
        line = {}
    if line:
        yield line


def _label(passage: Passage, token: StudentToken | TeacherToken, size: int) -> str:
    return short_label(passage, token, 2 * size)


def _link(index: int, count: int, *, kept: bool) -> str:
    one, first, middle, last = _LINKS[kept]
    if count == 1:
        return one
    return first if index == 0 else last if index == count - 1 else middle


def _number(value: float | None, sign: str = "", style: str = "") -> Text:
    return Text("-" if value is None else f"{value:{sign}.2f}", style)
