"""Computes spans of texts whose ids do not give their bytes: from the tokenizer's own offsets,
closed and checked.

`tokenizers` adds a character that gives no token to the previous token. Where there is none, at the
start of a text or of a word, it moves the offsets of the next tokens. So every token is compared
with the text at its span, and moved spans are corrected or rejected.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby, pairwise
from typing import Any
from unicodedata import combining, normalize

import numpy as np
from numpy.typing import NDArray

from vocagno._vocagno import PieceTable, SpanError, chars_to_bytes
from vocagno.alignment.arrays import Int32, Int64
from vocagno.tokens.tokenizer_checks import (
    TokenPlaces,
    around,
    describe_collapse,
    remedy,
    text_between,
)
from vocagno.tokens.tokenizer_files import flat_ids, tokenize
from vocagno.tokens.vocabulary import Vocabulary

_MAX_RUNS = 64
"""Maximum number of runs of characters without tokens that are removed from a text one by one."""
_INVALID = (
    "its offsets are invalid or out of order; use a current release of tokenizers, or another "
    "tokenizer.json"
)


class OffsetSpans:
    """Computes the spans of texts from the offsets of one tokenizer."""

    def __init__(
        self,
        tokenizer: Any,
        vocabulary: Vocabulary,
        table: PieceTable,
        places: TokenPlaces,
        name: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._table = table
        self._places = places
        self._name = name
        self._leaves_no_token: dict[str, bool] = {}

    def encode(self, texts: list[str]) -> tuple[Int32, Int64, dict[int, str]]:
        """Computes the byte spans of the tokens of texts.

        Returns: the spans; their boundaries; and, by the number of the text, why its tokens cannot
            be placed: offsets without width, out of order, or of other text.
        """
        encodings = tokenize(self._tokenizer, texts, self._name, with_offsets=True)
        ids, boundaries = flat_ids(encodings)
        offsets = _offsets(encodings, len(ids))
        if self._vocabulary.drops_bytes:
            self._correct_by_bytes(ids, offsets, boundaries, texts)
        text_rows = [slice(a, b) for a, b in pairwise(boundaries.tolist())]
        refused: dict[int, str] = {}
        for index, (text, rows) in enumerate(zip(texts, text_rows, strict=True)):
            if fault := describe_collapse(ids[rows], offsets[rows], self._vocabulary, text):
                refused[index] = f"{fault}. {remedy()}"
        raw_spans, spans = self._close_each(ids, offsets, boundaries, texts, refused)
        # Closing may hide a wrong offset, so the spans are compared before it.
        for index in self._places.disagreeing(ids, raw_spans, boundaries, texts):
            rows = text_rows[index]
            if index not in refused:
                spans[rows], reason = self._correct(
                    texts[index], ids[rows], raw_spans[rows], spans[rows]
                )
                refused |= {index: reason} if reason else {}
        return spans, boundaries, refused

    def _correct_by_bytes(
        self, ids: Int32, offsets: Int32, boundaries: Int64, texts: list[str]
    ) -> None:
        """Corrects offsets that dropped bytes moved.

        The ids prove their bytes in the normalised text. A tokenizer with the same normaliser and
        tokens for all bytes gives the character that each of these bytes comes from.
        """
        normalizer = self._tokenizer.normalizer
        normalized = [normalizer.normalize_str(text) for text in texts] if normalizer else texts
        spans, proved = self._table.spans(ids, boundaries, normalized, None)
        for index in np.flatnonzero(proved).tolist():
            (encoding,) = self._all_bytes.encode_batch([texts[index]])
            characters = _offsets([encoding], len(encoding))
            rows = np.arange(boundaries[index], boundaries[index + 1])
            rows = rows[spans[rows, 0] < spans[rows, 1]]
            if len(characters) == len(normalized[index].encode()):
                offsets[rows, 0] = characters[spans[rows, 0], 0]
                offsets[rows, 1] = characters[spans[rows, 1] - 1, 1]

    @cached_property
    def _all_bytes(self) -> Any:
        """A tokenizer with the same normaliser, of which every byte is a token."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        letters = {letter: index for index, letter in enumerate(level.alphabet())}
        tokenizer = Tokenizer(models.BPE(letters, []))
        tokenizer.normalizer, tokenizer.pre_tokenizer = self._tokenizer.normalizer, level
        return tokenizer

    def _close_each(
        self,
        ids: Int32,
        offsets: Int32,
        boundaries: Int64,
        texts: list[str],
        refused: dict[int, str],
    ) -> tuple[Int32, Int32]:
        """Closes the spans of all texts like `_close`; a text whose offsets are invalid is added to
        `refused` instead of an error."""
        try:
            return self._close(ids, offsets, boundaries, texts)
        except SpanError:
            raw_spans, spans = np.zeros((2, len(ids), 2), np.int32)
        for index, text in enumerate(texts):
            rows = slice(*boundaries[index : index + 2].tolist())
            ends = boundaries[index : index + 2] - boundaries[index]
            try:
                raw_spans[rows], spans[rows] = self._close(ids[rows], offsets[rows], ends, [text])
            except SpanError as error:
                refused.setdefault(index, f"{error}: {_INVALID}")
        return raw_spans, spans

    def _close(
        self, ids: Int32, offsets: Int32, boundaries: Int64, texts: list[str]
    ) -> tuple[Int32, Int32]:
        """Converts character offsets to byte spans; returns these as they are and closed.

        Each token that has some of the marks of a reordered run gets all of them, because the
        offsets give a mark the position of another one. Raises: SpanError for invalid offsets.
        """
        for text, (first, stop) in zip(texts, pairwise(boundaries.tolist()), strict=True):
            starts, ends = offsets[first:stop].T
            for letter, start, end in self._reordered_marks(text):
                starts[(start < starts) & (starts < end)] = start
                ends[(letter < ends) & (ends < end)] = end
        in_bytes = chars_to_bytes(offsets, boundaries, texts)
        return in_bytes, self._table.close(in_bytes, ids, boundaries, texts)

    def _reordered_marks(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Finds runs of combining marks that the normaliser puts in another order.

        Yields `(letter, start, end)` in characters: the run is `[start, end)`, with the letter
        before it if that has a mark itself; `letter` is the position of that letter if it was
        composed with a mark, else `start`. NFC reorders for a composition, too: `a`, cedilla, acute
        becomes `á`, cedilla.
        """
        normalizer = self._tokenizer.normalizer
        if normalizer is None or text.isascii():
            return
        # No character before U+0300 is a combining mark.
        marks = [i for i, letter in enumerate(text) if letter > "\u02ff" and combining(letter)]
        # In a run of consecutive positions, position minus number is constant.
        for _, group in groupby(enumerate(marks), lambda numbered: numbered[1] - numbered[0]):
            run = [position for _, position in group]
            start, end = run[0], run[-1] + 1
            piece = text[max(0, start - 1) : end]
            normalized = normalizer.normalize_str(piece)
            before, after = _marks(piece), _marks(normalized)
            if before != after and sorted(before) == sorted(after):
                is_composed = sum(map(bool, map(combining, normalized))) < len(after)
                yield start - is_composed, start - (len(before) > end - start), end

    def _correct(self, text: str, ids: Int32, raw_spans: Int32, spans: Int32) -> tuple[Int32, str]:
        """Corrects the spans of a text in which tokens disagree with the text at their raw spans.
        Returns: closed spans; and why they are wrong, "" if they are right.

        If the text without the characters that give no token has the same ids, its offsets are used
        after moving them by the removed characters. Then tokens are moved to their characters where
        these can be at one place only.
        """
        boundaries = np.array([0, len(ids)], np.int64)
        disagreeing = self._places.disagreeing_in(text, ids, spans)
        offsets = self._offsets_of_shorter_text(text, ids) if disagreeing else None
        if offsets is not None:
            try:
                corrected = self._close(ids, offsets, boundaries, [text])
            except SpanError as error:
                return spans, f"{error}: {_INVALID}"
            still_disagreeing = self._places.disagreeing_in(text, ids, corrected[1])
            if len(still_disagreeing) < len(disagreeing):
                (raw_spans, spans), disagreeing = corrected, still_disagreeing
        certain = self._at_certain_places(text, ids, raw_spans)
        if certain is not None:
            return certain, ""
        misplaced = self._places.compiled.misplaced(ids, spans, text, disagreeing)
        return spans, self._describe_misplaced(text, ids, spans, *misplaced) if misplaced else ""

    def _at_certain_places(self, text: str, ids: Int32, raw_spans: Int32) -> Int32 | None:
        """Moves the tokens that disagree with the text to where they agree, and closes the spans.
        None if no such place exists, or more than one does.

        A normaliser that contracts characters (`...` to `…`) needs this: the offset of the result
        is that of one character, and the others would go to the token before it.
        """
        disagreeing = self._places.disagreeing_in(text, ids, raw_spans)
        moves = self._places.compiled.moves(ids, raw_spans, text, disagreeing)
        if moves is None:
            return None
        moved = raw_spans.copy()
        least, most = np.zeros_like(moved), np.full_like(moved, len(text.encode()))
        for row, span in moves:
            moved[row] = least[row] = most[row] = span
        # Tokens that are not moved stay between those that are.
        least = np.maximum.accumulate(least)
        most = np.minimum.accumulate(most[::-1])[::-1]
        between = np.ascontiguousarray(np.clip(moved, least, most))
        try:
            closed = self._table.close(between, ids, np.array([0, len(ids)], np.int64), [text])
        except SpanError:
            return None  # tokens that were not moved are out of order
        return None if self._places.disagreeing_in(text, ids, closed) else closed

    def _offsets_of_shorter_text(self, text: str, ids: Int32) -> Int32 | None:
        """Computes offsets from the text without characters that give no token. None if the shorter
        text has other ids."""
        is_kept = np.array([not self._has_no_token(character) for character in text], np.bool_)
        if is_kept.all():
            return None
        shorter_offsets = self._offsets_of_kept(text, is_kept, ids)
        if shorter_offsets is not None:
            return shorter_offsets
        # Removing all of them changes the ids: remove each run that does not change them.
        kept = np.ones_like(is_kept)
        ends = np.flatnonzero(np.diff(is_kept, prepend=True, append=True))
        for first, stop in ends.reshape(-1, 2)[:_MAX_RUNS].tolist():
            candidate = kept.copy()
            candidate[first:stop] = False
            offsets = self._offsets_of_kept(text, candidate, ids)
            if offsets is not None:
                shorter_offsets, kept = offsets, candidate
        return shorter_offsets

    def _offsets_of_kept(self, text: str, is_kept: NDArray[np.bool_], ids: Int32) -> Int32 | None:
        """Computes offsets in the whole text from its kept characters; None if the ids differ."""
        kept = np.flatnonzero(is_kept)
        (encoding,) = self._tokenizer.encode_batch(
            ["".join(text[place] for place in kept.tolist())], add_special_tokens=False
        )
        if encoding.ids != ids.tolist():
            return None
        offsets = _offsets([encoding], len(ids))
        # Character i of the shorter text is character `kept[i]` of the text.
        starts = np.append(kept, len(text))[offsets[:, 0]]
        ends = np.append(0, kept + 1)[offsets[:, 1]]
        return np.stack([starts, np.maximum(starts, ends)], 1).astype(np.int32)

    def _has_no_token(self, character: str) -> bool:
        """Tells whether a character that is not white space gives no token. Remembers it."""
        has_none = self._leaves_no_token.get(character)
        if has_none is None:
            normalizer = self._tokenizer.normalizer
            has_none = normalizer is not None and normalizer.normalize_str(character) == ""
            if not has_none and not character.isspace():
                character_ids, blank_ids = (
                    encoding.ids
                    for encoding in self._tokenizer.encode_batch(
                        [character, " "], add_special_tokens=False
                    )
                )
                has_none = character_ids in ([], blank_ids)
            self._leaves_no_token[character] = has_none
        return has_none

    def _describe_misplaced(
        self, text: str, ids: Int32, spans: Int32, first: int, stop: int, byte: int
    ) -> str:
        """Describes the tokens `[first, stop)`, which are likely at `byte`, for an error."""
        pieces = b"".join(self._vocabulary.pieces[i] or b"" for i in ids[first:stop].tolist())
        piece, (start, end) = pieces.decode(errors="replace"), around(spans[first:stop])
        held = text_between(text.encode(), start, end)
        return (
            f"the offset of token {first}, {piece!r} (id {ids[first]}), points at {held!r} "
            f"(bytes {start} to {end}), but the token is likely at byte {byte}, which is not "
            f"certain. {self._reason(text)}, or skip it"
        )

    def _reason(self, text: str) -> str:
        """Returns why the offsets of a text are wrong, and the remedy."""
        if lost := next((c for c in text if self._has_no_token(c)), None):
            return f"{lost!r} gives no token, which moves offsets: remove such characters from it"
        normalizer = self._tokenizer.normalizer
        changed = normalizer.normalize_str(text).replace("▁", " ") if normalizer else text
        if changed.strip() != text.strip():
            return "Its normalizer changes the text: pass it as `normalizer.normalize_str` gives it"
        return "Use another release of tokenizers or another tokenizer.json"


def _marks(text: str) -> list[str]:
    """Lists the combining marks of each character, decomposed, in order."""
    letters = chain.from_iterable(normalize("NFKD", character) for character in text)
    return [letter for letter in letters if combining(letter)]


def _offsets(encodings: Sequence[Any], count: int) -> Int32:
    """Concatenates the character offsets of encodings to (count, 2)."""
    pairs = chain.from_iterable(encoding.offsets for encoding in encodings)
    return np.fromiter(chain.from_iterable(pairs), np.int32, count=2 * count).reshape(-1, 2)
