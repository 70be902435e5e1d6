"""Which of several teachers knows a text: their stored losses on the same bytes.

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
from vocagno.teacher.scores import REFUSED_BY_TEACHER, DocumentScores, ScoresOfTexts, ScoreStore

Spans = NDArray[np.int64]
"""(n, 2) half-open `[start, end)` in the bytes of a batch, whose documents follow each other."""
_NONE = DocumentScores.none("")


@dataclass(frozen=True, slots=True)
class Sums:
    """What is added up over a text. Sums of two texts can be added."""

    documents: int
    """Those with text."""
    bytes: int
    compared_bytes: int
    """Bytes of the stretches: every teacher has a loss for all of its tokens there."""
    nll: NDArray[np.float64]
    """(K,) loss of each teacher on the compared bytes, in nats."""
    mixture_nll: float
    """The same of the mean of the teachers' probabilities of each stretch, in nats.

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
        """Losses in nats a compared byte, and counts, as JSON has them. Args: names: of the K."""

        def ahead(i: int, j: int) -> dict[str, float | None]:
            share, size = self.ahead_bytes[i, j] / self.compared_bytes, self.ahead_bytes[i, j]
            gain = float(self.ahead_nats[i, j] / size) if size else None
            return {"share_of_bytes": float(share), "nats_per_byte": gain}

        counts = ("missing_documents", "refused_documents", "partial_documents")
        teachers = {
            name: {
                "nats_per_byte": float(self.nll[i] / self.compared_bytes),
                "ahead_of": {other: ahead(i, j) for j, other in enumerate(names) if j != i},
                **{of: int(getattr(self, of)[i]) for of in (*counts, "bytes_without_loss")},
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
        corpora: by their names, the documents of each in lists (`corpus.read_batches`).
    Returns: the sums of each corpus.
    Raises: ConfigError for fewer than two stores, and for a store that is given twice; StoreError
        for damage, and for a corpus of which nothing can be compared.

    Memory: 32 bytes for each document of a store, and a list of documents with their tokens.
    """
    folders = [store.folder.resolve() for store in stores]
    twice = [str(store.folder) for store in stores if folders.count(store.folder.resolve()) > 1]
    require(len(stores) > 1, f"expected two or more stores to compare, got {len(stores)}")
    require(not twice, f"{', '.join(twice)}: one store; name each teacher's scores once")
    for shard in (shard for store in stores for shard in store.shards()):
        if not shard.is_consistent():  # a damaged hash would make its document a missing one
            raise StoreError(f"{shard.path}: its hashes or counts are damaged; {REMEDY}")
    scores = [ScoresOfTexts(store, check=False) for store in stores]
    found, none = {}, _compare_texts([], scores)
    for name, batches in corpora.items():
        found[name] = sum((_compare_texts(texts, scores) for texts in batches), start=none)
        _check(found[name], name, stores)
    return found


def _check(sums: Sums, name: str, stores: Sequence[ScoreStore]) -> None:
    """Raises: StoreError if nothing was compared."""
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
    """(M,) number of each token's document."""


def _compare_texts(texts: Sequence[str], stores: Sequence[ScoresOfTexts]) -> Sums:
    """The sums of some documents."""
    texts = [text for text in texts if text]
    found = [store.find(texts) for store in stores]
    refused = np.array([[one is REFUSED_BY_TEACHER for one in side] for side in found], np.int64)
    lacks = np.array([[one.missing != "" for one in side] for side in found], np.int64)
    known = np.flatnonzero(~lacks.any(0)).tolist()
    data = [text.encode() for text in texts]
    ends = np.cumsum([len(data[number]) for number in known], dtype=np.int64)
    sides = []
    for store, documents in zip(stores, found, strict=True):
        side = _joined([documents[number] for number in known], ends)
        if (number := _misplaced(side, ends)) is not None:
            raise StoreError(
                f"{store.store.folder}: tokens of the document {texts[known[number]][:40]!r} are "
                "out of order or outside its text; make the scores again in another folder"
            )
        sides.append(side)
    without = np.diff(ends, prepend=0) - np.array([_covered(side, len(ends)) for side in sides])

    spans, nll_KS = _on_stretches(sides)
    sizes = spans[:, 1] - spans[:, 0]
    best = nll_KS.min(0)
    mixture = best - np.log(np.exp(best - nll_KS).mean(0))
    is_last = np.frombuffer(b"".join(data[number] for number in known), np.uint8) == ord("\n")
    is_last[ends - 1] = True
    lines = np.searchsorted(np.flatnonzero(is_last), spans[:, 0])
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
        missing_documents=(lacks - refused).sum(1),
        refused_documents=refused.sum(1),
        partial_documents=(without > 0).sum(1),
        bytes_without_loss=without.sum(1),
    )


def _joined(documents: Sequence[DocumentScores], ends: NDArray[np.int64]) -> _Side:
    """The tokens of documents that follow each other. Args: ends: byte at which each ends."""
    counts = np.array([len(one.nll) for one in documents], np.int64)
    numbers = np.repeat(np.arange(len(counts)), counts)
    spans = np.concatenate([_NONE.spans, *(one.spans for one in documents)])
    nll = np.concatenate([_NONE.nll, *(one.nll for one in documents)])
    filled = np.flatnonzero(spans[:, 0] < spans[:, 1])
    numbers = numbers[filled]
    starts = np.append(0, ends)[numbers]
    return _Side(spans[filled] + starts[:, None], nll[filled].astype(np.float64), numbers)


def _misplaced(side: _Side, ends: NDArray[np.int64]) -> int | None:
    """The number of the first document with tokens out of order or outside its text."""
    start, end = side.spans.T
    is_bad = (start < np.append(0, ends)[side.documents]) | (end > ends[side.documents])
    is_bad[1:] |= (np.diff(start) < 0) | (np.diff(end) < 0)
    return int(side.documents[is_bad.argmax()]) if is_bad.any() else None


def _covered(side: _Side, count: int) -> NDArray[np.int64]:
    """(count,) bytes of each document that tokens with a loss cover."""
    scored = np.isfinite(side.nll)
    start, end = side.spans[scored].T
    before = np.append(0, end)[:-1]  # ends do not decrease
    new = np.maximum(end - np.maximum(start, before), 0)
    return np.bincount(side.documents[scored], new, minlength=count).astype(np.int64)


def _on_stretches(sides: Sequence[_Side]) -> tuple[Spans, NDArray[np.float64]]:
    """The stretches that can be compared, (S, 2), and each teacher's loss of them, (K, S) in nats.

    A stretch of two teachers is a group of theirs; one of three is a group of the third's tokens
    and those. Omitted are stretches with bytes that a teacher has no token or no loss for.
    """
    found = sides[0].spans
    for side in sides[1:]:
        rows = groups(found, side.spans)
        (a, b), (c, d) = rows.student.T, rows.teacher.T
        starts = np.minimum(found[a, 0], side.spans[c, 0])
        found = np.stack([starts, np.maximum(found[b - 1, 1], side.spans[d - 1, 1])], axis=1)
    places = [align(found, side.spans) for side in sides]
    pairs = list(zip(sides, places, strict=True))
    shares = [overlap(found, side.spans, rows).iou for side, rows in pairs]
    same = (np.array(shares) == 1).all(0)  # tokens of each teacher cover exactly these bytes
    losses = np.array([sums_in(side.nll, rows[same]) for side, rows in pairs])
    scored = np.isfinite(losses).all(0)  # the sum of a token without a loss is NaN
    return found[same][scored], losses[:, scored]
