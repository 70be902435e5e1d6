"""Buckets of two vocabularies: sets of ids over which two models with different tokenizers can be
compared wherever both start a token (`vocagno.starts`).

The text from there on is the same for both models, and either side's first token of it tells the
bucket. So the sums of each model's probabilities over the buckets are distributions of one thing.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocagno import _vocagno
from vocagno.alignment.arrays import as_count
from vocagno.errors import InputError
from vocagno.system.files import appearing, digest
from vocagno.tokens.id_texts import TokenizedTexts
from vocagno.tokens.spelling import ids_in_context, text_of
from vocagno.tokens.token_spans import TokenSpans

MAX_SIZE = 65_536
"""Student ids of a bucket by default. The loss gathers all of them at each token with such a
candidate, in about 0.13 us and 40 bytes each: 2 s and 0.7 GB for the least chunk of 256 tokens, if
all have one. A teacher's ids cost nothing, so they are not limited."""
LEAST_SHARE = 0.99

_FORMAT = 3
"""Of the files and of the definition: those of another one are not found in a cache."""
_MOST_KNOWN = 1 << 22
"""Pairs of tokens that are remembered, 9 bytes each."""
_LOW = 0xFFFF_FFFF
_NEVER_IN_UTF8 = re.compile(rb"[\xc0\xc1\xf5-\xff]")
_FACTS = ("fingerprints", "pieces", "max_size", "dissolved", "largest")


class BucketError(InputError):
    """Vocabularies that share too little for buckets, or a file of buckets that is damaged or of
    other tokenizers."""


class Boundaries:
    """Which teacher tokens can come after a student token, where both sides start a token.

    A student with the token ` until` that has read ` un` knows that `til` does not follow. One that
    learnt it from a teacher without ` until` would give probability to texts that never come.
    Whether the student's tokenizer ends a token between the two is decided by their texts; BPE may
    depend on more of the text.
    """

    def __init__(self, student: TokenSpans, teacher: TokenSpans) -> None:
        self._sides = student, teacher
        self._own, self._others = student.text_pieces(), teacher.text_pieces()
        # Pairs in order, after a least one that never comes. One object: threads may share it.
        self._known = np.array([np.iinfo(np.int64).min]), np.ones(1, np.bool_)

    def __reduce__(self) -> tuple[type[Boundaries], tuple[TokenSpans, TokenSpans]]:
        return Boundaries, self._sides  # without what it has learnt, so that its hash stays

    def remain(self, before: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) whether each teacher token of `ids` can come after the student token of `before`.

        True for ids without a text of their own, and where the student's tokens of both texts are
        not these texts (an unknown token, a normaliser).

        Cost: a search for each token, and 15 us for a pair that is new.
        """
        pairs = (before << 32) + ids
        known, can_follow = self._known
        places = np.searchsorted(known, pairs)
        is_new = known.take(places, mode="clip") != pairs
        if is_new.any():
            new = np.unique(pairs[is_new])
            if len(known) + len(new) > _MOST_KNOWN:
                known, can_follow, new = known[:1], can_follow[:1], np.unique(pairs)
            before_new = np.searchsorted(known, new)
            can_follow = np.insert(can_follow, before_new, self._decided(new.tolist()))
            known = np.insert(known, before_new, new)
            self._known = known, can_follow
            places = np.searchsorted(known, pairs)
        return can_follow[places]

    @cached_property
    def _tokenizer(self) -> Any:
        return self._sides[0].continuing_tokenizer()

    def _decided(self, pairs: list[int]) -> NDArray[np.bool_]:
        found = np.ones(len(pairs), np.bool_)
        asked, texts = [], []
        for number, pair in enumerate(pairs):
            own, other = _piece_of(self._own, pair >> 32), _piece_of(self._others, pair & _LOW)
            if own and other and (text := text_of(own + other)):
                found[number] = False
                # White space before a word may be cut in another way than at the end.
                given = [text, f"{text}x"] if other.isspace() else [text]
                asked += [(number, len(own))] * len(given)
                texts += given
        ids_of_texts = ids_in_context(texts, self._tokenizer, self._sides[0].name)
        for (number, size), text, ids in zip(asked, texts, ids_of_texts, strict=True):
            pieces = [_piece_of(self._own, one) for one in ids]
            is_other = b"".join(pieces) != text.encode()
            found[number] |= is_other or size in accumulate(map(len, pieces))
        return found


class Agreement(NamedTuple):
    """Counts of student tokens, which add up over texts."""

    tokens: int
    """With text."""
    covered: int
    """Which start where a teacher token starts."""
    same_bucket: int
    """Of those: in the same bucket as the teacher token."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Buckets:
    """The bucket of each id of two vocabularies, made by `buckets`.

    An id in no bucket has -1: special tokens, the unknown token, ids without a text of their own or
    with bytes that UTF-8 never has, ids with no counterpart, and ids of components that are too
    large. They are "other", as are ids beyond the arrays, which a model may have.
    """

    student: NDArray[np.int32]
    """(V_s,) bucket of each student id, 0 to `count` - 1, or -1."""
    teacher: NDArray[np.int32]
    """(V_t,) bucket of each teacher id, or -1."""
    fingerprints: tuple[str, str]
    """`TokenSpans.fingerprint` of the student's tokenizer and of the teacher's."""
    pieces: tuple[int, int]
    """Number of ids of the student and of the teacher that stand for a text of their own, in bytes
    that UTF-8 can have."""
    max_size: int
    """Ids of the student that a bucket may have."""
    dissolved: int
    """Number of components with more of them; they are no buckets."""
    largest: int
    """Ids of the student in the component with most of them, bucket or not."""
    boundaries: Boundaries | None = None
    """Those of the two tokenizers. None if one of them does not keep the text (BERT, T5): all
    candidates are then taken for possible."""

    @property
    def count(self) -> int:
        """Number of buckets; each has ids of both sides."""
        return int(self.student.max(initial=-1)) + 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(count, 2) ids of the student and of the teacher in each bucket."""
        sides = (self.student, self.teacher)
        return np.stack([np.bincount(ids[ids >= 0], minlength=self.count) for ids in sides], 1)

    @property
    def shares(self) -> tuple[float, float]:
        """Share of the ids with a text of their own that are in a bucket, of the student and of
        the teacher."""
        own, other = (np.count_nonzero(ids >= 0) for ids in (self.student, self.teacher))
        return own / max(1, self.pieces[0]), other / max(1, self.pieces[1])

    @property
    def share(self) -> float:
        """The smaller one of `shares`."""
        return min(self.shares)

    def check(self, least: float = LEAST_SHARE) -> None:
        """Refuses tokenizers that share too little. Of nine real ones (benches/buckets.py), `share`
        is above 0.999 for two that keep the text, and below 0.986 for BERT or T5 with another.

        Raises: BucketError if `share` is less than `least`.
        """
        if self.share < least:
            own, other = self.shares
            why = "tokenizers that change the text (BERT, T5) share too little"
            if self.dissolved:
                why = (
                    f"{self.dissolved} sets of ids are no buckets, because they have more than "
                    f"max_size={self.max_size:,} of the student's, the largest {self.largest:,} "
                    "(vocagno.buckets takes another max_size; an id costs 40 bytes a token)"
                )
            raise BucketError(
                f"of the ids with text {own:.2%} of the student's and {other:.2%} of the teacher's "
                f"are in a bucket, expected at least {least:.2%}: {why}. The others would count as "
                "one; take another teacher, or a guidance.method that reads only its losses"
            )

    def agreement(self, student: TokenizedTexts, teacher: TokenizedTexts) -> Agreement:
        """Counts, of both sides' tokens of the same texts, the shared starts and those at which
        both tokens are in one bucket. Raises: as `starts`; IndexError for unknown ids."""
        cu_seqlens = (student.cu_seqlens, teacher.cu_seqlens)
        rows = _vocagno.starts(student.spans, teacher.spans, *cu_seqlens, None)
        covered = rows >= 0
        own, other = self.student[student.ids[covered]], self.teacher[teacher.ids[rows[covered]]]
        return Agreement(
            int(np.count_nonzero(student.spans[:, 0] < student.spans[:, 1])),
            int(np.count_nonzero(covered)),
            int(np.count_nonzero((own == other) & (own >= 0))),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a compressed .npz file, atomically."""
        facts = np.array(json.dumps({name: getattr(self, name) for name in _FACTS}))
        check = np.array(_check(self.student, self.teacher, facts))
        with appearing(Path(path)) as file:
            np.savez_compressed(
                file, student=self.student, teacher=self.teacher, facts=facts, check=check
            )

    @classmethod
    def load(cls, path: str | PathLike[str], student: TokenSpans, teacher: TokenSpans) -> Buckets:
        """Reads the buckets of two tokenizers.

        Raises: BucketError for a damaged file, and for one of other tokenizers; OSError.
        """
        data = Path(path).read_bytes()
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                arrays = {name: file[name] for name in ("student", "teacher", "facts")}
                if str(file["check"]) != _check(**arrays):
                    raise ValueError("its checksum differs")
            facts = json.loads(str(arrays.pop("facts")))
        except Exception as error:  # NumPy and zipfile raise many types for damaged files
            raise BucketError(
                f"{path}: no file of buckets of this version, or damaged ({error}); remove it, and "
                "make them again with vocagno.buckets"
            ) from error
        for side, spans, known in zip(
            ("student", "teacher"), (student, teacher), facts["fingerprints"], strict=True
        ):
            if known != spans.fingerprint:
                raise BucketError(
                    f"{path}: is of another {side} tokenizer ({known}) than {spans.name} "
                    f"({spans.fingerprint}); make buckets of these with vocagno.buckets"
                )
        facts |= {name: tuple(facts[name]) for name in ("fingerprints", "pieces")}
        return cls(**arrays, **facts, boundaries=_boundaries(student, teacher))


def buckets(
    student: TokenSpans,
    teacher: TokenSpans,
    *,
    max_size: int = MAX_SIZE,
    cache: str | PathLike[str] | None = None,
) -> Buckets:
    """Sorts the ids of two vocabularies into buckets that the next text decides on both sides.

    A teacher's token does not decide which student token comes first (` un` may become ` until`),
    nor the other way round. What decides on both sides is the connected component of a graph: each
    id has an edge to the first token of its bytes on the other side. The bytes are tokenized as the
    middle of a text: without a space before them, and special tokens read as text. Bytes that are
    no UTF-8 (a cut character), or do not begin with the token (a normaliser changed them), have an
    edge to the longest token that they begin with.

    Two tokenizers that always take the longest token have the tokens at a shared start in one
    bucket. BPE depends on more of the text: both are in one bucket at 98.0 to 100 % of the shared
    starts in mathematical LaTeX, for the pairs of seven real tokenizers that keep the text.

    If the tokens so far leave the same texts possible on both sides, the KL divergence over buckets
    is at most that over these texts, and 0 for equal models. Otherwise it is not 0 for equal
    models (`Boundaries`). Then the total variation is at most that of the possible texts, plus
    the share of texts with tokens in different buckets. On toy languages (tests/tokens/
    test_buckets.py) 4 % of the contexts of 81 pairs are such.

    Args:
        max_size: ids of the student that a bucket may have, which is what a bucket costs
            (`MAX_SIZE`). A larger component is no bucket.
        cache: a folder in which the buckets of this pair are found, or saved once made.
    Returns: `Buckets`; `check` it before use.
    Raises: BucketError for a damaged file in `cache`; ValueError for `max_size` below 1; OSError.

    Cost: both vocabularies are tokenized, 3 s of processor time for 32,000 and 151,665 ids.
    Compare: the maps by the longest prefix of arXiv 2607.22334.
    """
    max_size = as_count(max_size, "max_size", 1)
    path = None
    if cache is not None:
        key = digest(f"{_FORMAT} {max_size}", student.fingerprint, teacher.fingerprint)
        path = Path(cache) / f"buckets-{key}.npz"
        if path.is_file():
            return Buckets.load(path, student, teacher)
    made = _made(student, teacher, max_size)
    if path is not None:
        made.save(path)
    return made


def _made(student: TokenSpans, teacher: TokenSpans, max_size: int) -> Buckets:
    own, other = (_possible(side.text_pieces()) for side in (student, teacher))
    roots = _components(_first_tokens(own, teacher, other), _first_tokens(other, student, own))
    sizes = np.bincount(roots, minlength=len(roots))
    own_sizes = np.bincount(roots[: len(own)], minlength=len(roots))
    is_bucket = (sizes[roots] > 1) & (own_sizes[roots] <= max_size)
    bucket = np.full(len(roots), -1, np.int32)
    bucket[is_bucket] = np.unique(roots[is_bucket], return_inverse=True)[1]
    return Buckets(
        student=bucket[: len(own)],
        teacher=bucket[len(own) :],
        fingerprints=(student.fingerprint, teacher.fingerprint),
        pieces=(sum(map(bool, own)), sum(map(bool, other))),
        max_size=max_size,
        dissolved=int(np.count_nonzero(own_sizes > max_size)),
        largest=int(own_sizes.max(initial=0)),
        boundaries=_boundaries(student, teacher),
    )


def _boundaries(student: TokenSpans, teacher: TokenSpans) -> Boundaries | None:
    return None if student.loses or teacher.loses else Boundaries(student, teacher)


def _first_tokens(
    pieces: list[bytes | None], side: TokenSpans, own: list[bytes | None]
) -> NDArray[np.int32]:
    """(len(pieces),) the token of a side, whose own pieces are `own`, that each piece begins with;
    -1 for none."""
    texts = [text_of(piece or b"") for piece in pieces]
    ids_of_texts = ids_in_context(texts, side.continuing_tokenizer(), side.name)
    firsts = np.fromiter((ids[0] if ids else -1 for ids in ids_of_texts), np.int32, len(pieces))
    id_of = {piece: index for index, piece in enumerate(own) if piece}
    longest = max(map(len, id_of), default=0)
    for index, piece in enumerate(pieces):
        token = own[firsts[index]] if firsts[index] >= 0 else None
        if piece and not (token and piece.startswith(token)):
            beginnings = (piece[:size] for size in range(min(len(piece), longest), 0, -1))
            firsts[index] = next((id_of[part] for part in beginnings if part in id_of), -1)
    return firsts


def _possible(pieces: list[bytes | None]) -> list[bytes | None]:
    """The same without pieces that no text has. Of the 256 single bytes 13 are such; a vocabulary
    of bytes has an id for each, and one that was trained on text often has none."""
    return [None if piece and _NEVER_IN_UTF8.search(piece) else piece for piece in pieces]


def _piece_of(pieces: list[bytes | None], index: int) -> bytes:
    """The text of an id; empty for one without a text of its own."""
    return (pieces[index] or b"") if 0 <= index < len(pieces) else b""


def _components(teacher_of: NDArray[np.int32], student_of: NDArray[np.int32]) -> NDArray[np.int64]:
    """(V_s + V_t,) the least node of each node's component, of a graph of student ids and, from V_s
    on, teacher ids, with an edge from each to its first token on the other side."""
    count = len(teacher_of)
    own, other = np.flatnonzero(teacher_of >= 0), np.flatnonzero(student_of >= 0)
    left = np.concatenate([own, other + count])
    right = np.concatenate([teacher_of[own] + count, student_of[other]])
    root = np.arange(count + len(student_of))
    while True:
        low, high = np.sort([root[left], root[right]], axis=0)
        if (low == high).all():
            return root
        np.minimum.at(root, high, low)  # `high` are roots, and `low` is less: no circles
        while (root != root[root]).any():
            root = root[root]


def _check(student: NDArray[Any], teacher: NDArray[Any], facts: NDArray[Any]) -> str:
    return digest(str(_FORMAT), student.tobytes(), teacher.tobytes(), str(facts))
