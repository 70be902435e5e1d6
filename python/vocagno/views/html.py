"""The picture of a passage as HTML, without the page around it.

A block of the layout is a grid of `--n` columns: student tokens, lines, teacher tokens. Each token
has its row as `data-student` or `data-teacher`, its losses as small numbers below its label, and
its facts as a tooltip.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from vocagno.views.layout import Block, Placed, in_rows
from vocagno.views.passage import (
    Passage,
    Token,
    columns,
    is_wide,
    number,
    visible,
    visible_character,
)

INTENSITY_NATS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Excess losses, in nats, at which the shade of a kept token deepens."""

_HAVE_PARTNERS = ("unscored", "partial")
"""Reasons of tokens that share text with the teacher's but cannot be compared."""

_HEIGHT = 10
"""Of the lines, in their own units; the style stretches them."""


class _Box(NamedTuple):
    """A token: its classes, its label, its tooltip, and the numbers below it."""

    kind: str
    label: str
    title: str
    numbers: Sequence[str] = ()

    @property
    def width(self) -> int:
        """Columns with some space around the label; numbers are in a smaller size. An even number,
        so that one box is in the middle of another."""
        room = max(columns(self.label) + 2, *(len(text) + 1 for text in self.numbers), 0)
        return room + room % 2


def escaped(text: str) -> str:
    """Plain words for HTML, hidden characters made visible except blanks and line breaks."""
    return escape("".join(c if c in " \n" else visible_character(c) for c in text))


def picture(passage: Passage) -> str:
    """Student tokens above teacher tokens, and a line for each pair; with losses, if there are any.

    Lines are solid and borders thick where the student token is kept.
    """
    boxes = (
        [_student(passage, row) for row in range(len(passage.student))],
        [_teacher(passage, row) for row in range(len(passage.teacher))],
    )
    widths = [[box.width for box in side] for side in boxes]
    parts = []
    for block in in_rows(passage, widths):
        parts.append(_group(block, boxes))
        if block.ends_line:
            parts.append("<br>")
    kind = "picture chosen" if passage.has_losses else "picture"
    return f"<div class='{kind}'>{''.join(parts)}</div>"


def _student(passage: Passage, row: int) -> _Box:
    token, kind = passage.student[row], "tok student"
    if passage.has_losses:
        kind += " on" if passage.is_kept(row) else " off"
        if passage.is_kept(row) and token.excess is not None:
            kind += f" level{sum(token.excess >= nats for nats in INTENSITY_NATS)}"
    kind += " unmapped" if passage.mapping[row][0] < 0 else ""
    numbers = [_number(token.nll), _number(token.excess, "+.2f")] if passage.has_losses else []
    return _Box(kind, passage.label(token), _title(passage, row), numbers)


def _teacher(passage: Passage, row: int) -> _Box:
    token = passage.teacher[row]
    kind = "tok teacher" + ("" if token.start < token.end else " unmapped")
    title, numbers = _facts("teacher", row, token), []
    if passage.has_losses:
        title, numbers = [*title, f"loss {number(token.nll)} nats"], [_number(token.nll)]
    return _Box(kind, passage.label(token), "\n".join(title), numbers)


def _number(value: float | None, form: str = ".2f") -> str:
    return number(value, form, missing="–").replace("-", "−")


def _group(block: Block, boxes: Sequence[Sequence[_Box]]) -> str:
    student, teacher = (
        "".join(_token(side, own[token.row], token) for token in tokens)
        or f"<span class='nothing {side}'>∅</span>"
        for side, own, tokens in zip(
            ("student", "teacher"), boxes, (block.student, block.teacher), strict=True
        )
    )
    lines = "".join(
        f"<line class={'on' if line.is_kept else 'off'} x1={line.student.middle:g} "
        f"x2={line.teacher.middle:g} y1=0 y2={_HEIGHT} />"
        for line in block.lines
    )
    view = f"viewBox='0 0 {block.width} {_HEIGHT}' preserveAspectRatio=none aria-hidden=true"
    return (
        f"<span class=group style='--n:{block.width}'>{student}<svg {view}>{lines}</svg>{teacher}"
        "</span>"
    )


def _token(side: str, box: _Box, placed: Placed) -> str:
    small = "".join(f"<small>{text}</small>" for text in box.numbers)
    return (
        f'<span class="{box.kind}" data-{side}={placed.row} '
        f'style="grid-column:{placed.left + 1}/{placed.right + 1}" title="{escape(box.title)}">'
        f"<bdo dir=ltr>{''.join(map(_in_columns, box.label))}</bdo>{small}</span>"
    )


def _in_columns(character: str) -> str:
    """A wide character takes two columns in every font."""
    return f"<span class=wide>{character}</span>" if is_wide(character) else escape(character)


def _title(passage: Passage, row: int) -> str:
    """The tooltip of a student token."""
    token, (first, stop) = passage.student[row], passage.mapping[row]
    others = "no group with all losses" if token.reason in _HAVE_PARTNERS else "no teacher token"
    if stop > first >= 0:
        others = f"teacher tokens {first}-{stop - 1}"
    facts = [*_facts("student", row, token), others]
    if not passage.has_losses:
        return "\n".join(facts + [f"unmapped: {token.reason}"] * (token.reason != "mapped"))
    group = "" if token.unit_nll is None else f", of its group {number(token.unit_nll)}"
    facts += [
        f"student loss {number(token.nll)}{group}",
        f"teacher loss {number(token.teacher_loss)}",
        f"excess {number(token.excess, '+.3f')} nats",
    ]
    if token.neighbours_loss is not None:
        facts.append(f"teacher loss on its neighbours {number(token.neighbours_loss)} nats a byte")
    outcome = "kept" if passage.is_kept(row) else "dropped"
    return "\n".join([*facts, f"{outcome} ({token.verdict or token.reason})"])


def _facts(side: str, row: int, token: Token) -> list[str]:
    return [
        f"{side} token {row}" + ("" if token.id is None else f", id {token.id}"),
        f"vocabulary string {visible(token.text)}",
        f"bytes {token.start}-{token.end}",
    ]
