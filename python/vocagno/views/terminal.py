"""The alignment of a passage in a terminal: two rows of tokens and the links between them.

    The│␣qu│ick│␣fox     the student's tokens
     │   └─┬─┘   │       1:1, two on one, 1:1
    The│␣quick│␣fox      the teacher's tokens

Every group is a cell of the same width in all three rows; cells fill lines as words do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from vocagno.views.glyphs import columns, token_label
from vocagno.views.passage import Group, Passage, StudentToken, TeacherToken, groups

LEGEND = "│ 1:1   └┬┘ N:1   ┌┴┐ 1:N   × unmapped   ␣ space   ⏎ line break   C3 one byte"

_STUDENT, _TEACHER, _LINK, _UNMAPPED = "bold cyan", "bold yellow", "dim", "bold red"
_MARGIN = "  "


@dataclass(frozen=True, slots=True)
class _Cell:
    """One group: labels of its tokens, which of them are linked, and whether the line ends."""

    student: list[str]
    teacher: list[str]
    linked: list[bool]
    """Which student tokens are mapped."""
    ends_line: bool = False

    @property
    def width(self) -> int:
        return max(_width(self.student), _width(self.teacher), 1)


def terminal_lines(passage: Passage, width: int) -> Iterator[Text]:
    """Lines for a terminal of so many columns, at least 20."""
    room = max(20, width) - len(_MARGIN)
    line: list[_Cell] = []
    for cell in _cells(passage, room):
        used = sum(other.width + 1 for other in line)
        if line and used + cell.width > room:
            yield from _drawn(line)
            line = []
        if cell.width > room:
            yield from _too_wide(cell, room)
            continue
        line.append(cell)
        if cell.ends_line:
            yield from _drawn(line)
            line = []
    if line:
        yield from _drawn(line)


def _cells(passage: Passage, room: int) -> Iterator[_Cell]:
    for group in groups(passage):
        for row in group.student_before:
            yield _Cell([short_label(passage, passage.student[row], room)], [], [False])
        for row in group.teacher_before:
            yield _Cell([], [short_label(passage, passage.teacher[row], room)], [])
        if group.end > group.start:
            yield _cell(passage, group, room)


def _cell(passage: Passage, group: Group, room: int) -> _Cell:
    return _Cell(
        [short_label(passage, passage.student[row], room) for row in group.student],
        [short_label(passage, passage.teacher[row], room) for row in group.teacher],
        [passage.mapping[row][0] >= 0 for row in group.student],
        passage.data[group.end - 1] == ord("\n"),
    )


def short_label(passage: Passage, token: StudentToken | TeacherToken, room: int) -> str:
    """A token's signs; the middle of one that takes more than half a line is counted, not shown."""
    label = token_label(passage.data, token.start, token.end, token.text)
    most = room // 2
    if columns(label) <= most:
        return label
    kept = max(1, (most - 10) // 4)  # characters at each end, which may be wide
    return f"{label[:kept]}⟨+{len(label) - 2 * kept}⟩{label[-kept:]}"


def _width(labels: Sequence[str]) -> int:
    return sum(map(columns, labels)) + max(0, len(labels) - 1)


def _drawn(cells: Sequence[_Cell]) -> Iterator[Text]:
    """Three lines, and an empty one."""
    rows = Text(_MARGIN), Text(_MARGIN), Text(_MARGIN)
    for index, cell in enumerate(cells):
        if index:
            for row, between in zip(rows, "│ │", strict=True):
                row.append(between, _LINK)
        width = cell.width
        for row, labels, style in (
            (rows[0], cell.student, _STUDENT), (rows[2], cell.teacher, _TEACHER),
        ):  # fmt: skip
            _append_labels(row, labels, cell.linked if row is rows[0] else [], style, width)
        rows[1].append(_link(cell), _UNMAPPED if not any(cell.linked) else _LINK)
    for row in rows:
        row.rstrip()
        yield row
    yield Text()


def _append_labels(
    row: Text, labels: Sequence[str], linked: Sequence[bool], style: str, width: int
) -> None:
    left = (width - _width(labels)) // 2
    row.append(" " * left)
    for index, label in enumerate(labels):
        if index:
            row.append("│", _LINK)
        row.append(label, style if not linked or linked[index] else _UNMAPPED)
    row.append(" " * (width - left - _width(labels)))


def _link(cell: _Cell) -> str:
    """The line between the two rows, from the middle of each token to the middle of its others."""
    width = cell.width
    up = [
        at for at, linked in zip(_middles(cell.student, width), cell.linked, strict=True) if linked
    ]
    down = _middles(cell.teacher, width)
    if not up or not down:
        return "×".center(width)
    first, last = min(up[0], down[0]), max(up[-1], down[-1])
    signs = [
        _BOX[at in up, at in down, at > first, at < last] if first <= at <= last else " "
        for at in range(width)
    ]
    return "".join(signs)


def _middles(labels: Sequence[str], width: int) -> list[int]:
    at, middles = (width - _width(labels)) // 2, []
    for label in labels:
        middles.append(at + max(0, columns(label) - 1) // 2)
        at += columns(label) + 1
    return middles


_BOX = {
    (up, down, left, right): sign
    for sign, (up, down, left, right) in {
        "─": (False, False, True, True), "│": (True, True, False, False),
        "└": (True, False, False, True), "┘": (True, False, True, False),
        "┌": (False, True, False, True), "┐": (False, True, True, False),
        "┴": (True, False, True, True), "┬": (False, True, True, True),
        "├": (True, True, False, True), "┤": (True, True, True, False),
        "┼": (True, True, True, True),
    }.items()
}  # fmt: skip
"""Signs by where they lead: up, down, left, right."""


def _too_wide(cell: _Cell, room: int) -> Iterator[Text]:
    """A group of more tokens than fit a line: the student's, how many to how many, the others."""
    yield from _wrapped(cell.student, _STUDENT, room)
    yield Text(f"{_MARGIN}└── {len(cell.student)}:{len(cell.teacher)} ──┐", _LINK)
    yield from _wrapped(cell.teacher, _TEACHER, room)
    yield Text()


def _wrapped(labels: Sequence[str], style: str, room: int) -> Iterator[Text]:
    row, used = Text(_MARGIN), 0
    for index, label in enumerate(labels):
        if used and used + 1 + columns(label) > room:
            yield row
            row, used = Text(_MARGIN), 0
        if index:
            row.append("│", _LINK)
            used += 1
        row.append(label, style)
        used += columns(label)
    yield row
