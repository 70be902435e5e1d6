"""The alignment of a passage as HTML: student tokens above the text, teacher tokens below.

Drawn in groups, the shortest stretches of text at whose ends both tokenizers cut, so that it wraps
at any width and everything inside a group stays in character columns.
"""

import html
import math
import unicodedata
from collections.abc import Iterator, Sequence

from vocagno.views.glyphs import Glyph, columns, glyphs, token_label, visible
from vocagno.views.layout import lanes, side_by_side
from vocagno.views.passage import Group, Passage, groups


def alignment_html(passage: Passage) -> str:
    """Groups in the order of the text, lines as in the text, empty tokens between the groups."""
    data = passage.data
    blocks = []
    shown = _by_group(glyphs(passage.text), groups(passage))
    for group, inside in shown:
        blocks += [_lone(passage, "student", row) for row in group.student_before]
        blocks += [_lone(passage, "teacher", row) for row in group.teacher_before]
        if inside:
            blocks.append(_group(passage, inside, group.student, group.teacher))
            if data[group.end - 1] == ord("\n"):
                blocks.append("<br>")
    return f"<div class=alignment>{''.join(blocks)}</div>"


def _by_group(
    characters: Sequence[Glyph], parts: Sequence[Group]
) -> Iterator[tuple[Group, list[Glyph]]]:
    """Each group with its characters; a group ends where a character does."""
    at = 0
    for group in parts:
        start = at
        while at < len(characters) and characters[at].start < group.end:
            at += 1
        yield group, list(characters[start:at])


def _lone(passage: Passage, side: str, row: int) -> str:
    """A token that covers no text, such as BOS: a group of its own, nothing opposite."""
    label = visible(getattr(passage, side)[row].text) or "∅"
    own, opposite = (1, 3) if side == "student" else (3, 1)
    chip = _chip(passage, side, row, label, f"grid-column:1/-1;grid-row:{own}")
    other = f"<span class=nothing style='grid-column:1/-1;grid-row:{opposite}'>∅</span>"
    return f"<span class=group style='--n:{max(1, columns(label))}'>{chip}{other}</span>"


def _group(
    passage: Passage, glyphs: Sequence[Glyph], student: Sequence[int], teacher: Sequence[int]
) -> str:
    """One group: student tokens above the text, teacher tokens below, all in character columns."""
    data = passage.data
    tokens = [passage.student[row] for row in student] + [passage.teacher[row] for row in teacher]
    placed = side_by_side(glyphs, {edge for token in tokens for edge in (token.start, token.end)})
    line = {byte: column + 1 for byte, column in placed.before.items()}  # of the grid, from 1

    chips, height = [], {}
    for side, rows in (("student", student), ("teacher", teacher)):
        own = [getattr(passage, side)[row] for row in rows]
        spans = [(token.start, token.end) for token in own]
        stacked = lanes(spans)
        for row, lane, (start, end) in zip(rows, stacked, spans, strict=True):
            chips.append((side, row, lane, f"grid-column:{line[start]}/{line[end]}"))
        height[side] = 1 + max(stacked, default=0)
    parts = []
    for side, row, lane, place in chips:
        grid_row = height["student"] - lane if side == "student" else height["student"] + 2 + lane
        token = getattr(passage, side)[row]
        label = token_label(data, token.start, token.end, token.text)
        parts.append(_chip(passage, side, row, label, f"{place};grid-row:{grid_row}"))
    middle = height["student"] + 1
    for shown, first, width in placed.shown:
        kind = " class=wide" if width > len(shown) else ""
        place = f"grid-column:{first + 1}/span {max(1, width)};grid-row:{middle}"
        parts.append(f"<b{kind} style='{place}'>{html.escape(shown)}</b>")
    for rows, grid_row in ((student, 1), (teacher, middle + 1)):
        if not rows:
            place = f"grid-column:1/-1;grid-row:{grid_row}"
            parts.append(f"<span class=nothing style='{place}'>∅</span>")
    kind = "group" if (len(student), len(teacher)) == (1, 1) else "group uneven"
    if len(student) and len(teacher) and kind != "group":
        parts.append(f"<small>{len(student)}:{len(teacher)}</small>")
    return f"<span class='{kind}' style='--n:{max(1, placed.width)}'>{''.join(parts)}</span>"


def _chip(passage: Passage, side: str, row: int, label: str, place: str) -> str:
    """One token of the alignment; what is unmapped, unscored or dropped shows in its outline."""
    kind = f"chip {side}"
    if side == "student":
        title = student_title(passage, row)
        if passage.student[row].reason in ("unscored", "partial"):
            kind += " unscored"
        elif passage.mapping[row][0] < 0:
            kind += " unmapped"
    else:
        title = teacher_title(passage, row)
        if passage.teacher[row].start == passage.teacher[row].end:
            kind += " unmapped"
    return (
        f'<span class="{kind}" data-{side}={row} style="{place}" title="{title}">'
        f"<bdo dir=ltr>{in_columns(label)}</bdo></span>"
    )


def in_columns(label: str) -> str:
    """Text for HTML in which a wide character takes two columns whatever the font makes of it."""
    return "".join(
        f"<span class=wide>{character}</span>"
        if unicodedata.east_asian_width(character) in "WF"
        else html.escape(character)
        for character in label
    )


def _nats(value: float | None, sign: str = "") -> str:
    return "none" if value is None or math.isnan(value) else f"{value:{sign}.3f}"


def student_title(passage: Passage, row: int) -> str:
    """What pointing at a student token tells, escaped."""
    token = passage.student[row]
    facts = [
        f"student token {row}" + ("" if token.id is None else f", id {token.id}"),
        f"vocabulary string {visible(token.text)}",
        f"bytes {token.start}-{token.end}",
        _mapped_to(passage, row),
    ]
    if passage.has_losses:
        of_group = "" if token.unit_nll is None else f", of its group {_nats(token.unit_nll)}"
        facts += [
            f"student loss {_nats(token.nll)}{of_group}",
            f"teacher loss {_nats(token.teacher_loss)}",
            f"excess {_nats(token.excess, '+')} nats",
        ]
        if token.neighbours_excess is not None:
            facts.append(f"excess of its neighbours {_nats(token.neighbours_excess, '+')} nats")
        if token.neighbours_loss is not None:
            facts.append(
                f"teacher loss on its neighbours {_nats(token.neighbours_loss)} nats a byte"
            )
        facts.append(f"{_outcome(passage, row)} ({token.reason})")
    elif token.reason != "mapped":
        facts.append(f"unmapped: {token.reason}")
    return html.escape("\n".join(facts))


def _mapped_to(passage: Passage, row: int) -> str:
    first, stop = passage.mapping[row]
    if stop > first >= 0:
        return f"teacher tokens {first}-{stop - 1}"
    shares_text = passage.student[row].reason in ("unscored", "partial")
    return "no group with all losses" if shares_text else "no teacher token"


def _outcome(passage: Passage, row: int) -> str:
    weight = passage.student[row].weight
    if 0 < weight < 1:
        return f"weight {weight:.2f}"
    return "kept" if passage.is_kept(row) else "dropped"


def teacher_title(passage: Passage, row: int) -> str:
    """What pointing at a teacher token tells, escaped."""
    token = passage.teacher[row]
    facts = [
        f"teacher token {row}" + ("" if token.id is None else f", id {token.id}"),
        f"vocabulary string {visible(token.text)}",
        f"bytes {token.start}-{token.end}",
    ]
    if passage.has_losses:
        facts.append(f"loss {_nats(token.nll)} nats")
    return html.escape("\n".join(facts))
