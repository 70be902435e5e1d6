"""The texts of whole documents that are stored as ids."""

from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vocagno import _vocagno
from vocagno.tokens.tokenized_texts import TokenizedTexts
from vocagno.tokens.tokenizer_files import TokenizerError
from vocagno.tokens.vocabulary import Vocabulary


class IdTexts:
    """Texts and spans of B documents, given as (n,) ids and (B + 1,) boundaries."""

    def __init__(self, vocabulary: Vocabulary, table: _vocagno.PieceTable, name: str) -> None:
        """`name` of the tokenizer, for messages."""
        self._vocabulary, self._table, self._name = vocabulary, table, name

    def decode(
        self, ids: NDArray[np.int32], boundaries: NDArray[np.int64], *, continues: bool
    ) -> tuple[list[str], TokenizedTexts]:
        """Texts and spans.

        Args:
            continues: as `TokenSpans.decode`.
        Raises: TokenizerError for ids that do not determine their text or are not whole documents.
        """
        found, tokens = self._decoded(self._table, ids, boundaries, continues=continues)
        return [self._text(text, index) for index, text in enumerate(found)], tokens

    def with_dummy_prefixes(
        self, ids: NDArray[np.int32], boundaries: NDArray[np.int64]
    ) -> tuple[list[bytes], TokenizedTexts, NDArray[np.bool_]]:
        """As `decode`, for texts that may be cut inside a character: their bytes with all spaces of
        the ids, and (n,) which tokens begin with one that may be a dummy prefix."""
        found, tokens = self._decoded(self._literal_table, ids, boundaries, continues=True)
        return found, tokens, self._begins_with_a_prefix(tokens)

    @cached_property
    def _literal_table(self) -> _vocagno.PieceTable:
        """The bytes of the ids, without dummy prefixes."""
        if self._vocabulary.dummy_prefix == "none":
            return self._table
        return _vocagno.PieceTable(self._vocabulary.pieces, self._vocabulary.roles, "none")

    def _begins_with_a_prefix(self, tokens: TokenizedTexts) -> NDArray[np.bool_]:
        """(n,) whether a token begins with a space, where a tokenizer puts a dummy prefix: at the
        start of a text, and unless it is only there, after an added token."""
        kind = self._vocabulary.dummy_prefix
        if kind == "none" or not len(tokens.ids):
            return np.zeros(len(tokens.ids), np.bool_)
        roles = self._vocabulary.role[tokens.ids]
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
        self,
        table: _vocagno.PieceTable,
        ids: NDArray[np.int32],
        boundaries: NDArray[np.int64],
        *,
        continues: bool,
    ) -> tuple[list[bytes], TokenizedTexts]:
        try:
            found, spans = table.decode(ids, boundaries, continues)
        except _vocagno.SpanError as error:
            raise TokenizerError(f"{self._name}: {error}") from error
        self._refuse_ambiguous(ids, boundaries)
        return found, TokenizedTexts(ids, spans, boundaries, np.ones(len(found), bool))

    def _refuse_ambiguous(self, ids: NDArray[np.int32], boundaries: NDArray[np.int64]) -> None:
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
                raise TokenizerError(
                    f"{self._name}: token {row} of document {index}, "
                    f"{self._shown(int(ids[place]))} (id {ids[place]}), {token.why}, so the ids "
                    "do not determine the text; keep the texts, and pass them (`texts`)"
                )

    def _shown(self, index: int) -> str:
        piece = self._vocabulary.pieces[index] or b""
        return repr(piece.decode(errors="replace"))

    def _text(self, text: bytes, index: int) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise TokenizerError(
                f"{self._name}: the ids of document {index} are cut inside a character "
                f"(byte {error.start} of {len(text)}); only whole documents have a text"
            ) from error
