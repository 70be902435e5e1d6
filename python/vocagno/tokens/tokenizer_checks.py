"""Checks a tokenizer's offsets on probes, before they are used.

Wrong offsets raise no error: if they are zero-width, every token is unmapped, and guided training
silently becomes naive training. So `TokenSpans` tests every tokenizer once.

Tokens are compared with the text at their spans in compatibility decomposition and lower case,
without white space and marks: the characters of a token must be, in order, among those of the text,
or among those of the text after the tokenizer's own normaliser.
"""

import unicodedata
from typing import Any

import numpy as np

from vocagno._vocagno import PieceTable, Places
from vocagno.alignment.arrays import Int32, Int64
from vocagno.tokens.tokenizer_files import TokenizerError, tokenize
from vocagno.tokens.vocabulary import Vocabulary

Rows = list[int]
"""Tokens of one text, `[first, stop)`: one token, or the parts of a character."""


class TokenPlaces:
    """Compares the tokens of one tokenizer with the text at their spans."""

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary, table: PieceTable) -> None:
        self._normalizer = tokenizer.normalizer
        self.compiled: Places = Places(table, vocabulary.unknown)

    def disagreeing(
        self, ids: Int32, spans: Int32, boundaries: Int64, texts: list[str]
    ) -> dict[int, list[Rows]]:
        """Finds the tokens that do not match the text at their byte spans, by number of text."""
        rows_by_text: dict[int, list[Rows]] = {}
        encoded_index, data = -1, b""
        for index, first, stop in self.compiled.disagreeing(ids, spans, boundaries, texts):
            if index != encoded_index:  # once per text: it may be long, with many tokens to check
                encoded_index, data = index, texts[index].encode()
            if self._normalizer is not None:
                covered = text_between(data, *around(spans[first:stop]))
                if self.compiled.agrees(ids[first:stop], self._normalizer.normalize_str(covered)):
                    continue
            base = int(boundaries[index])
            rows_by_text.setdefault(index, []).append([first - base, stop - base])
        return rows_by_text

    def disagreeing_in(self, text: str, ids: Int32, spans: Int32) -> list[Rows]:
        """Finds the tokens of one text that do not match it at their byte spans."""
        boundaries = np.array([0, len(ids)], np.int64)
        return self.disagreeing(ids, spans, boundaries, [text]).get(0, [])


def around(spans: Int32) -> tuple[int, int]:
    """Returns the range of bytes from the first of some spans to the last."""
    return int(spans[:, 0].min()), int(spans[:, 1].max())


def text_between(data: bytes, start: int, end: int) -> str:
    """Returns the text at a span of bytes, without characters that the span cuts."""
    return data[start:end].decode(errors="ignore")


PLAIN_PROBES = (
    "Sample input",
    "The quick brown fox jumps over the lazy dog",
    "Let f be continuous on [0, 1]; then f(0) = 12 and f(1) = 345.",
    "def mean(a, b):\n    return (a + b) / 2",
)
"""ASCII, with single spaces between words; no normaliser loses its letters or digits."""

HARD_PROBES = (
    " ",
    "   leading",
    "trailing   ",
    "a\tb\r\n\n  c",
    "∑ x² ≤ ∞",
    "😊 hi 👩\u200d🔬🇩🇪",
    " 𝒜 ∞",
    "cafe\u0301 nai\u0308ve",
    "\u1112\u1161\u11ab",
    "\u0928\u093c",
    "ﬁ①２０…",
    "İstanbul ẞ",
    "日本語 한국어 ไทย",
    "snake_case _x = a , b",
    "\x00\x10a \ufeff\ufffd",
    "▁ Ġ ##x",
    "11 3.14159",
)
"""Texts that break offsets of other tokenizers: combining marks, split characters, runs of blanks,
control characters."""


def check_tokenizer(tokenizer: Any, vocabulary: Vocabulary, places: TokenPlaces, name: str) -> None:
    """Tests a tokenizer on every probe.
    Raises: TokenizerError, naming tokenizer, probe and remedy, for tokens with text but empty
        offsets; offsets outside the text or out of order; offsets that point at other text than the
        tokens'; lost letters, digits or spaces; ids that differ from run to run."""
    probes = [*PLAIN_PROBES, *HARD_PROBES]
    fast = tokenize(tokenizer, probes, name, with_offsets=False)
    slow = tokenize(tokenizer, probes, name, with_offsets=True)
    with_spaces = _keeps_spaces(vocabulary)
    for probe, ids, encoding in zip(probes, (e.ids for e in fast), slow, strict=True):
        if ids != encoding.ids:
            raise TokenizerError(
                f"{name}: tokenizes {probe!r} once as {ids}, once as {encoding.ids}; switch its "
                "dropout off (tokenizer.model.dropout = None)"
            )
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        arguments = np.array(ids, np.int32), offsets, vocabulary, probe
        fault = _disorder(encoding.offsets, probe) or describe_collapse(*arguments)
        if not fault and probe in PLAIN_PROBES:
            normalizer = tokenizer.normalizer
            normalized = normalizer.normalize_str(probe) if normalizer else probe
            fault = _lost_text(ids, vocabulary, (probe, normalized), name, with_spaces=with_spaces)
            fault = fault or _wrong_places(*arguments, places)
        if fault:
            raise TokenizerError(f"{name}: on {probe[:60]!r} {fault}. {remedy()}")


def describe_collapse(ids: Int32, offsets: Int32, vocabulary: Vocabulary, text: str) -> str:
    """Describes a text in which most tokens with visible text have empty offsets, and some letters
    or digits are covered by no offset; "" for other texts.

    Offsets may be empty for white space (trimmed, or a dummy prefix) and for tokens that a
    normaliser inserted.
    """
    visible = vocabulary.visible[ids]
    empty = visible & (offsets[:, 0] == offsets[:, 1])
    if 2 * np.count_nonzero(empty) <= np.count_nonzero(visible):
        return ""
    is_covered = np.zeros(len(text) + 1, np.int64)
    np.add.at(is_covered, offsets[:, 0], 1)
    np.add.at(is_covered, offsets[:, 1], -1)
    covered = np.cumsum(is_covered)[:-1] > 0
    if all(is_in or not c.isalnum() for c, is_in in zip(text, covered.tolist(), strict=True)):
        return ""
    row = int(np.argmax(empty))
    piece, at = vocabulary.pieces[ids[row]], int(offsets[row, 0])
    return (
        f"{np.count_nonzero(empty)} tokens with text have empty offsets, "
        f"the first is token {row}, {piece!r} (id {ids[row]}) at ({at}, {at})"
    )


def _disorder(offsets: list[tuple[int, int]], text: str) -> str:
    """Describes an offset that is outside the text or out of order; "" if none is."""
    last = (0, 0)
    for row, (start, end) in enumerate(offsets):
        if not 0 <= start <= end <= len(text):
            return f"token {row} has the offset ({start}, {end})"
        if start < end:
            if start < last[0] or end < last[1]:
                return f"token {row} at ({start}, {end}) comes after {last}"
            last = (start, end)
    return ""


def _lost_text(
    ids: list[int], vocabulary: Vocabulary, texts: tuple[str, str], name: str, *, with_spaces: bool
) -> str:
    """Describes the tokens if they lose a part of the text, original or normalised; "" if not.
    Raises: TokenizerError for lost spaces, which have a remedy of their own."""
    pieces = [vocabulary.pieces[index] for index in ids]
    known_pieces = [piece for piece in pieces if piece is not None]
    if len(known_pieces) < len(pieces) or vocabulary.unknown in ids:
        return ""  # nothing to compare with
    text, joined = texts[0], b"".join(known_pieces).decode(errors="replace")
    letters = _letters(joined)
    if not any(_is_within(_letters(form), letters) for form in texts):
        return f"the tokens are {joined!r}"
    if with_spaces and " " in text and " " not in joined.strip():
        raise TokenizerError(
            f"{name}: loses the spaces of {text!r}: the tokens are {joined!r}. Load it with "
            "transformers >=5.22 (earlier 5.x drop the spaces of DeepSeek's), or from its "
            "tokenizer.json"
        )
    return ""


def _wrong_places(
    ids: Int32, offsets: Int32, vocabulary: Vocabulary, text: str, places: TokenPlaces
) -> str:
    """Describes a token of an ASCII text that is not at its offset; "" if there is none.

    A normaliser may insert tokens whose offset is next to the text that they mark (case as marks).
    Such tokens are not found elsewhere in the text.
    """
    disagreeing = places.disagreeing_in(text, ids, offsets)
    if misplaced := places.compiled.misplaced(ids, offsets, text, disagreeing):
        row, stop, _ = misplaced
        start, end = around(offsets[row:stop])
        piece = vocabulary.pieces[ids[row]]
        return f"the offset of token {row}, {piece!r}, points at {text[start:end]!r}"
    times = sum(len(_letters(text[a:b])) for a, b in offsets.tolist()) / len(_letters(text))
    return f"its offsets cover the text {times:.0f} times" if times > 2 else ""


def _letters(text: str) -> str:
    """Keeps only the letters and digits, without case, marks or compatibility forms."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    return "".join(character for character in plain if character.isalnum())


def _is_within(part: str, whole: str) -> bool:
    """Tells whether the characters of `part` are, in order, among those of `whole`."""
    remaining = iter(whole)  # `in` consumes it up to the character
    return all(character in remaining for character in part)


def _keeps_spaces(vocabulary: Vocabulary) -> bool:
    """Tells whether pieces begin with spaces; those of WordPiece do not."""
    pieces = [piece for piece in vocabulary.pieces if piece]
    return sum(piece.startswith(b" ") for piece in pieces) * 20 > len(pieces)


def remedy() -> str:
    """Returns the advice for wrong offsets, with the installed version of tokenizers."""
    import tokenizers

    return (
        "Such offsets assign losses to the wrong text. Use tokenizers >=0.22.1 (releases before "
        f"0.20.1 give Llama-3 empty offsets; installed: {tokenizers.__version__}) and a "
        "tokenizer.json made for it; transformers before 5.22 loads some tokenizers, such as "
        "DeepSeekMath's, with another pre-tokenizer"
    )
