"""Spans of texts for which ids are not enough: the tokenizer's own offsets, closed and checked.

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
from vocagno.tokens.tokenizer_checks import TokenPlaces, around, collapsed, remedy, text_between
from vocagno.tokens.tokenizer_files import flat_ids, tokenized
from vocagno.tokens.vocabulary import Vocabulary

_MOST_RUNS = 64
"""Maximum number of runs of characters without tokens that are removed from a text one by one."""
_INVALID = (
    "its offsets are invalid or out of order; use a current release of tokenizers, or another "
    "tokenizer.json"
)


class OffsetSpans:
    """Spans from a tokenizer's offsets."""

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
        """Byte spans of the tokens of texts, their boundaries, and why tokens of texts cannot be
        placed: offsets without width, out of order, or of other text."""
        encodings = tokenized(self._tokenizer, texts, self._name, with_offsets=True)
        ids, boundaries = flat_ids(encodings)
        offsets = _offsets(encodings, len(ids))
        if self._vocabulary.drops_bytes:
            self._correct_by_bytes(ids, offsets, boundaries, texts)
        held = [slice(a, b) for a, b in pairwise(boundaries.tolist())]
        refused: dict[int, str] = {}
        for index, (text, own) in enumerate(zip(texts, held, strict=True)):
            if what := collapsed(ids[own], offsets[own], self._vocabulary, text):
                refused[index] = f"{what}. {remedy()}"
        own_spans, spans = self._closed_each(ids, offsets, boundaries, texts, refused)
        for index in self._places.disagreeing(ids, own_spans, boundaries, texts):
            own = held[index]
            if index not in refused:
                given = texts[index], ids[own], own_spans[own], spans[own]
                spans[own], why = self._anchored(*given)
                refused |= {index: why} if why else {}
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

    def _closed_each(
        self,
        ids: Int32,
        offsets: Int32,
        boundaries: Int64,
        texts: list[str],
        refused: dict[int, str],
    ) -> tuple[Int32, Int32]:
        """As `_closed`, of all texts; adds those whose offsets are invalid to `refused`."""
        try:
            return self._closed(ids, offsets, boundaries, texts)
        except SpanError:
            own_spans, spans = np.zeros((2, len(ids), 2), np.int32)
        for index, text in enumerate(texts):
            own = slice(*boundaries[index : index + 2].tolist())
            ends = boundaries[index : index + 2] - boundaries[index]
            try:
                own_spans[own], spans[own] = self._closed(ids[own], offsets[own], ends, [text])
            except SpanError as error:
                refused.setdefault(index, f"{error}: {_INVALID}")
        return own_spans, spans

    def _closed(
        self, ids: Int32, offsets: Int32, boundaries: Int64, texts: list[str]
    ) -> tuple[Int32, Int32]:
        """The byte spans of character offsets, as they are and closed. Each token that has some of
        the marks of a reordered run gets all of them: the offsets give a mark the place of another
        one."""
        for text, (first, stop) in zip(texts, pairwise(boundaries.tolist()), strict=True):
            starts, ends = offsets[first:stop].T
            for letter, start, end in self._reordered_marks(text):
                starts[(start < starts) & (starts < end)] = start
                ends[(letter < ends) & (ends < end)] = end
        in_bytes = chars_to_bytes(offsets, boundaries, texts)
        return in_bytes, self._table.close(in_bytes, ids, boundaries, texts)

    def _reordered_marks(self, text: str) -> Iterator[tuple[int, int, int]]:
        """The characters, `[start, end)`, of runs of combining marks that the normaliser puts in
        another order, with the letter before them if it has a mark itself; before them the place of
        that letter if it was composed with one of them, else `start`. NFC reorders for a
        composition, too: `a`, cedilla, acute becomes `á`, cedilla."""
        normalizer = self._tokenizer.normalizer
        if normalizer is None or text.isascii():
            return
        places = [
            place for place, letter in enumerate(text) if letter > "\u02ff" and combining(letter)
        ]
        for _, run in groupby(enumerate(places), lambda numbered: numbered[1] - numbered[0]):
            held = [place for _, place in run]
            start, end = held[0], held[-1] + 1
            piece = text[max(0, start - 1) : end]
            normalized = normalizer.normalize_str(piece)
            before, after = _marks(piece), _marks(normalized)
            if before != after and sorted(before) == sorted(after):
                is_composed = sum(map(bool, map(combining, normalized))) < len(after)
                yield start - is_composed, start - (len(before) > end - start), end

    def _anchored(self, text: str, ids: Int32, own_spans: Int32, spans: Int32) -> tuple[Int32, str]:
        """Closed spans of a text in which tokens disagree with the text at their own spans, and why
        there are none, or "".

        If the text without the characters that give no token has the same ids, its offsets are used
        after moving them by the removed characters. Then tokens are moved to their characters where
        these can be at one place only.
        """
        boundaries = np.array([0, len(ids)], np.int64)
        disagreeing = self._places.disagreeing_in(text, ids, spans)
        moved = self._without_what_leaves_no_token(text, ids) if disagreeing else None
        if moved is not None:
            try:
                mended = self._closed(ids, moved, boundaries, [text])
            except SpanError as error:
                return spans, f"{error}: {_INVALID}"
            left = self._places.disagreeing_in(text, ids, mended[1])
            if len(left) < len(disagreeing):
                (own_spans, spans), disagreeing = mended, left
        certain = self._at_certain_places(text, ids, own_spans)
        if certain is not None:
            return certain, ""
        found = self._places.compiled.misplaced(ids, spans, text, disagreeing)
        return spans, self._misplaced(text, ids, spans, *found) if found else ""

    def _at_certain_places(self, text: str, ids: Int32, own_spans: Int32) -> Int32 | None:
        """Closed spans in which all tokens agree with the text, after moving those that do not.
        None if there are none, or others are possible.

        A normaliser that contracts characters (`...` to `…`) needs this: the offset of the result
        is that of one character, and the others would go to the token before it.
        """
        disagreeing = self._places.disagreeing_in(text, ids, own_spans)
        moves = self._places.compiled.moves(ids, own_spans, text, disagreeing)
        if moves is None:
            return None
        moved = own_spans.copy()
        least, most = np.zeros_like(moved), np.full_like(moved, len(text.encode()))
        for row, span in moves:
            moved[row] = least[row] = most[row] = span
        # The others stay between them.
        least = np.maximum.accumulate(least)
        most = np.minimum.accumulate(most[::-1])[::-1]
        between = np.ascontiguousarray(np.clip(moved, least, most))
        try:
            closed = self._table.close(between, ids, np.array([0, len(ids)], np.int64), [text])
        except SpanError:
            return None  # others are out of order
        return None if self._places.disagreeing_in(text, ids, closed) else closed

    def _without_what_leaves_no_token(self, text: str, ids: Int32) -> Int32 | None:
        """Offsets from the same ids of a shorter text; None if no shorter text gives them."""
        is_kept = np.array([not self._has_no_token(character) for character in text], np.bool_)
        if is_kept.all():
            return None
        found = self._offsets_of_kept(text, is_kept, ids)
        if found is not None:
            return found
        chosen = np.ones_like(is_kept)
        ends = np.flatnonzero(np.diff(is_kept, prepend=True, append=True))
        for first, stop in ends.reshape(-1, 2)[:_MOST_RUNS].tolist():
            tried = chosen.copy()
            tried[first:stop] = False
            offsets = self._offsets_of_kept(text, tried, ids)
            if offsets is not None:
                found, chosen = offsets, tried
        return found

    def _offsets_of_kept(self, text: str, is_kept: NDArray[np.bool_], ids: Int32) -> Int32 | None:
        """Offsets in the whole text, computed from the kept characters; None if the ids differ."""
        kept = np.flatnonzero(is_kept)
        (encoding,) = self._tokenizer.encode_batch(
            ["".join(text[place] for place in kept.tolist())], add_special_tokens=False
        )
        if encoding.ids != ids.tolist():
            return None
        offsets = _offsets([encoding], len(ids))
        starts = np.append(kept, len(text))[offsets[:, 0]]
        ends = np.append(0, kept + 1)[offsets[:, 1]]
        return np.stack([starts, np.maximum(starts, ends)], 1).astype(np.int32)

    def _has_no_token(self, character: str) -> bool:
        """Whether a character gives no token, ignoring white space."""
        known = self._leaves_no_token.get(character)
        if known is None:
            normalizer = self._tokenizer.normalizer
            known = normalizer is not None and normalizer.normalize_str(character) == ""
            if not known and not character.isspace():
                alone, blank = (
                    encoding.ids
                    for encoding in self._tokenizer.encode_batch(
                        [character, " "], add_special_tokens=False
                    )
                )
                known = alone in ([], blank)
            self._leaves_no_token[character] = known
        return known

    def _misplaced(
        self, text: str, ids: Int32, spans: Int32, first: int, stop: int, byte: int
    ) -> str:
        pieces = b"".join(self._vocabulary.pieces[i] or b"" for i in ids[first:stop].tolist())
        piece, (start, end) = pieces.decode(errors="replace"), around(spans[first:stop])
        held = text_between(text.encode(), start, end)
        return (
            f"the offset of token {first}, {piece!r} (id {ids[first]}), points at {held!r} "
            f"(bytes {start} to {end}), but the token is likely at byte {byte}, which is not "
            f"certain. {self._reason(text)}, or skip it"
        )

    def _reason(self, text: str) -> str:
        """Why offsets of a text are wrong, and the remedy."""
        if lost := next((c for c in text if self._has_no_token(c)), None):
            return f"{lost!r} gives no token, which moves offsets: remove such characters from it"
        normalizer = self._tokenizer.normalizer
        changed = normalizer.normalize_str(text).replace("▁", " ") if normalizer else text
        if changed.strip() != text.strip():
            return "Its normalizer changes the text: pass it as `normalizer.normalize_str` gives it"
        return "Use another release of tokenizers or another tokenizer.json"


def _marks(text: str) -> list[str]:
    """The combining marks of each character in turn, decomposed."""
    letters = chain.from_iterable(normalize("NFKD", character) for character in text)
    return [letter for letter in letters if combining(letter)]


def _offsets(encodings: Sequence[Any], count: int) -> Int32:
    pairs = chain.from_iterable(encoding.offsets for encoding in encodings)
    return np.fromiter(chain.from_iterable(pairs), np.int32, count=2 * count).reshape(-1, 2)
