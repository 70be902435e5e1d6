"""Holds token ids with the bytes that each token covers (`TokenizedTexts`), and decodes documents
that are stored as ids (`IdTexts`)."""

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
        """Returns the rows of text `index`; a negative index counts from the end.

        Raises: IndexError for an index outside the B texts.
        """
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"index {number}: expected one of {len(self)} texts")
        number %= len(self)
        return slice(int(self.cu_seqlens[number]), int(self.cu_seqlens[number + 1]))

    def __getitem__(self, index: SupportsIndex | slice) -> TokenizedTexts:
        """Returns one text (by its index, which may be negative), or consecutive ones (by a slice).

        Raises: IndexError for an index outside the B texts; ValueError for a slice with a step;
            TypeError for anything else.
        """
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"expected a slice with step 1, got step {step}")
            stop = max(first, stop)
        elif hasattr(index, "__index__"):
            self.text(index)  # raises IndexError outside the texts
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
        """Copies the B texts; those with these numbers get no tokens and are not `proved`."""
        is_emptied = np.isin(np.arange(len(self)), [*numbers])
        sizes = np.diff(self.cu_seqlens)
        is_kept = np.repeat(~is_emptied, sizes)
        boundaries = np.cumsum(np.append(0, np.where(is_emptied, 0, sizes)))
        return TokenizedTexts(
            self.ids[is_kept], self.spans[is_kept], boundaries, self.proved & ~is_emptied
        )

    @staticmethod
    def concatenate(parts: Iterable[TokenizedTexts]) -> TokenizedTexts:
        """Copies the texts of all parts into one object, in order."""
        parts = list(parts)
        counts = [np.diff(part.cu_seqlens) for part in parts]
        return TokenizedTexts(
            np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)]),
            np.concatenate([np.empty((0, 2), np.int32), *(part.spans for part in parts)]),
            np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts]), dtype=np.int64),
            np.concatenate([np.empty(0, np.bool_), *(part.proved for part in parts)]),
        )


class IdTexts:
    """Computes texts and spans of B documents from their (n,) ids and (B + 1,) boundaries."""

    def __init__(self, vocabulary: Vocabulary, table: PieceTable, name: str) -> None:
        """Args: name: the name of the tokenizer, for error messages."""
        self._vocabulary, self._table, self._name = vocabulary, table, name

    def decode(
        self, ids: Int32, boundaries: Int64, *, continues: bool
    ) -> tuple[list[str], TokenizedTexts]:
        """Decodes documents to texts and spans.

        Args:
            continues: whether the ids continue others (see `TokenSpans.decode`).
        Raises: TokenizerError for ids that do not determine their text or are not whole documents.
        """
        contents, tokens = self._decode(self._table, ids, boundaries, continues=continues)
        return [self._text(content, index) for index, content in enumerate(contents)], tokens

    def with_dummy_prefixes(
        self, ids: Int32, boundaries: Int64
    ) -> tuple[list[bytes], TokenizedTexts, NDArray[np.bool_]]:
        """Decodes texts that may be cut inside a character.

        Returns: the bytes of each text with all spaces of its ids; ids and spans; and (n,) whether
            a token begins with a space that may be a dummy prefix.
        """
        contents, tokens = self._decode(self._literal_table, ids, boundaries, continues=True)
        return contents, tokens, self._begins_with_a_prefix(tokens)

    @cached_property
    def _literal_table(self) -> PieceTable:
        """The bytes of the ids, of which no space counts as a dummy prefix."""
        if self._vocabulary.dummy_prefix == "none":
            return self._table
        return PieceTable(self._vocabulary.pieces, self._vocabulary.roles.tolist(), "none")

    def _begins_with_a_prefix(self, tokens: TokenizedTexts) -> NDArray[np.bool_]:
        """Tells which of n tokens begin with a space in a place where the tokenizer puts a dummy
        prefix: at the start of a text and, unless it is put only there, after an added token."""
        kind = self._vocabulary.dummy_prefix
        if kind == "none" or not len(tokens.ids):
            return np.zeros(len(tokens.ids), np.bool_)
        roles = self._vocabulary.roles[tokens.ids]
        starts_segment = np.append(True, roles[:-1] != 0)
        if kind == "metaspace_first":
            starts_segment[:] = False
        for first, stop in pairwise(tokens.cu_seqlens.tolist()):
            with_text = np.flatnonzero(roles[first:stop] != 2)[:1]  # special tokens have none
            starts_segment[first + with_text] = True
        begins: NDArray[np.bool_] = self._vocabulary.begins_with_space[tokens.ids]
        begins &= starts_segment & (roles == 0)
        return begins

    def _decode(
        self, table: PieceTable, ids: Int32, boundaries: Int64, *, continues: bool
    ) -> tuple[list[bytes], TokenizedTexts]:
        """Decodes documents to bytes and spans; rejects ids that do not determine their text."""
        try:
            contents, spans = table.decode(ids, boundaries, continues)
        except SpanError as error:
            raise TokenizerError(f"{self._name}: {error}") from error
        self._refuse_ambiguous(ids, boundaries)
        return contents, TokenizedTexts(ids, spans, boundaries, np.ones(len(contents), bool))

    def _refuse_ambiguous(self, ids: Int32, boundaries: Int64) -> None:
        """Raises TokenizerError, naming document and token, for an id that does not determine its
        text. Some added tokens lose text only in the middle of a document."""
        ambiguous = self._vocabulary.ambiguous
        if not ambiguous:
            return
        special = self._vocabulary.special
        for position in np.flatnonzero(np.isin(ids, [*ambiguous])).tolist():
            index = int(np.searchsorted(boundaries, position, side="right")) - 1
            document = ids[boundaries[index] : boundaries[index + 1]]
            row = position - int(boundaries[index])
            ambiguity = ambiguous[int(ids[position])]
            before, after = (special[part].all() for part in (document[:row], document[row:]))
            if not ((before and ambiguity.is_fine_before) or (after and ambiguity.is_fine_after)):
                piece = (self._vocabulary.pieces[ids[position]] or b"").decode(errors="replace")
                raise TokenizerError(
                    f"{self._name}: token {row} of document {index}, {piece!r} "
                    f"(id {ids[position]}), {ambiguity.reason}, so the ids do not determine the "
                    "text; keep the texts, and pass them (`texts`)"
                )

    def _text(self, content: bytes, index: int) -> str:
        """Returns a document's bytes as text. Raises: TokenizerError if a character is cut."""
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise TokenizerError(
                f"{self._name}: the ids of document {index} are cut inside a character "
                f"(byte {error.start} of {len(content)}); only whole documents have a text"
            ) from error
