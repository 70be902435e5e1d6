"""Computes where the tokens of a passage stand in a picture: student tokens above, teacher tokens
below, lines between them.

A text is laid out in blocks, the shortest stretches at whose ends both tokenizers cut, so a picture
can wrap between any two blocks. A token without text, such as BOS, is a block of its own. The back
ends (`terminal`, `html`, `figure`) draw blocks and compute no places.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from vocagno.views.passage import Glyph, Passage, Token

Span = tuple[int, int]
"""A half-open range of bytes, or of columns."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A token in its block."""

    row: int
    """Index among the passage's tokens of its side."""
    left: int
    right: int
    """Half-open columns of the block."""
    lane: int
    """0 is next to the text. Tokens over the same bytes are stacked away from it."""

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


@dataclass(frozen=True, slots=True)
class Line:
    """From a student token to one teacher token that it is mapped to."""

    student: Placed
    teacher: Placed
    is_kept: bool
    """True if the student token is kept."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Characters next to each other, in columns from 0."""

    before: dict[int, int]
    """Column in front of a byte: of each character's first byte, every byte of a cut character, and
    the end."""
    width: int


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of text with its tokens, or one token without text."""

    student: Sequence[Placed]
    teacher: Sequence[Placed]
    lines: Sequence[Line]
    width: int
    """In columns, at least 1."""
    ends_line: bool
    """True if the text has a line break at the end of the block."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The text of a block and the rows of its tokens, before they are placed."""

    start: int
    end: int
    """Half-open range of bytes. If it is empty, the stretch is one token without text."""
    rows: tuple[Sequence[int], Sequence[int]]
    """Rows of the student's tokens and of the teacher's."""


def over_whole_text(passage: Passage, axis: Columns) -> Block:
    """Lays out the whole text as one block, without the tokens that have no text.

    Args: axis: of `side_by_side`, with at least the `token_edges` of this passage.
    """
    student, teacher = (
        [row for row, token in enumerate(side) if token.start < token.end] for side in passage.sides
    )
    stretch = _Stretch(0, len(passage.data), (student, teacher))
    places = [
        [(axis.before[side[row].start], axis.before[side[row].end]) for row in rows]
        for side, rows in zip(passage.sides, stretch.rows, strict=True)
    ]
    return _block(passage, stretch, places, max(1, axis.width))


def in_rows(passage: Passage, widths: Sequence[Sequence[int]]) -> Iterator[Block]:
    """Lays out the text in blocks as wide as the labels: the tokens of a side are next to each
    other, a column apart, and the shorter side is centred.

    Args: widths: columns that each student token needs, and each teacher token.
    """
    for stretch in _stretches(passage):
        sizes = [
            [side[row] for row in rows] for side, rows in zip(widths, stretch.rows, strict=True)
        ]
        width = max(1, *(sum(side) + len(side) - 1 for side in sizes))
        yield _block(passage, stretch, [_in_a_row(side, width) for side in sizes], width)


def token_edges(tokens: Iterable[Token]) -> set[int]:
    """Returns the bytes at which tokens that have text begin and end."""
    return {edge for t in tokens if t.start < t.end for edge in (t.start, t.end)}


def side_by_side(characters: Sequence[Glyph], edges: Collection[int]) -> Columns:
    """Sets characters next to each other so that all edges lie between columns.

    Args:
        characters: at least one, without gaps.
        edges: where tokens begin and end, in bytes. A character with an edge inside takes two
            columns a byte, the room of its hexadecimal digits.
    """
    before: dict[int, int] = {}
    column = 0
    for glyph in characters:
        before[glyph.start] = column
        width = glyph.columns
        if any(byte in edges for byte in range(glyph.start + 1, glyph.end)):
            for byte in range(glyph.start, glyph.end):
                before[byte] = column + 2 * (byte - glyph.start)
            width = 2 * (glyph.end - glyph.start)
        elif width == 0 and glyph.start in edges:  # a combining mark at the start of a token
            width = 1
        column += width
    before[characters[-1].end] = column
    return Columns(before, column)


def lanes(spans: Iterable[Span]) -> list[int]:
    """Returns, for each span, the first lane in which it overlaps no span before it.

    Most are in lane 0. The parts of a character that a tokenizer gives as one span are stacked.
    """
    ends: list[int] = []
    result = []
    for start, end in spans:
        lane = next((lane for lane, last in enumerate(ends) if last <= start), len(ends))
        ends[lane : lane + 1] = [end]
        result.append(lane)
    return result


def _in_a_row(widths: Sequence[int], room: int) -> Sequence[Span]:
    """Returns ranges of columns of these widths, a column apart, in the middle of the room."""
    left = (room - sum(widths) - len(widths) + 1) // 2
    ranges = []
    for width in widths:
        ranges.append((left, left + width))
        left += width + 1
    return ranges


def _block(
    passage: Passage, stretch: _Stretch, places: Sequence[Sequence[Span]], width: int
) -> Block:
    student, teacher = (
        [
            Placed(row, *span, lane)
            for row, span, lane in zip(rows, spans, lanes(spans), strict=True)
        ]
        for rows, spans in zip(stretch.rows, places, strict=True)
    )
    below = {token.row: token for token in teacher}
    lines = [
        Line(token, below[row], passage.is_kept(token.row))
        for token in student
        for row in range(*passage.mapping[token.row])
        if row in below
    ]
    ends_line = stretch.start < stretch.end and passage.data[stretch.end - 1] == ord("\n")
    return Block(student, teacher, lines, width, ends_line)


def _stretches(passage: Passage) -> Iterator[_Stretch]:
    """Splits a passage into stretches in the order of the text. A token without text stands before
    the next token of its side."""
    cuts = _common_cuts(passage)
    student, teacher = (_rows_by_stretch(side, cuts) for side in passage.sides)
    for index, (start, end) in enumerate(pairwise([*cuts, len(passage.data)])):
        for row in student[index, False]:
            yield _Stretch(start, start, ([row], []))
        for row in teacher[index, False]:
            yield _Stretch(start, start, ([], [row]))
        if start < end:
            yield _Stretch(start, end, (student[index, True], teacher[index, True]))


def _common_cuts(passage: Passage) -> list[int]:
    """Returns the byte positions, first and last included, that lie inside no token and inside no
    character."""
    # A byte 10xxxxxx continues a character in UTF-8.
    crossed = bytearray((byte & 0xC0) == 0x80 for byte in passage.data) + b"\0"
    edges = {0, len(passage.data)}
    for token in (*passage.student, *passage.teacher):
        edges |= {token.start, token.end}
        crossed[token.start + 1 : token.end] = b"\1" * max(0, token.end - token.start - 1)
    return sorted(edge for edge in edges if not crossed[edge])


def _rows_by_stretch(
    tokens: Sequence[Token], cuts: Sequence[int]
) -> Mapping[tuple[int, bool], Sequence[int]]:
    """Returns the rows of tokens by the number of their stretch, and by whether they have text."""
    rows: defaultdict[tuple[int, bool], deque[int]] = defaultdict(deque)
    stretch = len(cuts) - 1
    # Backwards, so that a token without text knows the next token of its side.
    for row in reversed(range(len(tokens))):
        has_text = tokens[row].start < tokens[row].end
        if has_text:
            stretch = bisect_right(cuts, tokens[row].start) - 1
        rows[stretch, has_text].appendleft(row)
    return rows
