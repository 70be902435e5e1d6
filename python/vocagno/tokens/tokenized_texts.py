"""Texts as token ids with the bytes of text that each token covers."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
