"""Matches stored scores to documents by their text, not by their position."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.data.corpus import text_hash
from vocagno.data.rows import RowStore
from vocagno.data.store.manifest import MANIFEST
from vocagno.data.store.shards import StoreError
from vocagno.teacher.scores import DocumentScores, ScoreStore

NOT_SCORED = DocumentScores.none("not scored")
"""The scores of a document that was not scored."""


class MatchedScores:
    """The scores of the documents in a store of rows.

    If the corpus has changed since it was scored (documents edited, moved, removed, added), each
    document is found by the hash of its text. A document without scores has no teacher tokens; nor
    has one that the teacher could not read.
    """

    def __init__(self, store: ScoreStore, rows: RowStore) -> None:
        """Reads the shards with refused documents if the shards' hashes match, else all."""
        self.store = store
        self.missing_documents: int = 0
        self.refused_documents: int = 0
        """Those that the teacher could not read."""
        self.missing_share: float = 0.0
        """Share of the rows' tokens that are in documents without scores, of both kinds."""
        self._places: NDArray[np.int64] | None = None  # None: documents have the same numbers
        is_same = rows.text_hashes == store.text_hashes
        if is_same and not store.shards_with_refused():
            return
        wanted, tokens = rows.documents(store.shards_with_refused() if is_same else None)
        places = np.arange(len(wanted))
        if not is_same:
            self._places = places = TextIndex(_hashes(store)).places(wanted)
        missing = (places < 0) & (tokens > 0)
        refused = np.append(store.is_refused(), False)[places] & (tokens > 0)
        self.missing_documents, self.refused_documents = int(missing.sum()), int(refused.sum())
        whole = max(1, rows.num_tokens + len(rows))  # the first of a row, too, which is in `tokens`
        self.missing_share = float(tokens[missing | refused].sum() / whole)

    def check(self, min_coverage: float, name: str = "the corpus") -> str | None:
        """How much has no scores, in words; None if nothing. Args: name: of the corpus.

        Raises: StoreError if less than `min_coverage` of the tokens are in documents with scores.
        """
        found = []
        if self.missing_documents:
            found.append(f"{self.missing_documents:,} documents of {name} have no scores here")
        if self.refused_documents:
            found.append(f"the teacher could not read {self.refused_documents:,} of {name}")
        if not found:
            return None
        share = f"{self.missing_share:.2%} of its tokens"
        missing = f"{self.store.folder}: {' and '.join(found)} ({share})"
        if 1 - self.missing_share < min_coverage:
            raise StoreError(
                f"{missing}, and guidance.min_coverage is {min_coverage:.2%}: documents without "
                "scores were edited or added since the corpus was scored, or it is another corpus; "
                "run `vocagno score` on it"
            )
        return missing

    def piece(self, document: int, first_byte: int, end_byte: int) -> DocumentScores:
        """As `ScoreStore.piece`, of a document of the rows."""
        if self._places is not None:
            document = int(self._places[document])
        return self.store.piece(document, first_byte, end_byte) if document >= 0 else NOT_SCORED


class TextIndex:
    """Finds documents by the hash of their text: 32 bytes of memory each."""

    def __init__(self, hashes: NDArray[Any]) -> None:
        """Args: hashes: (documents,) 16 bytes each: `corpus.text_hash`."""
        self._hashes: NDArray[np.uint64] = hashes.view(np.uint64).reshape(-1, 2)
        self._order = np.argsort(self._hashes[:, 0], kind="stable")
        self._sorted = self._hashes[self._order, 0]

    @classmethod
    def of(cls, store: ScoreStore) -> "TextIndex":
        """Of all documents of a store. Reads only their hashes, which are not checked: a document
        is, with its hash, when it is read."""
        return cls(np.concatenate([shard.text_hashes for shard in store.shards()]))

    def places(self, wanted: NDArray[Any]) -> NDArray[np.int64]:
        """The first document with each 16-byte hash, or -1."""
        words = wanted.view(np.uint64).reshape(-1, 2)
        if not len(self._order):
            return np.full(len(words), -1, np.int64)
        nearest = np.searchsorted(self._sorted, words[:, 0])
        places = self._order[np.minimum(nearest, len(self._order) - 1)]
        return np.where((self._hashes[places] == words).all(1), places, -1)


class ScoresOfTexts:
    """The scores of texts in a store, found by their hashes. It pickles as the store's folder."""

    def __init__(self, store: ScoreStore) -> None:
        """Reads and checks all documents. Raises: StoreError for a damaged one."""
        self.store = store
        self._index = TextIndex(_hashes(store))

    def __reduce__(self) -> tuple[Any, ...]:
        manifest = (self.store.folder / MANIFEST).read_bytes()
        return _reopened, (str(self.store.folder), hashlib.blake2b(manifest).hexdigest())

    def find(self, texts: Sequence[str]) -> list[DocumentScores]:
        """As `find_scores`."""
        return find_scores(self.store, self._index, texts)


def find_scores(store: ScoreStore, index: TextIndex, texts: Sequence[str]) -> list[DocumentScores]:
    """The scores of each text; `NOT_SCORED` for a text that is not in the store.

    Args: index: of the store.
    Raises: StoreError for damaged scores.
    """
    hashes = np.frombuffer(b"".join(map(text_hash, texts)), "V16")
    return [
        NOT_SCORED if place < 0 else store.document(place)
        for place in index.places(hashes).tolist()
    ]


def _reopened(folder: str, _manifest: str) -> ScoresOfTexts:
    """The hash of the manifest tells stores in one folder apart where pickles are compared."""
    return ScoresOfTexts(ScoreStore(Path(folder)))


def _hashes(scores: ScoreStore) -> NDArray[Any]:
    found = []
    for shard in scores.shards():
        shard.check("document")
        found.append(shard.text_hashes)
    return np.concatenate(found)
