"""One self-contained HTML page: how two tokenizers cut a text, and which tokens the teacher chose.

No script and no network: inline CSS alone, light and dark, readable without colour. The alignment
is drawn in groups, the shortest stretches of text at whose ends both tokenizers cut, so that it
wraps at any width and everything inside a group stays in character columns.
"""

import html
import math
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vocagno.picture_page import LEGEND, PAGE, STYLE

INTENSITY_NATS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Excess losses, in nats, at which the shade of a kept token deepens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentToken:
    """One student token: its vocabulary string, its half-open byte span (empty: it covers no text),
    losses in nats (None: there is none), its weight in the loss and why it is mapped or not."""

    text: str
    start: int
    end: int
    id: int | None = None
    nll: float | None = None
    teacher_loss: float | None = None
    weight: float = 1.0
    reason: str = "mapped"

    @property
    def excess(self) -> float | None:
        """Student NLL minus teacher loss in nats; None where either is missing."""
        if self.nll is None or self.teacher_loss is None:
            return None
        excess = self.nll - self.teacher_loss
        return excess if math.isfinite(excess) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherToken:
    """One teacher token: its vocabulary string, its half-open byte span and its NLL in nats."""

    text: str
    start: int
    end: int
    id: int | None = None
    nll: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text, its tokens on both sides in their order, and for each student token the half-open
    range of teacher tokens it is mapped to, (-1, -1) for an unmapped one."""

    title: str
    text: str
    student: Sequence[StudentToken]
    teacher: Sequence[TeacherToken]
    mapping: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        if len(self.mapping) != len(self.student):
            raise ValueError(
                f"mapping: expected one range for each of the {len(self.student)} student tokens, "
                f"got {len(self.mapping)}"
            )
        size = len(self.text.encode())
        for side in ("student", "teacher"):
            for row, token in enumerate(getattr(self, side)):
                if not 0 <= token.start <= token.end <= size:
                    raise ValueError(
                        f"{side} token {row}: span [{token.start}, {token.end}) is not inside the "
                        f"text's {size} bytes"
                    )


def render_page(
    *,
    title: str,
    summary_rows: Sequence[Mapping[str, str]],
    passages: Sequence[Passage],
    introduction: str = "",
) -> str:
    """The whole page as one HTML string.

    Args:
        title: heading and window title.
        summary_rows: one mapping from column name to cell text a row; columns are those of the
            first row, whose first one names the row. Empty: no table.
        passages: what to draw; each once as alignment, once as choice of tokens.
        introduction: a sentence or two of plain text under the title.
    """
    parts = [
        f"<header><h1>{_escape(title)}</h1>",
        f"<p class=lead>{_escape(introduction)}</p>" if introduction else "",
        "</header>",
        _summary(summary_rows),
        LEGEND,
        *map(_passage, passages),
    ]
    return PAGE.format(title=_escape(title), style=STYLE, body="\n".join(filter(None, parts)))


def _summary(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    columns = list(rows[0])
    head = "".join(f"<th scope=col>{_escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f"<th scope=row>{_escape(row.get(name, ''))}</th>"
            if i == 0
            else f"<td>{_escape(row.get(name, ''))}</td>"
            for i, name in enumerate(columns)
        )
        + "</tr>"
        for row in rows
    )
    return (
        "<div class=scroll role=region aria-label='Result' tabindex=0><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _passage(passage: Passage) -> str:
    kept = sum(token.weight > 0 for token in passage.student)
    counts = (
        f"{len(passage.text.encode())} bytes · {len(passage.student)} student tokens · "
        f"{len(passage.teacher)} teacher tokens · {kept} kept"
    )
    return (
        f"<section><h2>{_escape(passage.title)}</h2><p class=counts>{counts}</p>"
        f"<h3>How the two tokenizers cut it</h3>{_alignment(passage)}"
        f"<h3>What the teacher chose</h3>{_choice(passage)}</section>"
    )


# ---- text that can be seen


class Glyph(NamedTuple):
    """A character as it is shown: its bytes in the text, what stands for it, columns it takes."""

    start: int
    end: int
    shown: str
    columns: int


def _glyphs(text: str) -> list[Glyph]:
    glyphs, start = [], 0
    for character in text:
        end = start + len(character.encode())
        shown = visible(character)
        if shown == character and unicodedata.combining(character):
            columns = 0
        else:
            wide = [unicodedata.east_asian_width(c) in "WF" for c in shown]
            columns = len(wide) + sum(wide)
        glyphs.append(Glyph(start, end, shown, columns))
        start = end
    return glyphs


def visible(text: str) -> str:
    """`text` with a visible sign for each blank, line break, control, format or bidi character."""
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in _HIDDEN:
        return f"⟨{ord(character):X}⟩"
    return character


_SIGNS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\x7f": "␡"}
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}


def _escape(text: str) -> str:
    """Plain words for HTML; hidden characters made visible, blanks and line breaks left alone."""
    return html.escape("".join(c if c in " \n" else _visible_character(c) for c in text))


def _surface(passage: Passage, token: StudentToken | TeacherToken) -> str:
    """The text of a token as shown: its bytes in hexadecimal where they are no whole characters."""
    if token.start == token.end:
        return visible(token.text)
    data = passage.text.encode()[token.start : token.end]
    try:
        return visible(data.decode())
    except UnicodeDecodeError:
        return data.hex(" ").upper()


def _nats(value: float | None, sign: str = "") -> str:
    return "none" if value is None or math.isnan(value) else f"{value:{sign}.3f}"


def _student_title(passage: Passage, row: int) -> str:
    token, (first, stop) = passage.student[row], passage.mapping[row]
    facts = [
        f"student token {row}" + ("" if token.id is None else f", id {token.id}"),
        f"vocabulary string {visible(token.text)}",
        f"bytes {token.start}-{token.end}",
        f"student loss {_nats(token.nll)}",
        f"teacher loss {_nats(token.teacher_loss)}",
        f"excess {_nats(token.excess, '+')} nats",
        f"teacher tokens {first}-{stop - 1}" if stop > first >= 0 else "no teacher token",
        f"{'kept' if token.weight > 0 else 'dropped'} ({token.reason.lower()})",
    ]
    return html.escape("\n".join(facts))


def _teacher_title(passage: Passage, row: int) -> str:
    token = passage.teacher[row]
    facts = [
        f"teacher token {row}" + ("" if token.id is None else f", id {token.id}"),
        f"vocabulary string {visible(token.text)}",
        f"bytes {token.start}-{token.end}",
        f"loss {_nats(token.nll)} nats",
    ]
    return html.escape("\n".join(facts))


# ---- the chosen tokens


def _choice(passage: Passage) -> str:
    spans = []
    for row, token in enumerate(passage.student):
        kind = "kept" if token.weight > 0 else "dropped"
        if passage.mapping[row][0] < 0:
            kind += " unmapped"
        if kind == "kept" and token.excess is not None:
            kind += f" level{sum(token.excess >= nats for nats in INTENSITY_NATS)}"
        surface = html.escape(_surface(passage, token)).replace("␣", "<i>␣</i><wbr>")
        surface = surface.replace("⏎", "<i>⏎</i>")
        tag = "mark" if token.weight > 0 else "span"
        spans.append(
            f'<{tag} class="{kind}" data-choice={row} title="{_student_title(passage, row)}">'
            f"<bdo dir=ltr>{surface}</bdo></{tag}>"
        )
        if token.end > token.start and passage.text.encode()[token.end - 1] == ord("\n"):
            spans.append("<br>")
    return f"<p class=choice>{''.join(spans)}</p>"


# ---- the alignment


def _alignment(passage: Passage) -> str:
    """Groups in the order of the text, lines as in the text, empty tokens between the groups."""
    data, glyphs = passage.text.encode(), _glyphs(passage.text)
    cuts = _common_cuts(passage, glyphs, len(data))
    student, teacher = _by_group(passage.student, cuts), _by_group(passage.teacher, cuts)
    blocks = []
    for i, start in enumerate(cuts):
        for side, (empty, _) in (("student", student), ("teacher", teacher)):
            blocks += [_lone(passage, side, row) for row in empty[i]]
        if i + 1 < len(cuts):
            end = cuts[i + 1]
            inside = [glyph for glyph in glyphs if start <= glyph.start < end]
            blocks.append(_group(passage, inside, student[1][i], teacher[1][i]))
            if data[end - 1] == ord("\n"):
                blocks.append("<br>")
    return f"<div class=alignment>{''.join(blocks)}</div>"


def _common_cuts(passage: Passage, glyphs: Sequence[Glyph], size: int) -> list[int]:
    """Byte positions, first and last included, that lie inside no token and inside no character."""
    spans = [(token.start, token.end) for token in passage.student]
    spans += [(token.start, token.end) for token in passage.teacher]
    crossed = bytearray(size + 1)
    for start, end in (*spans, *((glyph.start, glyph.end) for glyph in glyphs)):
        crossed[start + 1 : end] = b"\1" * max(0, end - start - 1)
    edges = {edge for span in spans for edge in span}
    return sorted(edge for edge in edges | {0, size} if not crossed[edge])


def _by_group(
    tokens: Sequence[StudentToken] | Sequence[TeacherToken], cuts: Sequence[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """For each group the rows of the empty tokens before it, and the rows of those inside."""
    empty: list[list[int]] = [[] for _ in cuts]
    covering: list[list[int]] = [[] for _ in cuts]
    next_group = len(cuts) - 1
    for row in reversed(range(len(tokens))):  # an empty token stands before its next neighbour
        token = tokens[row]
        if token.end > token.start:
            next_group = bisect_right(cuts, token.start) - 1
            covering[next_group].insert(0, row)
        else:
            empty[next_group].insert(0, row)
    return empty, covering


def _lone(passage: Passage, side: str, row: int) -> str:
    """A token that covers no text, such as BOS: a group of its own, nothing opposite."""
    label = _surface(passage, getattr(passage, side)[row]) or "∅"
    columns = sum(glyph.columns for glyph in _glyphs(label))
    own, opposite = (1, 3) if side == "student" else (3, 1)
    chip = _chip(passage, side, row, label, f"grid-column:1/-1;grid-row:{own}")
    other = f"<span class=nothing style='grid-column:1/-1;grid-row:{opposite}'>∅</span>"
    return f"<span class=group style='--n:{max(1, columns)}'>{chip}{other}</span>"


def _group(
    passage: Passage, glyphs: Sequence[Glyph], student: Sequence[int], teacher: Sequence[int]
) -> str:
    """One group: student tokens above the text, teacher tokens below, all in character columns."""
    tokens = [passage.student[row] for row in student] + [passage.teacher[row] for row in teacher]
    edges = {edge for token in tokens for edge in (token.start, token.end)}
    line: dict[int, int] = {}  # byte position -> the grid line on its left
    text: list[tuple[str, int, int]] = []  # what is shown, its first column, its columns
    column = 1
    for glyph in glyphs:
        line[glyph.start] = column
        shown, columns = glyph.shown, glyph.columns
        if any(glyph.start < edge < glyph.end for edge in edges):  # cut inside a character:
            for byte in range(glyph.start, glyph.end):  # each byte takes two columns
                line[byte] = column + 2 * (byte - glyph.start)
            shown = shown if columns else "◌" + shown
            columns = 2 * (glyph.end - glyph.start)
        elif columns == 0 and glyph.start in edges:  # a combining mark at the start of a token
            shown, columns = "◌" + shown, 1
        if columns == 0 and text:  # a combining mark stands with its base
            text[-1] = (text[-1][0] + shown, *text[-1][1:])
        else:
            text.append((shown, column, columns))
        column += columns
    line[glyphs[-1].end] = column

    chips, height = [], {}
    for side, rows in (("student", student), ("teacher", teacher)):
        lanes: list[int] = []  # where the last token of each lane ends: repeated spans are stacked
        for row in rows:
            token = getattr(passage, side)[row]
            lane = next((i for i, end in enumerate(lanes) if end <= token.start), len(lanes))
            lanes[lane : lane + 1] = [token.end]
            place = f"grid-column:{line[token.start]}/{line[token.end]}"
            chips.append((side, row, lane, place))
        height[side] = max(1, len(lanes))
    parts = []
    for side, row, lane, place in chips:
        grid_row = height["student"] - lane if side == "student" else height["student"] + 2 + lane
        label = _label(passage, side, row, glyphs, line)
        parts.append(_chip(passage, side, row, label, f"{place};grid-row:{grid_row}"))
    middle = height["student"] + 1
    for shown, start, columns in text:
        kind = " class=wide" if columns > len(shown) else ""
        place = f"grid-column:{start}/span {max(1, columns)};grid-row:{middle}"
        parts.append(f"<b{kind} style='{place}'>{html.escape(shown)}</b>")
    for rows, grid_row in ((student, 1), (teacher, middle + 1)):
        if not rows:
            place = f"grid-column:1/-1;grid-row:{grid_row}"
            parts.append(f"<span class=nothing style='{place}'>∅</span>")
    kind = "group" if (len(student), len(teacher)) == (1, 1) else "group uneven"
    if len(student) and len(teacher) and kind != "group":
        parts.append(f"<small>{len(student)}:{len(teacher)}</small>")
    return f"<span class='{kind}' style='--n:{max(1, column - 1)}'>{''.join(parts)}</span>"


def _label(
    passage: Passage, side: str, row: int, glyphs: Sequence[Glyph], line: Mapping[int, int]
) -> str:
    """What a chip says: its characters, and the bytes of those it holds only a part of."""
    token: StudentToken | TeacherToken = getattr(passage, side)[row]
    data = passage.text.encode()
    parts: list[str] = []
    for glyph in glyphs:
        if token.start <= glyph.start and glyph.end <= token.end:
            parts.append("◌" + glyph.shown if not glyph.columns and not parts else glyph.shown)
        elif glyph.start < token.end and token.start < glyph.end:
            part = data[max(glyph.start, token.start) : min(glyph.end, token.end)]
            parts.append(part.hex().upper())
    return "".join(parts)


def _chip(passage: Passage, side: str, row: int, label: str, place: str) -> str:
    """One token of the alignment; what is unmapped, unscored or dropped shows in its outline."""
    kind = f"chip {side}"
    if side == "student":
        title = _student_title(passage, row)
        if passage.mapping[row][0] < 0:
            kind += " unmapped"
        elif passage.student[row].teacher_loss is None:
            kind += " unscored"
    else:
        title = _teacher_title(passage, row)
        if passage.teacher[row].start == passage.teacher[row].end:
            kind += " unmapped"
    return (
        f'<span class="{kind}" data-{side}={row} style="{place}" title="{title}">'
        f"<bdo dir=ltr>{_columns(label)}</bdo></span>"
    )


def _columns(label: str) -> str:
    """Text for HTML in which a wide character takes two columns whatever the font makes of it."""
    return "".join(
        f"<span class=wide>{character}</span>"
        if unicodedata.east_asian_width(character) in "WF"
        else html.escape(character)
        for character in label
    )
