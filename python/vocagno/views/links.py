"""What ties the student's tokens to the teacher's, as HTML: student above, teacher below, losses on
both, a line for each pair, solid where the student token is kept and dashed where it is not.

Drawn in groups as `alignment_html`, but in columns as wide as the numbers need; a token that stands
over several is stretched over them.
"""

import html
from collections.abc import Iterator, Sequence

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.alignment import in_columns, student_title, teacher_title
from vocagno.views.choice import shade
from vocagno.views.glyphs import columns, token_label
from vocagno.views.passage import Passage, groups
from vocagno.views.verdicts import Verdict, verdicts

_NO_LOSS = "–"
_HEIGHT = 10
"""Of the links, in units of their own: they are stretched to what the style gives them."""

Cells = tuple[str, list[tuple[str, str]]]
"""The label of a token, and the numbers below it, each with its class."""

Place = tuple[int, int]
"""First column of a token, and the first one behind it."""


def links_html(passage: Passage, guidance: GuidanceConfig) -> str:
    """Groups in the order of the text, lines as in the text, empty tokens between the groups."""
    found = verdicts(passage, guidance)
    blocks = []
    for group in groups(passage):
        blocks += [_group(passage, guidance, found, [row], []) for row in group.student_before]
        blocks += [_group(passage, guidance, found, [], [row]) for row in group.teacher_before]
        if group.end > group.start:
            blocks.append(_group(passage, guidance, found, group.student, group.teacher))
            if passage.data[group.end - 1] == ord("\n"):
                blocks.append("<br>")
    return f"<div class=links>{''.join(blocks)}</div>"


def _group(
    passage: Passage,
    guidance: GuidanceConfig,
    found: Sequence[Verdict],
    student: Sequence[int],
    teacher: Sequence[int],
) -> str:
    above = {row: _student_cells(passage, row) for row in student}
    below = {row: _teacher_cells(passage, row) for row in teacher}
    widths = [[_width(cells) for cells in side.values()] for side in (above, below)]
    size = max(map(sum, widths))
    upper = dict(zip(student, _places(widths[0], size), strict=True))
    lower = dict(zip(teacher, _places(widths[1], size), strict=True))
    drawn = [
        _token(
            f"data-student={row}", f"tok student {_student_kind(passage, row, found[row])}",
            f"{student_title(passage, row)}\n{html.escape(found[row].words(guidance))}",
            cells, upper[row],
        )
        for row, cells in above.items()
    ]  # fmt: skip
    drawn.append(_lines(passage, found, upper, lower, size))
    drawn += [
        _token(f"data-teacher={row}", "tok teacher", teacher_title(passage, row), cells, lower[row])
        for row, cells in below.items()
    ]
    drawn += [
        f"<span class='nothing {side}'>∅</span>"
        for side, rows in (("student", student), ("teacher", teacher))
        if not rows
    ]
    return f"<span class=tie style='--n:{size}'>{''.join(drawn)}</span>"


def _student_cells(passage: Passage, row: int) -> Cells:
    """What stands in a student token: label, its loss (then the mean of its group, if groups are
    ranked), minus the teacher's, the excess; the weight, if there are any between 0 and 1."""
    token = passage.student[row]
    numbers = [(_number(token.nll), "loss")]
    if token.unit_nll is not None:
        numbers.append((_number(token.unit_nll, "⌀"), "mean"))
    numbers.append((_number(token.teacher_loss, "−"), "teachers"))
    numbers.append((_number(token.excess, sign="+"), "excess"))
    if passage.has_soft_weights:
        numbers.append((f"×{token.weight:.2f}", "weight"))
    return token_label(passage.data, token.start, token.end, token.text), numbers


def _teacher_cells(passage: Passage, row: int) -> Cells:
    token = passage.teacher[row]
    label = token_label(passage.data, token.start, token.end, token.text)
    return label, [(_number(token.nll), "loss")]


def _number(value: float | None, before: str = "", sign: str = "") -> str:
    return _NO_LOSS if value is None else f"{before}{value:{sign}.2f}".replace("-", "−")


def _width(cells: Cells) -> int:
    """Columns of a token with what stands round its label; numbers are set in a smaller size."""
    label, numbers = cells
    return max(columns(label) + 2, *(len(number) + 1 for number, _ in numbers))


def _places(widths: Sequence[int], size: int) -> Iterator[Place]:
    """Places of such widths one after the other, stretched alike to fill `size` columns."""
    total = sum(widths)
    before = 0
    for width in widths:
        yield before * size // total, (before + width) * size // total
        before += width


def _student_kind(passage: Passage, row: int, verdict: Verdict) -> str:
    token = passage.student[row]
    kind = "on" if verdict.kept else "off"
    if verdict.kept and token.excess is not None:
        kind += f" {shade(token.excess)}"
    return kind + (" unmapped" if passage.mapping[row][0] < 0 else "")


def _token(row: str, kind: str, title: str, cells: Cells, place: Place) -> str:
    label, numbers = cells
    column = f"grid-column:{place[0] + 1}/{place[1] + 1}"
    small = "".join(f"<small class={name}>{number}</small>" for number, name in numbers)
    return (
        f'<span class="{kind}" {row} style="{column}" title="{title}">'
        f"<bdo dir=ltr>{in_columns(label)}</bdo>{small}</span>"
    )


def _lines(
    passage: Passage,
    found: Sequence[Verdict],
    upper: dict[int, Place],
    lower: dict[int, Place],
    size: int,
) -> str:
    """A line from the middle of each student token to the middles of its teacher tokens."""
    lines = []
    for row, place in upper.items():
        for other in range(*passage.mapping[row]):
            if other in lower:
                ends = f"x1={sum(place) / 2:g} x2={sum(lower[other]) / 2:g}"
                kind = "on" if found[row].kept else "off"
                lines.append(f"<line class={kind} {ends} y1=0 y2={_HEIGHT} />")
    view = f"0 0 {size} {_HEIGHT}"
    return f"<svg viewBox='{view}' preserveAspectRatio=none aria-hidden=true>{''.join(lines)}</svg>"
