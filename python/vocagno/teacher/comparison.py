"""Compares several teachers on a text, by their stored losses of the same bytes.

Teachers with other tokenizers cut a text at other places. They are compared on stretches, the
smallest runs of bytes whose ends are ends of tokens of every teacher (`vocagno.groups`).

K: stores. M: tokens of one store in a batch of documents. S: stretches. L: lines.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocagno.alignment.arrays import sums_in
from vocagno.alignment.mapping import align, groups, overlap
from vocagno.data.store.shards import REMEDY, StoreError
from vocagno.errors import require
from vocagno.teacher.score_store import (
    REFUSED_BY_TEACHER,
    DocumentScores,
    ScoresOfTexts,
    ScoreStore,
)

Spans = NDArray[np.int64]
"""(n, 2) half-open `[start, end)` in the bytes of a batch, whose documents follow each other."""
_WITHOUT_TOKENS = DocumentScores.none("")
"""Stands before the documents that are joined, so that there is something to join."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums over a text from which teachers are compared. Sums of two texts can be added."""

    documents: int
    """Number of documents with text."""
    bytes: int
    """Size of these documents."""
    compared_bytes: int
    """Bytes of the stretches: every teacher has a loss for all of its tokens there."""
    nll: NDArray[np.float64]
    """(K,) loss of each teacher on the compared bytes, in nats."""
    mixture_nll: float
    """Loss of the mean of the teachers' probabilities of each stretch, in nats.

    For each stretch it is an upper bound: a teacher may also spell those bytes with other tokens.
    Over a text it bounds no model, which would have to know where a stretch ends before its text.
    """
    ahead_bytes: NDArray[np.int64]
    """(K, K) compared bytes of the lines on which teacher i loses less than teacher j. A stretch
    belongs to the line in which it starts."""
    ahead_nats: NDArray[np.float64]
    """(K, K) nats that teacher i loses less than teacher j on these lines."""
    missing_documents: NDArray[np.int64]
    """(K,) documents that a store lacks. No teacher is compared on them."""
    refused_documents: NDArray[np.int64]
    """(K,) documents that a teacher could not read. No teacher is compared on them."""
    partial_documents: NDArray[np.int64]
    """(K,) documents that all stores have, and in which bytes have no loss of this teacher."""
    bytes_without_loss: NDArray[np.int64]
    """(K,) number of these bytes."""

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Losses in nats per compared byte, and counts, for JSON. Args: names: of the K stores."""

        def ahead(i: int, j: int) -> dict[str, float | None]:
            share, size = self.ahead_bytes[i, j] / self.compared_bytes, self.ahead_bytes[i, j]
            gain = float(self.ahead_nats[i, j] / size) if size else None
            return {"share_of_bytes": float(share), "nats_per_byte": gain}

        counts = ("missing_documents", "refused_documents", "partial_documents")
        teachers = {
            name: {
                "nats_per_byte": float(self.nll[i] / self.compared_bytes),
                "ahead_of": {other: ahead(i, j) for j, other in enumerate(names) if j != i},
                **{key: int(getattr(self, key)[i]) for key in (*counts, "bytes_without_loss")},
            }
            for i, name in enumerate(names)
        }
        return {
            **{name: getattr(self, name) for name in ("documents", "bytes", "compared_bytes")},
            "teachers": teachers,
            "mixture_nats_per_byte": float(self.mixture_nll / self.compared_bytes),
        }


def compare(
    stores: Sequence[ScoreStore], corpora: Mapping[str, Iterable[list[str]]]
) -> dict[str, Sums]:
    """Compares teachers on texts, each of which is read once.

    Args:
        stores: the scores of the K teachers, two or more.
        corpora: the documents of each corpus, by its name, in lists (`corpus.read_batches`).
    Returns: the sums of each corpus.
    Raises: ConfigError for fewer than two stores, and for a store that is given twice; StoreError
        for damage, and for a corpus of which nothing can be compared.

    Memory: 32 bytes for each document of a store, and a list of documents with their tokens.
    """
    folders = [store.folder.resolve() for store in stores]
    repeated = [str(store.folder) for store in stores if folders.count(store.folder.resolve()) > 1]
    require(len(stores) > 1, f"expected two or more stores to compare, got {len(stores)}")
    require(not repeated, f"{', '.join(repeated)}: one store; name each teacher's scores once")
    for shard in (shard for store in stores for shard in store.shards()):
        if not shard.is_consistent():  # a damaged hash would make its document a missing one
            raise StoreError(f"{shard.path}: its hashes or counts are damaged; {REMEDY}")
    scores = [ScoresOfTexts(store, check=False) for store in stores]
    sums, zero = {}, _compare_texts([], scores)
    for name, batches in corpora.items():
        sums[name] = sum((_compare_texts(texts, scores) for texts in batches), start=zero)
        _check_compared(sums[name], name, stores)
    return sums


def _check_compared(sums: Sums, name: str, stores: Sequence[ScoreStore]) -> None:
    """Checks that something was compared.
    Raises: StoreError, which says how much each store lacks, if not."""
    if sums.compared_bytes:
        return
    counts = zip(stores, sums.missing_documents, sums.refused_documents, strict=True)
    state = "; ".join(
        f"{store.folder} lacks {missing:,} documents and could not read {refused:,}"
        for store, missing, refused in counts
    )
    raise StoreError(
        f"{name}: none of its {sums.documents:,} documents has text with a loss in every store "
        f"({state}); name the corpus that was scored, or run `vocagno score` on this one"
    )


class _Side(NamedTuple):
    """One teacher's tokens with text, in documents that all stores have."""

    spans: Spans
    """(M, 2)."""
    nll: NDArray[np.float64]
    """(M,) nats; NaN where a token has no loss."""
    documents: NDArray[np.int64]
    """(M,) index of each token's document."""


def _compare_texts(texts: Sequence[str], stores: Sequence[ScoresOfTexts]) -> Sums:
    """The sums of some documents."""
    texts = [text for text in texts if text]
    scores = [store.find(texts) for store in stores]
    is_refused = np.array([[doc is REFUSED_BY_TEACHER for doc in row] for row in scores], np.int64)
    is_absent = np.array([[doc.missing != "" for doc in row] for row in scores], np.int64)
    compared = np.flatnonzero(~is_absent.any(0)).tolist()  # documents that all stores have
    data = [text.encode() for text in texts]
    ends = np.cumsum([len(data[number]) for number in compared], dtype=np.int64)
    sides = []
    for store, documents in zip(stores, scores, strict=True):
        side = _concatenate([documents[number] for number in compared], ends)
        if (number := _first_misplaced(side, ends)) is not None:
            raise StoreError(
                f"{store.store.folder}: tokens of the document {texts[compared[number]][:40]!r} "
                "are out of order or outside its text; make the scores again in another folder"
            )
        sides.append(side)
    num_scored = np.array([_scored_bytes(side, len(ends)) for side in sides])
    num_without_loss = np.diff(ends, prepend=0) - num_scored

    spans, nll_KS = _on_stretches(sides)
    sizes = spans[:, 1] - spans[:, 0]
    best = nll_KS.min(0)
    # The least loss is taken out first: exp(-loss) of a long stretch would be 0 in float64.
    mixture = best - np.log(np.exp(best - nll_KS).mean(0))
    ends_line = np.frombuffer(b"".join(data[number] for number in compared), np.uint8) == ord("\n")
    # A line also ends with its document, which need not end with a line break.
    ends_line[ends - 1] = True
    lines = np.searchsorted(np.flatnonzero(ends_line), spans[:, 0])
    heads = np.flatnonzero(np.diff(lines, prepend=-1))
    nll_KL, sizes_L = np.add.reduceat(nll_KS, heads, axis=1), np.add.reduceat(sizes, heads)
    gain_KKL = nll_KL - nll_KL[:, None]
    is_ahead = gain_KKL > 0
    return Sums(
        documents=len(texts),
        bytes=sum(map(len, data)),
        compared_bytes=int(sizes.sum()),
        nll=nll_KS.sum(1),
        mixture_nll=float(mixture.sum()),
        ahead_bytes=(is_ahead * sizes_L).sum(-1),
        ahead_nats=np.where(is_ahead, gain_KKL, 0.0).sum(-1),
        missing_documents=(is_absent - is_refused).sum(1),
        refused_documents=is_refused.sum(1),
        partial_documents=(num_without_loss > 0).sum(1),
        bytes_without_loss=num_without_loss.sum(1),
    )


def _concatenate(documents: Sequence[DocumentScores], ends: NDArray[np.int64]) -> _Side:
    """Puts the tokens of documents one after the other. Args: ends: byte at which each ends."""
    counts = np.array([len(document.nll) for document in documents], np.int64)
    numbers = np.repeat(np.arange(len(counts)), counts)
    spans = np.concatenate([_WITHOUT_TOKENS.spans, *(document.spans for document in documents)])
    nll = np.concatenate([_WITHOUT_TOKENS.nll, *(document.nll for document in documents)])
    filled = np.flatnonzero(spans[:, 0] < spans[:, 1])
    numbers = numbers[filled]
    starts = np.append(0, ends)[numbers]
    return _Side(spans[filled] + starts[:, None], nll[filled].astype(np.float64), numbers)


def _first_misplaced(side: _Side, ends: NDArray[np.int64]) -> int | None:
    """The index of the first document with tokens out of order or outside its text, or None."""
    start, end = side.spans.T
    is_bad = (start < np.append(0, ends)[side.documents]) | (end > ends[side.documents])
    is_bad[1:] |= (np.diff(start) < 0) | (np.diff(end) < 0)
    return int(side.documents[is_bad.argmax()]) if is_bad.any() else None


def _scored_bytes(side: _Side, count: int) -> NDArray[np.int64]:
    """(count,) number of bytes of each document that are in a token with a loss."""
    is_scored = np.isfinite(side.nll)
    start, end = side.spans[is_scored].T
    # Tokens may share bytes (those of one character). Ends do not decrease, so a token adds only
    # the bytes after the end of the one before it.
    previous_end = np.append(0, end)[:-1]
    added = np.maximum(end - np.maximum(start, previous_end), 0)
    return np.bincount(side.documents[is_scored], added, minlength=count).astype(np.int64)


def _on_stretches(sides: Sequence[_Side]) -> tuple[Spans, NDArray[np.float64]]:
    """Finds the stretches that can be compared, (S, 2), and each teacher's loss of them, (K, S) in
    nats.

    A stretch of two teachers is a group of their tokens. With a third teacher, it is a group of
    that teacher's tokens and the stretches of the first two. A stretch is omitted if a teacher has
    no token or no loss for some of its bytes.
    """
    stretches = sides[0].spans
    for side in sides[1:]:
        rows = groups(stretches, side.spans)
        # The ranges of stretches and of tokens in each group.
        (first, stop), (first_token, stop_token) = rows.student.T, rows.teacher.T
        starts = np.minimum(stretches[first, 0], side.spans[first_token, 0])
        ends = np.maximum(stretches[stop - 1, 1], side.spans[stop_token - 1, 1])
        stretches = np.stack([starts, ends], axis=1)
    mappings = [align(stretches, side.spans) for side in sides]
    pairs = list(zip(sides, mappings, strict=True))
    ious = [overlap(stretches, side.spans, rows).iou for side, rows in pairs]
    is_exact = (np.array(ious) == 1).all(0)  # tokens of each teacher cover exactly these bytes
    losses = np.array([sums_in(side.nll, rows[is_exact]) for side, rows in pairs])
    is_scored = np.isfinite(losses).all(0)  # the sum of a token without a loss is NaN
    return stretches[is_exact][is_scored], losses[:, is_scored]
