"""Several corpora as one: their rows and documents are numbered through, corpus after corpus."""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

from vocagno.data.rows import Row, RowStore

Piece = TypeVar("Piece", covariant=True)


class Pieces(Protocol[Piece]):
    """What gives a part of a document: its text, or its scores."""

    def piece(self, document: int, first_byte: int, end_byte: int) -> Piece:
        """Bytes `[first_byte, end_byte)` of a document."""
        ...


class MixedRows:
    """The rows of several corpora. Their pieces name documents by `first_document` and on."""

    def __init__(self, stores: Mapping[str, RowStore]) -> None:
        """Args: stores: of each corpus, by its name; all with rows of the same length."""
        self.stores: dict[str, RowStore] = dict(stores)
        self._row_ends = list(accumulate(map(len, self.stores.values())))
        counts = (store.manifest.count("documents") for store in self.stores.values())
        self.document_ends: list[int] = list(accumulate(counts))

    def __len__(self) -> int:
        return self._row_ends[-1]

    def __getitem__(self, index: int) -> Row:
        corpus, row = _located(index, self._row_ends)
        found = list(self.stores.values())[corpus][row]
        return replace(found, documents=found.documents + self.first_document(corpus))

    def first_document(self, corpus: int) -> int:
        """The number of the first document of the corpus with number `corpus`."""
        return self.document_ends[corpus - 1] if corpus else 0

    def place(self, index: int) -> tuple[str, int]:
        """The name of the corpus that has a row, and the row's number there."""
        corpus, row = _located(index, self._row_ends)
        return list(self.stores)[corpus], row


class MixedPieces(Generic[Piece]):
    """The parts of documents of several corpora."""

    def __init__(self, parts: Sequence[Pieces[Piece]], document_ends: Sequence[int]) -> None:
        """Args: document_ends: as `MixedRows` has them."""
        self.parts: list[Pieces[Piece]] = list(parts)
        self._ends = list(document_ends)

    def piece(self, document: int, first_byte: int, end_byte: int) -> Piece:
        """As the part gives it that has the document."""
        part, number = _located(document, self._ends)
        return self.parts[part].piece(number, first_byte, end_byte)


def _located(index: int, ends: Sequence[int]) -> tuple[int, int]:
    """The part that has an index, and the index in it."""
    if not 0 <= index < ends[-1]:
        raise IndexError(f"index {index} is out of range for {ends[-1]}")
    part = bisect.bisect_right(ends, index)
    return part, index - (ends[part - 1] if part else 0)
