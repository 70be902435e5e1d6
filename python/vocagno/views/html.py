"""Pictures of passages as HTML: self-contained pages, and fragments of them for a notebook.

No script and no network: inline CSS only, light and dark, readable without colour.

A block of the layout is a grid of `--n` columns: student tokens, lines, teacher tokens. Each token
has its row as `data-student` or `data-teacher`, its losses as small numbers below its label, and
its facts as a tooltip.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
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
"""Reasons for which a token that shares text with the teacher's tokens cannot be compared."""

_HEIGHT = 10
"""Height of the picture of lines, in its own units. The style stretches it."""


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


def to_html(text: str) -> str:
    """Escapes a plain text for HTML, and makes hidden characters visible, except blanks and line
    breaks."""
    return escape("".join(c if c in " \n" else visible_character(c) for c in text))


def picture(passage: Passage) -> str:
    """Draws student tokens above teacher tokens, and a line for each pair that is mapped.

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
        "".join(_token(side, side_boxes[token.row], token) for token in tokens)
        or f"<span class='nothing {side}'>∅</span>"
        for side, side_boxes, tokens in zip(
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
    label = "".join(  # a wide character takes two columns in every font
        f"<span class=wide>{c}</span>" if is_wide(c) else escape(c) for c in box.label
    )
    return (
        f'<span class="{box.kind}" data-{side}={placed.row} '
        f'style="grid-column:{placed.left + 1}/{placed.right + 1}" title="{escape(box.title)}">'
        f"<bdo dir=ltr>{label}</bdo>{small}</span>"
    )


def _title(passage: Passage, row: int) -> str:
    """Returns the tooltip of a student token, a fact in each line."""
    token, (first, stop) = passage.student[row], passage.mapping[row]
    mapped_to = "no group with all losses" if token.reason in _HAVE_PARTNERS else "no teacher token"
    if stop > first >= 0:
        mapped_to = f"teacher tokens {first}-{stop - 1}"
    facts = [*_facts("student", row, token), mapped_to]
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


def render_page(
    *,
    title: str,
    summary_rows: Sequence[Mapping[str, str]],
    passages: Sequence[Passage],
    introduction: str = "",
) -> str:
    """Returns a self-contained page of passages.

    Args:
        title: heading and window title.
        summary_rows: one mapping from column name to cell text a row; a row may lack columns. The
            first column names the rows. Empty: no table.
        introduction: a sentence or two of plain text under the title.
    """
    body = [table_of("Result", summary_rows), legend(passages), *map(section_of, passages)]
    return page_of(title, introduction, body)


def render_fragment(passage: Passage) -> str:
    """Returns one passage for a notebook. Its style applies to nothing else there."""
    return (
        f"<div class=vocagno><style>{_style()}</style>{section_of(passage)}"
        f"<details><summary>How to read this</summary>{legend([passage])}</details></div>"
    )


def page_of(title: str, introduction: str, body: Sequence[str]) -> str:
    """Returns a page with a heading, a sentence or two under it, and the HTML of its body."""
    lead = f"<p class=lead>{to_html(introduction)}</p>" if introduction else ""
    parts = [f"<header><h1>{to_html(title)}</h1>{lead}</header>", *body]
    return f"""<!DOCTYPE html>
<html lang=en><head><meta charset=utf-8>
<meta name=viewport content="width=device-width,initial-scale=1">
<title>{to_html(title)}</title><style>{_style()}</style></head>
<body class=vocagno><main>
{"".join(parts)}
</main></body></html>
"""


@cache
def _style() -> str:
    return files("vocagno.views").joinpath("page.css").read_text(encoding="utf-8")


def legend(passages: Sequence[Passage]) -> str:
    """Returns the text that explains the pictures of these passages."""
    has_losses = any(passage.has_losses for passage in passages)
    return f"<div class=legend>{_TOKENS}{_LOSSES if has_losses else ''}</div>"


_TOKENS = """<div>
<h3>The tokens</h3>
<ul>
<li><span class="tok student">above</span> the student's, <span class="tok teacher">below</span> the
teacher's; lines to the teacher tokens that a student token is mapped to.</li>
<li><span class="tok student unmapped">&lt;s&gt;</span> dashed border: mapped to nothing. ∅: no
token of this side.</li>
<li>␣ is a space, ⏎ a line break, two hexadecimal digits one byte of a character.</li>
<li>Point at a token for its id and its bytes, or its losses and its verdict.</li>
</ul>
</div>"""

_LOSSES = """<div>
<h3>The losses, in nats</h3>
<ul>
<li><span class="tok student on level4">kept<small>4.20</small><small>+2.10</small></span> thick
border, solid lines: trained on. The student's loss, and the excess loss: the student's minus the
teacher's, of the whole group where groups are ranked; the deeper the shade, the larger (0, 0.5, 1,
2, 4).</li>
<li><span class="tok student off">dropped<small>0.30</small><small>−0.20</small></span> thin border,
dashed lines: only read.</li>
<li><span class="tok teacher">tok<small>2.10</small></span> the teacher's loss of its token.</li>
<li>Verdicts: top or below (the quota), reaches or below (the threshold), noise or not noise (its
neighbours), included or excluded (no teacher loss). alm: ahead or behind (the teacher predicts the
group better than the student, or not). distill: start or no start (one of the teacher's tokens
starts there, or not).</li>
</ul>
</div>"""


def section_of(passage: Passage, title_end: str = "") -> str:
    """Returns a section with the picture of a passage, its counts, and its title, to which
    `title_end` is appended."""
    counts = [
        f"{len(passage.data):,} bytes",
        f"{len(passage.student):,} student tokens",
        f"{len(passage.teacher):,} teacher tokens",
    ]
    if passage.has_losses:
        counts.append(f"{sum(map(passage.is_kept, range(len(passage.student)))):,} kept")
    return (
        f"<section><h2>{to_html(passage.title + title_end)}</h2>"
        f"<p class=counts>{' · '.join(counts)}</p>{picture(passage)}</section>"
    )


def table_of(label: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Returns a table of plain cells with the headings of all rows, in order of first appearance.
    Without rows, returns ""."""
    headings = list(dict.fromkeys(name for row in rows for name in row))
    return plain_table(label, headings, [[row.get(name, "") for name in headings] for row in rows])


def plain_table(label: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of plain cells, under headings of which several may be equal. Without rows,
    returns ""."""
    if not rows:
        return ""
    head = "".join(f"<th scope=col>{to_html(name)}</th>" for name in headings)
    body = []
    for name, *cells in rows:
        row = "".join(f"<td>{to_html(cell)}</td>" for cell in cells)
        body.append(f"<tr><th scope=row>{to_html(name)}</th>{row}</tr>")
    return (
        f"<div class=scroll role=region aria-label='{label}' tabindex=0><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
