"""Token ids with the bytes that each token covers, and the texts of documents stored as ids."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from vocagno._vocagno import PieceTable, SpanError
from vocagno.alignment.arrays import Int32, Int64
from vocagno.tokens.tokenizer_files import TokenizerError
from vocagno.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedTexts:
    """B texts as concatenated ids and spans.

    `tokens[i]` and `tokens[a:b]` are views of some of the texts. `len(tokens)` is B, and iteration
    yields the texts. Objects are compared by identity.
    """

    ids: NDArray[np.int32]
    """(n,) token ids, without special tokens except those written in the text."""
    spans: NDArray[np.int32]
    """(n, 2) half-open `[start, end)` in UTF-8 bytes of each token's own text."""
    cu_seqlens: NDArray[np.int64]
    """(B + 1,) boundaries of the texts in `ids` and `spans`."""
    proved: NDArray[np.bool_]
    """(B,) True if the spans come from the ids, False if from the tokenizer's offsets."""

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1

    def text(self, index: SupportsIndex) -> slice:
        """The rows of text `index`; a negative index counts from the end.

        Raises: IndexError for an index outside the B texts.
        """
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"index {number}: expected one of {len(self)} texts")
        number %= len(self)
        return slice(int(self.cu_seqlens[number]), int(self.cu_seqlens[number + 1]))

    def __getitem__(self, index: SupportsIndex | slice) -> TokenizedTexts:
        """One text (by its index, which may be negative), or consecutive texts (by a slice).

        Raises: IndexError for an index outside the B texts; ValueError for a slice with a step;
            TypeError for anything else.
        """
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"expected a slice with step 1, got step {step}")
            stop = max(first, stop)
        elif hasattr(index, "__index__"):
            self.text(index)
            first = operator.index(index) % len(self)
            stop = first + 1
        else:
            raise TypeError(f"expected an integer or a slice, got {type(index).__name__}")
        boundaries = self.cu_seqlens[first : stop + 1]
        rows = slice(int(boundaries[0]), int(boundaries[-1]))
        return TokenizedTexts(
            self.ids[rows], self.spans[rows], boundaries - boundaries[0], self.proved[first:stop]
        )

    def without(self, numbers: Collection[int]) -> TokenizedTexts:
        """The same B texts, these without tokens and not `proved`."""
        is_left_out = np.isin(np.arange(len(self)), [*numbers])
        sizes = np.diff(self.cu_seqlens)
        is_kept = np.repeat(~is_left_out, sizes)
        ends = np.cumsum(np.append(0, np.where(is_left_out, 0, sizes)))
        return TokenizedTexts(
            self.ids[is_kept], self.spans[is_kept], ends, self.proved & ~is_left_out
        )

    @staticmethod
    def concatenate(parts: Iterable[TokenizedTexts]) -> TokenizedTexts:
        """Copies of the texts of all parts, concatenated."""
        parts = list(parts)
        counts = [np.diff(part.cu_seqlens) for part in parts]
        return TokenizedTexts(
            np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)]),
            np.concatenate([np.empty((0, 2), np.int32), *(part.spans for part in parts)]),
            np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts]), dtype=np.int64),
            np.concatenate([np.empty(0, np.bool_), *(part.proved for part in parts)]),
        )


class IdTexts:
    """Texts and spans of B documents, given as (n,) ids and (B + 1,) boundaries."""

    def __init__(self, vocabulary: Vocabulary, table: PieceTable, name: str) -> None:
        """`name` of the tokenizer, for messages."""
        self._vocabulary, self._table, self._name = vocabulary, table, name

    def decode(
        self, ids: Int32, boundaries: Int64, *, continues: bool
    ) -> tuple[list[str], TokenizedTexts]:
        """Texts and spans.

        Args:
            continues: as `TokenSpans.decode`.
        Raises: TokenizerError for ids that do not determine their text or are not whole documents.
        """
        found, tokens = self._decoded(self._table, ids, boundaries, continues=continues)
        return [self._text(text, index) for index, text in enumerate(found)], tokens

    def with_dummy_prefixes(
        self, ids: Int32, boundaries: Int64
    ) -> tuple[list[bytes], TokenizedTexts, NDArray[np.bool_]]:
        """As `decode`, for texts that may be cut inside a character: their bytes with all spaces of
        the ids, and (n,) which tokens begin with one that may be a dummy prefix."""
        found, tokens = self._decoded(self._literal_table, ids, boundaries, continues=True)
        return found, tokens, self._begins_with_a_prefix(tokens)

    @cached_property
    def _literal_table(self) -> PieceTable:
        """The bytes of the ids, without dummy prefixes."""
        if self._vocabulary.dummy_prefix == "none":
            return self._table
        return PieceTable(self._vocabulary.pieces, self._vocabulary.roles.tolist(), "none")

    def _begins_with_a_prefix(self, tokens: TokenizedTexts) -> NDArray[np.bool_]:
        """(n,) whether a token begins with a space, where a tokenizer puts a dummy prefix: at the
        start of a text, and unless it is only there, after an added token."""
        kind = self._vocabulary.dummy_prefix
        if kind == "none" or not len(tokens.ids):
            return np.zeros(len(tokens.ids), np.bool_)
        roles = self._vocabulary.roles[tokens.ids]
        starts_segment = np.append(True, roles[:-1] != 0)
        if kind == "metaspace_first":
            starts_segment[:] = False
        for first, stop in pairwise(tokens.cu_seqlens.tolist()):
            with_text = np.flatnonzero(roles[first:stop] != 2)[:1]
            starts_segment[first + with_text] = True
        begins: NDArray[np.bool_] = self._vocabulary.begins_with_space[tokens.ids]
        begins &= starts_segment & (roles == 0)
        return begins

    def _decoded(
        self, table: PieceTable, ids: Int32, boundaries: Int64, *, continues: bool
    ) -> tuple[list[bytes], TokenizedTexts]:
        try:
            found, spans = table.decode(ids, boundaries, continues)
        except SpanError as error:
            raise TokenizerError(f"{self._name}: {error}") from error
        self._refuse_ambiguous(ids, boundaries)
        return found, TokenizedTexts(ids, spans, boundaries, np.ones(len(found), bool))

    def _refuse_ambiguous(self, ids: Int32, boundaries: Int64) -> None:
        """Rejects ids that do not determine their text."""
        ambiguous = self._vocabulary.ambiguous
        if not ambiguous:
            return
        special = self._vocabulary.special
        for place in np.flatnonzero(np.isin(ids, [*ambiguous])).tolist():
            index = int(np.searchsorted(boundaries, place, side="right")) - 1
            document = ids[boundaries[index] : boundaries[index + 1]]
            row = place - int(boundaries[index])
            token = ambiguous[int(ids[place])]
            before, after = (special[part].all() for part in (document[:row], document[row:]))
            if not ((before and token.is_fine_before) or (after and token.is_fine_after)):
                piece = (self._vocabulary.pieces[ids[place]] or b"").decode(errors="replace")
                raise TokenizerError(
                    f"{self._name}: token {row} of document {index}, {piece!r} (id {ids[place]}), "
                    f"{token.why}, so the ids do not determine the text; keep the texts, and pass "
                    "them (`texts`)"
                )

    def _text(self, text: bytes, index: int) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise TokenizerError(
                f"{self._name}: the ids of document {index} are cut inside a character "
                f"(byte {error.start} of {len(text)}); only whole documents have a text"
            ) from error
