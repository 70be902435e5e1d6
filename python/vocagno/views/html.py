"""Pictures of a passage as HTML, without the page around them.

A block of the layout is a grid of `--n` columns: student tokens in its upper rows, text or lines in
the middle, teacher tokens in its lower rows. Each token has its row as `data-student` or
`data-teacher`, and its facts as a tooltip.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.glyphs import columns, is_wide, number, visible, visible_character
from vocagno.views.layout import Block, Placed, in_rows, over_text
from vocagno.views.passage import Passage, StudentToken, Token
from vocagno.views.verdicts import verdicts

INTENSITY_NATS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Excess losses, in nats, at which the shade of a kept token deepens."""

_HAVE_PARTNERS = ("unscored", "partial")
"""Reasons of tokens that share text with the teacher's but cannot be compared."""

_HEIGHT = 10
"""Of the lines, in their own units; the style stretches them."""


class _Chip(NamedTuple):
    """A token: its classes, its label, its tooltip, and the numbers below it with their classes."""

    kind: str
    label: str
    title: str
    numbers: Sequence[tuple[str, str]] = ()

    @property
    def width(self) -> int:
        """Columns with some space around the label; numbers are in a smaller size."""
        return max(columns(self.label) + 2, *(len(text) + 1 for text, _ in self.numbers))


Chips = tuple[Sequence[_Chip], Sequence[_Chip]]
"""Of the student's and the teacher's tokens."""


def escaped(text: str) -> str:
    """Plain words for HTML, hidden characters made visible except blanks and line breaks."""
    return escape("".join(c if c in " \n" else visible_character(c) for c in text))


def alignment_html(passage: Passage) -> str:
    """Student tokens above their text, teacher tokens below it."""
    student, teacher = [], []
    for row, token in enumerate(passage.student):
        kind = " unmapped" if passage.mapping[row][0] < 0 else ""
        kind = " unscored" if token.reason in _HAVE_PARTNERS else kind
        title = _title(passage, row)
        student.append(_Chip(f"chip student{kind}", passage.label(token), title))
    for row, other in enumerate(passage.teacher):
        kind = "" if other.start < other.end else " unmapped"
        title = _teacher_title(passage, row)
        teacher.append(_Chip(f"chip teacher{kind}", passage.label(other), title))
    return _picture("alignment", over_text(passage), (student, teacher), _text)


def links_html(passage: Passage, guidance: GuidanceConfig) -> str:
    """Student tokens above teacher tokens, both with losses; a line for each pair, solid where the
    student token is kept and dashed where it is dropped."""
    student, teacher = [], []
    for row, verdict in enumerate(verdicts(passage, guidance)):
        token, kind = passage.student[row], _choice(passage, row, "on", "off")
        title = f"{_title(passage, row)}\n{verdict.words(guidance)}"
        numbers = _numbers(passage, token)
        student.append(_Chip(f"tok student {kind}", passage.label(token), title, numbers))
    for row, other in enumerate(passage.teacher):
        title, numbers = _teacher_title(passage, row), [(_number(other.nll), "loss")]
        teacher.append(_Chip("tok teacher", passage.label(other), title, numbers))
    widths = [[chip.width for chip in chips] for chips in (student, teacher)]
    blocks = in_rows(passage, widths, is_stretched=True)
    return _picture("links", blocks, (student, teacher), _lines)


def _choice(passage: Passage, row: int, kept: str, dropped: str) -> str:
    """The classes of a student token: kept or dropped, its shade, unmapped."""
    is_kept, excess = passage.is_kept(row), passage.student[row].excess
    kind = kept if is_kept else dropped
    if is_kept and excess is not None:
        kind += f" level{sum(excess >= nats for nats in INTENSITY_NATS)}"
    return kind + (" unmapped" if passage.mapping[row][0] < 0 else "")


def _numbers(passage: Passage, token: StudentToken) -> list[tuple[str, str]]:
    """The token's loss (then the mean of its group, if groups are ranked), minus the teacher's, the
    excess; the weight, if any weight is between 0 and 1."""
    numbers = [(_number(token.nll), "loss")]
    if token.unit_nll is not None:
        numbers.append((_number(token.unit_nll, "⌀"), "mean"))
    numbers.append((_number(token.teacher_loss, "−"), "teachers"))
    numbers.append((_number(token.excess, form="+.2f"), "excess"))
    if passage.has_soft_weights:
        numbers.append((f"×{token.weight:.2f}", "weight"))
    return numbers


def _number(value: float | None, before: str = "", form: str = ".2f") -> str:
    found = number(value, form, missing="–").replace("-", "−")
    return found if found == "–" else before + found


def choice_html(passage: Passage) -> str:
    """The student's tokens as running text: kept ones marked, deeper for a larger excess loss."""
    parts = []
    for row, token in enumerate(passage.student):
        label = escape(passage.label(token)).replace("␣", "<i>␣</i><wbr>")
        label = label.replace("⏎", "<i>⏎</i>")
        tag = "mark" if passage.is_kept(row) else "span"
        kind, title = _choice(passage, row, "kept", "dropped"), escape(_title(passage, row))
        parts.append(
            f'<{tag} class="{kind}" data-choice={row} title="{title}">'
            f"<bdo dir=ltr>{label}</bdo></{tag}>"
        )
        if passage.data[token.start : token.end].endswith(b"\n"):
            parts.append("<br>")
    return f"<p class=choice>{''.join(parts)}</p>"


def _picture(
    name: str, blocks: Iterable[Block], chips: Chips, middle: Callable[[Block, int], str]
) -> str:
    parts = []
    for block in blocks:
        parts.append(_group(block, chips, middle))
        if block.ends_line:
            parts.append("<br>")
    return f"<div class={name}>{''.join(parts)}</div>"


def _group(block: Block, chips: Chips, middle: Callable[[Block, int], str]) -> str:
    height = 1 + max((token.lane for token in block.student), default=0)  # grid rows of students
    places = (
        [(token, height - token.lane) for token in block.student],
        [(token, height + 2 + token.lane) for token in block.teacher],
    )
    student, teacher = (
        [_token(side, chip[token.row], token, grid_row) for token, grid_row in placed]
        for side, chip, placed in zip(("student", "teacher"), chips, places, strict=True)
    )
    nothing = "<span class='nothing {}' style='grid-area:{}/1/auto/-1'>∅</span>"
    parts = [
        *(student or [nothing.format("student", 1)]),
        middle(block, height + 1),
        *(teacher or [nothing.format("teacher", height + 2)]),
    ]
    counts = len(block.student), len(block.teacher)
    is_uneven = bool(block.text) and counts != (1, 1)
    if is_uneven and all(counts):
        parts.append(f"<small>{counts[0]}:{counts[1]}</small>")
    kind = "group uneven" if is_uneven else "group"
    return f"<span class='{kind}' style='--n:{block.width}'>{''.join(parts)}</span>"


def _token(side: str, chip: _Chip, placed: Placed, grid_row: int) -> str:
    place = f"grid-area:{grid_row}/{placed.left + 1}/auto/{placed.right + 1}"
    title = escape(chip.title)
    small = "".join(f"<small class={kind}>{text}</small>" for text, kind in chip.numbers)
    return (
        f'<span class="{chip.kind}" data-{side}={placed.row} style="{place}" title="{title}">'
        f"<bdo dir=ltr>{''.join(map(_in_columns, chip.label))}</bdo>{small}</span>"
    )


def _in_columns(character: str) -> str:
    """A wide character takes two columns in every font."""
    return f"<span class=wide>{character}</span>" if is_wide(character) else escape(character)


def _text(block: Block, grid_row: int) -> str:
    """The text between the tokens."""
    parts = []
    for shown, first, width in block.text:
        kind = " class=wide" if width > len(shown) else ""
        place = f"grid-area:{grid_row}/{first + 1}/auto/span {max(1, width)}"
        parts.append(f"<b{kind} style='{place}'>{escape(shown)}</b>")
    return "".join(parts)


def _lines(block: Block, grid_row: int) -> str:
    """A line from the middle of each student token to the middles of its teacher tokens."""
    lines = "".join(
        f"<line class={'on' if line.is_kept else 'off'} x1={line.student.middle:g} "
        f"x2={line.teacher.middle:g} y1=0 y2={_HEIGHT} />"
        for line in block.lines
    )
    view = f"viewBox='0 0 {block.width} {_HEIGHT}' preserveAspectRatio=none"
    return f"<svg {view} style='grid-row:{grid_row}' aria-hidden=true>{lines}</svg>"


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
    if token.neighbours_excess is not None:
        facts.append(f"excess of its neighbours {number(token.neighbours_excess, '+.3f')} nats")
    if token.neighbours_loss is not None:
        facts.append(f"teacher loss on its neighbours {number(token.neighbours_loss)} nats a byte")
    outcome = "kept" if passage.is_kept(row) else "dropped"
    if 0 < token.weight < 1:
        outcome = f"weight {token.weight:.2f}"
    return "\n".join([*facts, f"{outcome} ({token.reason})"])


def _teacher_title(passage: Passage, row: int) -> str:
    """The tooltip of a teacher token."""
    token = passage.teacher[row]
    loss = [f"loss {number(token.nll)} nats"] if passage.has_losses else []
    return "\n".join([*_facts("teacher", row, token), *loss])


def _facts(side: str, row: int, token: Token) -> list[str]:
    return [
        f"{side} token {row}" + ("" if token.id is None else f", id {token.id}"),
        f"vocabulary string {visible(token.text)}",
        f"bytes {token.start}-{token.end}",
    ]
