"""Visible text: signs for blanks, control and bidi characters, and widths in columns."""

import math
import unicodedata
from typing import NamedTuple


class Glyph(NamedTuple):
    """A character as it is shown: its bytes in the text, its sign, and the columns of the sign."""

    start: int
    end: int
    shown: str
    columns: int


def glyphs(text: str, start: int = 0) -> list[Glyph]:
    """Every character of a text that begins at byte `start`."""
    result = []
    for character in text:
        end = start + len(character.encode())
        shown = visible(character)
        bare_mark = shown == character and is_mark(character)
        result.append(Glyph(start, end, shown, 0 if bare_mark else columns(shown)))
        start = end
    return result


def columns(text: str) -> int:
    """Columns of visible text in a fixed-width font: 0 for a mark, 2 for a wide character."""
    return sum(0 if is_mark(c) else 2 if is_wide(c) else 1 for c in text)


def is_wide(character: str) -> bool:
    """Whether a character takes two columns."""
    return unicodedata.east_asian_width(character) in "WF"


def is_mark(character: str) -> bool:
    """Whether a character is drawn over, under or into the one before it."""
    return unicodedata.category(character).startswith("M")


def visible(text: str) -> str:
    """`text` with a visible sign for each blank, line break, control, format or bidi character."""
    return "".join(map(visible_character, text))


def visible_character(character: str) -> str:
    """One character, or the sign for it."""
    if character in _SIGNS:
        return _SIGNS[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in _HIDDEN:
        return f"⟨{ord(character):X}⟩"
    return character


_SIGNS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\x7f": "␡"}
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}


def token_label(data: bytes, start: int, end: int, surface: str) -> str:
    """The label of a token: signs of its whole characters, and hexadecimal bytes of cut ones.

    A token without text shows its vocabulary string.
    """
    if start == end:
        return visible(surface) or "∅"
    held, label, at = data[start:end], [], 0
    while at < len(held):
        size = _size(held[at])
        whole = held[at : at + size]
        if size == 0 or len(whole) < size:  # the rest, or the beginning, of a character
            label.append(f"{held[at]:02X}")
            at += 1
            continue
        shown = visible(whole.decode())
        label.append("◌" + shown if not label and is_mark(shown[0]) else shown)
        at += size
    return "".join(label)


def _size(first: int) -> int:
    """Bytes of the character that begins with this byte; 0 for one inside a character."""
    return (
        0 if first & 0xC0 == 0x80 else 1 if first < 0x80 else 2 + (first >= 0xE0) + (first >= 0xF0)
    )


def shortened(label: str, room: int) -> str:
    """A label of at most `room` columns: the middle of a longer one is counted, not shown."""
    if columns(label) <= room:
        return label
    kept = max(1, (room - 10) // 4)  # characters at each end, which may be wide
    return f"{label[:kept]}⟨+{len(label) - 2 * kept}⟩{label[-kept:]}"


def number(value: float | None, form: str = ".3f", *, missing: str = "none") -> str:
    """A loss or excess loss in words; `missing` for None and NaN."""
    return missing if value is None or math.isnan(value) else f"{value:{form}}"
