"""Draws passages in a terminal. The alignment: two rows of tokens, and lines between them.

    The│␣qu│ick│␣fox     the student's tokens
     │   └─┬─┘   │       1:1, two on one, 1:1
    The│␣quick│␣fox      the teacher's tokens

The guidance: a table with a line for each student token, and one for each teacher token of it.

    student  loss       teacher  loss    max  excess
    ␣quick   7.00  ━┳━  ␣qu      3.00   3.00   +4.00  ● top
                    ┗━  ick      0.10
"""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.layout import Block, Placed, in_rows
from vocagno.views.passage import Passage, Token, columns, number, shorten

LEGEND = "│ 1:1   └┬┘ N:1   ┌┴┐ 1:N   × unmapped   ␣ space   ⏎ line break   C3 one byte"
"""Signs of `terminal_lines`."""

Labels = Sequence[Sequence[str]]
"""Labels of the student's tokens, and labels of the teacher's tokens."""

_STUDENT, _TEACHER, _LINK, _UNMAPPED = "bold cyan", "bold yellow", "dim", "bold red"
_MARGIN = "  "
_BOXES = {"lr": "─", "ud": "│", "ur": "└", "ul": "┘", "dr": "┌", "dl": "┐"}
_BOXES |= {"ulr": "┴", "dlr": "┬", "udr": "├", "udl": "┤", "udlr": "┼"}
"""Signs by where lines lead from them: up, down, left, right."""

_WIDE, _NARROW = 80, 56
"""Columns that the whole table needs, and those below which it shows no loss but the excess."""
_LEAST_LABEL = 8
_SIGNS = {True: "●", False: "○", None: "·"}
_TIES = {True: ("━━━", "━┳━", " ┣━", " ┗━"), False: ("╌╌╌", "╌┬╌", " ├╌", " └╌")}
"""Signs from a student token to its teacher tokens: to a single one; and to the first, one in the
middle, and the last of several."""


def terminal_lines(passage: Passage, width: int) -> Iterator[Text]:
    """Draws the alignment for a terminal of `width` columns, at least 20; blocks wrap as words."""
    room = max(20, width) - len(_MARGIN)
    labels = [[shorten(passage.label(t), room // 2) for t in side] for side in passage.sides]
    line: list[Block] = []
    for block in in_rows(passage, [[columns(label) for label in side] for side in labels]):
        if line and sum(previous.width + 1 for previous in line) + block.width > room:
            yield from _draw_line(line, labels)
            line = []
        if block.width > room:
            yield from _too_wide(block, labels, room)
            continue
        line.append(block)
        if block.ends_line:
            yield from _draw_line(line, labels)
            line = []
    if line:
        yield from _draw_line(line, labels)


def _draw_line(blocks: Sequence[Block], labels: Labels) -> Iterator[Text]:
    """Draws blocks next to each other: student tokens, lines, teacher tokens, and an empty row."""
    rows = Text(_MARGIN), Text(_MARGIN), Text(_MARGIN)
    for index, block in enumerate(blocks):
        linked = {line.student.row for line in block.lines}
        cells = (
            _cell(block.student, labels[0], block.width, _STUDENT, linked),
            Text(_bars(block), _LINK if linked else _UNMAPPED),
            _cell(block.teacher, labels[1], block.width, _TEACHER),
        )
        for row, cell, between in zip(rows, cells, "│ │", strict=True):
            row.append(between if index else "", _LINK).append_text(cell)
    for row in rows:
        row.rstrip()
        yield row
    yield Text()


def _cell(
    tokens: Sequence[Placed],
    labels: Sequence[str],
    width: int,
    style: str,
    linked: set[int] | None = None,
) -> Text:
    """Draws one side of a block.

    Args: linked: rows of the tokens that are mapped; by default all.
    """
    cell = Text(" " * (tokens[0].left if tokens else width))
    for token in tokens:
        cell.append("│" if token is not tokens[0] else "", _LINK)
        is_linked = linked is None or token.row in linked
        cell.append(labels[token.row], style if is_linked else _UNMAPPED)
    return cell.append(" " * (width - tokens[-1].right if tokens else 0))


def _bars(block: Block) -> str:
    """Draws the line between the two rows, from the middle of each token to the middles of those
    that it is mapped to."""
    if not block.lines:
        return "×".center(block.width)
    up = {_middle(line.student) for line in block.lines}
    down = {_middle(line.teacher) for line in block.lines}
    first, last = min(up | down), max(up | down)
    signs = []
    for column in range(block.width):
        sides = "l" * (first < column <= last) + "r" * (first <= column < last)
        signs.append(_BOXES.get("u" * (column in up) + "d" * (column in down) + sides, " "))
    return "".join(signs)


def _middle(token: Placed) -> int:
    return max(token.left, (token.left + token.right - 1) // 2)


def _too_wide(block: Block, labels: Labels, room: int) -> Iterator[Text]:
    """Draws a block that is wider than a line: the student's tokens, the numbers of tokens of both
    sides, and the teacher's tokens."""
    yield from _wrap(block.student, labels[0], _STUDENT, room)
    yield Text(f"{_MARGIN}└── {len(block.student)}:{len(block.teacher)} ──┐", _LINK)
    yield from _wrap(block.teacher, labels[1], _TEACHER, room)
    yield Text()


def _wrap(tokens: Sequence[Placed], labels: Sequence[str], style: str, room: int) -> Iterator[Text]:
    row, used = Text(_MARGIN), 0
    for token in tokens:
        label = labels[token.row]
        if used and used + 1 + columns(label) > room:
            yield row
            row, used = Text(_MARGIN), 0
        if token is not tokens[0]:
            row.append("│", _LINK)
            used += 1
        row.append(label, style)
        used += columns(label)
    yield row


def guidance_signs(guidance: GuidanceConfig) -> str:
    """Returns the legend of `guidance_table`, a line."""
    unmapped = "in no whole group" if guidance.unit == "group" else "unmapped"
    return f"● ━ kept   ○ ╌ dropped   · not predicted   × {unmapped}   - no loss"


def guidance_table(passage: Passage, guidance: GuidanceConfig, width: int) -> Table:
    """Returns a table of all tokens for a terminal of `width` columns, at least 44."""
    sizes = _column_sizes(passage, guidance, width)
    headings = {"nll": "loss", "aggregated": _teacher_loss_heading(guidance), "why": ""}
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for name, size in sizes.items():
        table.add_column(
            headings.get(name, name),
            justify="left" if name in ("student", "teacher", "why", "") else "right",
            width=size,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in range(len(passage.student)):
        for cells in _table_lines(passage, row, sizes):
            style = "" if passage.is_kept(row) else "dim"
            table.add_row(*(cells.get(name, "") for name in sizes), style=style)
    return table


def _column_sizes(passage: Passage, guidance: GuidanceConfig, width: int) -> dict[str, int]:
    """Returns the widths of the columns that the terminal has room for, by name. The two columns of
    tokens share what the others leave."""
    words = max((len(token.verdict) for token in passage.student), default=0)
    last = max(1, len(passage.student) - 1)
    sizes = {"#": len(str(last)), "student": 0, "nll": 6, "": 3, "teacher": 0}
    sizes |= {"loss": 6, "aggregated": max(6, len(_teacher_loss_heading(guidance))), "excess": 7}
    sizes |= {"why": 2 + words}
    if width < _WIDE:
        sizes |= {"why": 1}
        del sizes["#"]
    if width < _NARROW:
        del sizes["nll"], sizes["aggregated"]
    between = 2 * (len(sizes) - 1)
    room = max(_LEAST_LABEL, (width - sum(sizes.values()) - between) // 2)
    for name, tokens in zip(("student", "teacher"), passage.sides, strict=True):
        needed = (columns(shorten(passage.label(token), room)) for token in tokens)
        sizes[name] = max(len(name), *needed, 0)
    return sizes


def _teacher_loss_heading(guidance: GuidanceConfig) -> str:
    """Returns the heading of the teacher losses: what they were computed over, or by."""
    return "group" if guidance.unit == "group" else guidance.aggregation


def _table_lines(passage: Passage, row: int, sizes: dict[str, int]) -> Iterator[dict[str, Text]]:
    """Yields the lines of a student token as cells by column: one line, and another for each
    further teacher token that it is mapped to."""
    token, (first, stop) = passage.student[row], passage.mapping[row]
    kept = passage.is_kept(row)
    mark = _SIGNS[None if token.why == "not predicted" else kept]
    words = token.verdict[: max(0, sizes["why"] - 2)]
    style = "bold" if kept else ""
    line = {
        "#": Text(str(row)),
        "student": _label(passage, token, sizes["student"], f"{style} cyan"),
        "nll": _number(token.nll),
        "": Text(" × ", "red"),
        "aggregated": _number(token.teacher_loss),
        "excess": _number(token.excess, "+.2f", style),
        "why": Text(f"{mark} {words}".rstrip(), f"{style} green" if kept else ""),
    }
    single, top, middle, bottom = _TIES[kept]
    for teacher_row in range(first, stop):
        tie = top if teacher_row == first else bottom if teacher_row == stop - 1 else middle
        line[""] = Text(single if stop - first == 1 else tie)
        teacher_token = passage.teacher[teacher_row]
        line["teacher"] = _label(passage, teacher_token, sizes["teacher"], "yellow")
        line["loss"] = _number(teacher_token.nll)
        yield line
        line = {}  # the student's cells stand in the first line only
    if line:  # mapped to nothing
        yield line


def _label(passage: Passage, token: Token, room: int, style: str) -> Text:
    return Text(shorten(passage.label(token), room), style)


def _number(value: float | None, form: str = ".2f", style: str = "") -> Text:
    return Text(number(value, form, missing="-"), style)
