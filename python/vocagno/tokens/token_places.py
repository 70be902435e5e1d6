"""Checks whether tokens match the text at their spans.

The check compares characters in compatibility decomposition and lower case, without white space and
marks. Each token's characters must be, in order, among those of the text at its span, or among
those of that text after the tokenizer's own normaliser.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno import _vocagno
from vocagno.tokens.vocabulary import Vocabulary

Rows = tuple[int, int]
"""Tokens of one text, `[first, stop)`: one token, or the parts of a character."""


@dataclass(frozen=True, slots=True)
class Misplaced:
    """Tokens of a text whose spans are in the wrong place."""

    rows: Rows
    span: tuple[int, int]
    """Bytes of the text that their spans cover."""
    byte: int
    """Where the tokens really are."""


class TokenPlaces:
    """Compares the tokens of one tokenizer with the text at their spans."""

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary, table: _vocagno.PieceTable) -> None:
        self._normalizer = tokenizer.normalizer
        self._unknown = vocabulary.unknown
        self._table = table

    @cached_property
    def _places(self) -> _vocagno.Places:
        return _vocagno.Places(self._table, self._unknown)

    def disagreeing(
        self,
        ids: NDArray[np.int32],
        spans: NDArray[np.int32],
        boundaries: NDArray[np.int64],
        texts: list[str],
    ) -> dict[int, list[Rows]]:
        """Tokens that do not match the text at their byte spans, by text."""
        found: dict[int, list[Rows]] = {}
        at, data = -1, b""
        for index, first, stop in self._places.disagreeing(ids, spans, boundaries, texts):
            if index != at:  # once per text: it may be long, with many tokens to check
                at, data = index, texts[index].encode()
            start, end = _around(spans[first:stop])
            base = int(boundaries[index])
            if not self._is_normalized(ids[first:stop], text_between(data, start, end)):
                found.setdefault(index, []).append((first - base, stop - base))
        return found

    def _is_normalized(self, ids: NDArray[np.int32], text: str) -> bool:
        """Whether the tokens match a text after the tokenizer's normaliser."""
        if self._normalizer is None:
            return False
        return self._places.agrees(ids, self._normalizer.normalize_str(text))

    def misplaced(
        self,
        ids: NDArray[np.int32],
        spans: NDArray[np.int32],
        text: str,
        disagreeing: Sequence[Rows],
    ) -> Misplaced | None:
        """The first disagreeing tokens that are found elsewhere in the text: within 256 characters,
        where there is no other token, and next to a neighbour if they are short. None if there are
        none, for example if a normaliser replaced the text by other words.
        """
        found = self._places.misplaced(ids, spans, text, [[*rows] for rows in disagreeing])
        if found is None:
            return None
        first, stop, byte = found
        return Misplaced((first, stop), _around(spans[first:stop]), byte)

    def moves(
        self,
        ids: NDArray[np.int32],
        spans: NDArray[np.int32],
        text: str,
        disagreeing: Sequence[Rows],
    ) -> list[tuple[int, list[int]]] | None:
        """Tokens that are not at their characters, with the span of the only place where these can
        be; None if disagreeing tokens can be at several places."""
        return self._places.moves(ids, spans, text, [[*rows] for rows in disagreeing])


def _around(spans: NDArray[np.int32]) -> tuple[int, int]:
    return int(spans[:, 0].min()), int(spans[:, 1].max())


def text_between(data: bytes, start: int, end: int) -> str:
    """The text at a span of bytes, without characters that the span cuts."""
    return data[start:end].decode(errors="ignore")
