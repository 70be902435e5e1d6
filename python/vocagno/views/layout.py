"""Where the characters of a text, and the tokens over them, stand in a fixed-width picture."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from vocagno.views.glyphs import Glyph


@dataclass(frozen=True, slots=True)
class Columns:
    """Characters side by side, in columns that count from 0."""

    before: dict[int, int]
    """The column in front of a byte, by its place in the text: of each character's first byte, of
    every byte of a character that a token cuts, and of the end."""
    shown: list[tuple[str, int, int]]
    """What is written, its first column and its columns; a combining mark stands with its base."""
    width: int


def side_by_side(characters: Sequence[Glyph], edges: Collection[int]) -> Columns:
    """Sets characters side by side so that all edges lie between columns.

    Args:
        characters: at least one, without gaps.
        edges: where tokens begin and end, in bytes. A character with one inside takes two columns a
            byte, in which their hexadecimal digits have room.
    """
    before: dict[int, int] = {}
    text: list[tuple[str, int, int]] = []
    column = 0
    for glyph in characters:
        before[glyph.start] = column
        shown, width = glyph.shown, glyph.columns
        if any(byte in edges for byte in range(glyph.start + 1, glyph.end)):
            for byte in range(glyph.start, glyph.end):
                before[byte] = column + 2 * (byte - glyph.start)
            shown = shown if width else "◌" + shown
            width = 2 * (glyph.end - glyph.start)
        elif width == 0 and glyph.start in edges:  # a combining mark at the start of a token
            shown, width = "◌" + shown, 1
        if width == 0 and text:
            text[-1] = (text[-1][0] + shown, *text[-1][1:])
        else:
            text.append((shown, column, width))
        column += width
    before[characters[-1].end] = column
    return Columns(before, text, column)


def lanes(spans: Iterable[tuple[int, int]]) -> list[int]:
    """For each span the first lane in which it overlaps none before it: most are in lane 0, the
    parts of a character that a tokenizer gives as one span are stacked."""
    ends: list[int] = []
    found = []
    for start, end in spans:
        lane = next((lane for lane, taken in enumerate(ends) if taken <= start), len(ends))
        ends[lane : lane + 1] = [end]
        found.append(lane)
    return found
