"""Sorts the ids of two vocabularies into buckets, over which the predictions of two models with
different tokenizers can be compared wherever both start a token (`vocagno.starts`).

From there on both models predict the same text, and the first token of either side determines the
bucket. So the sums of each model's probabilities over the buckets are distributions over the same
outcomes.
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
from vocagno.system.files import atomic_file, digest
from vocagno.tokens.id_texts import TokenizedTexts
from vocagno.tokens.spelling import ids_in_context, text_of
from vocagno.tokens.token_spans import TokenSpans

MAX_SIZE = 65_536
"""The default limit of student ids in a bucket. Where such a bucket is a candidate, the loss
gathers all of its ids, in about 0.13 us and 40 bytes each: 2 s and 0.7 GB for the least chunk of
256 tokens, if all have one. A teacher's ids cost nothing, so they are not limited."""
LEAST_SHARE = 0.99
"""The default share of ids in buckets (`Buckets.share`) below which `Buckets.check` refuses a
pair."""

_FORMAT = 3
"""The version of the files and of the definition of a bucket. It is a part of the names in a cache,
so files of another version are not read."""
_MAX_REMEMBERED = 1 << 22
"""The number of pairs of tokens that `Boundaries` remembers, 9 bytes each."""
_LOW_32_BITS = 0xFFFF_FFFF
_NEVER_IN_UTF8 = re.compile(rb"[\xc0\xc1\xf5-\xff]")
_FACTS = ("fingerprints", "pieces", "max_size", "dissolved", "largest")
"""The fields of `Buckets` that a file holds as JSON, next to its arrays."""


class BucketError(InputError):
    """Vocabularies that share too little for buckets, or a file of buckets that is damaged or of
    other tokenizers."""


class _Pieces(NamedTuple):
    """The texts of all ids of a vocabulary, one after the other, in a quarter of the memory of as
    many objects."""

    joined: bytes
    ends: NDArray[np.int64]
    """(V + 1,) where each id's text ends, after a 0."""

    @classmethod
    def of(cls, spans: TokenSpans) -> _Pieces:
        """Joins the texts of a tokenizer's ids; an id without a text of its own has none."""
        pieces = [piece or b"" for piece in spans.text_pieces()]
        return cls(b"".join(pieces), np.cumsum([0, *map(len, pieces)]))

    def text(self, index: int) -> bytes:
        """Returns the bytes of an id; empty for one without text, and beyond the vocabulary."""
        if not 0 <= index < len(self.ends) - 1:
            return b""
        return self.joined[self.ends[index] : self.ends[index + 1]]


class Boundaries:
    """Decides which teacher tokens can follow a student token, where both sides start a token.

    A student with the token ` until` that has read ` un` knows that `til` does not follow. One that
    learnt it from a teacher without ` until` would give probability to texts that never come.
    Whether the student's tokenizer ends a token between the two is decided by their texts; BPE may
    depend on more of the text.
    """

    def __init__(self, student: TokenSpans, teacher: TokenSpans) -> None:
        # Of the teacher's tokenizer only the texts are kept: one of 262,144 ids holds 160 MB.
        self._set_up(student, _Pieces.of(teacher))

    def _set_up(self, student: TokenSpans, teacher_pieces: _Pieces) -> None:
        """Sets all attributes, without any pair of tokens."""
        self._student, self._teacher_pieces = student, teacher_pieces
        self._student_pieces = _Pieces.of(student)
        # Sorted pairs and their answers. The first pair never occurs; it is there because `take`
        # needs an entry. Both are in one tuple, which is replaced at once, because threads may
        # share this object.
        self._remembered = np.array([np.iinfo(np.int64).min]), np.ones(1, np.bool_)

    def __getstate__(self) -> tuple[TokenSpans, _Pieces]:
        # Without the remembered pairs: `datasets` names its cache by the hash of this pickle, which
        # must be the same after use.
        return self._student, self._teacher_pieces

    def __setstate__(self, state: tuple[TokenSpans, _Pieces]) -> None:
        self._set_up(*state)

    def can_follow(self, before: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tells for each of n teacher tokens whether it can follow the student token before it.

        True where this cannot be decided: for ids without a text of their own, for two texts that
        together are not UTF-8, and where the student's tokens of both are not these texts (an
        unknown token, a normaliser).

        Cost: a search for each token, and 15 us for a pair that is new.
        """
        pairs = (before << 32) + ids
        remembered, can_follow = self._remembered
        rows = np.searchsorted(remembered, pairs)
        is_new = remembered.take(rows, mode="clip") != pairs
        if is_new.any():
            new = np.unique(pairs[is_new])
            if len(remembered) + len(new) > _MAX_REMEMBERED:  # forget all, and decide these again
                remembered, can_follow, new = remembered[:1], can_follow[:1], np.unique(pairs)
            new_rows = np.searchsorted(remembered, new)
            can_follow = np.insert(can_follow, new_rows, self._decide(new.tolist()))
            remembered = np.insert(remembered, new_rows, new)
            self._remembered = remembered, can_follow
            rows = np.searchsorted(remembered, pairs)
        return can_follow[rows]

    @cached_property
    def _tokenizer(self) -> Any:
        return self._student.continuing_tokenizer()

    def _decide(self, pairs: list[int]) -> NDArray[np.bool_]:
        """Tells for each pair whether the student's tokenizer cuts the text of both tokens, one
        after the other, between the two."""
        can_follow = np.ones(len(pairs), np.bool_)
        cuts, texts = [], []  # the pair's number and the byte to cut at, for each text to tokenize
        for number, pair in enumerate(pairs):
            before = self._student_pieces.text(pair >> 32)
            after = self._teacher_pieces.text(pair & _LOW_32_BITS)
            if before and after and (text := text_of(before + after)):
                can_follow[number] = False
                # White space before a word may be cut in another way than at the end.
                variants = [text, f"{text}x"] if after.isspace() else [text]
                cuts += [(number, len(before))] * len(variants)
                texts += variants
        ids_of_texts = ids_in_context(texts, self._tokenizer, self._student.name)
        for (number, cut), text, ids in zip(cuts, texts, ids_of_texts, strict=True):
            pieces = [self._student_pieces.text(index) for index in ids]
            is_changed = b"".join(pieces) != text.encode()
            can_follow[number] |= is_changed or cut in accumulate(map(len, pieces))
        return can_follow


class Agreement(NamedTuple):
    """Counts of student tokens, which add up over texts."""

    tokens: int
    """Number of tokens that have text."""
    covered: int
    """Number of tokens that start where a teacher token starts."""
    same_bucket: int
    """Number of covered tokens that are in the same bucket as that teacher token."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Buckets:
    """The bucket of each id of two vocabularies. The function `buckets` makes it.

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
    """The limit of student ids in a bucket."""
    dissolved: int
    """Number of components with more student ids than `max_size`; they are no buckets."""
    largest: int
    """Number of student ids in the component with most of them, whether it is a bucket or not."""
    boundaries: Boundaries | None = None
    """The token boundaries of the two tokenizers. None if one of them does not keep the text (BERT,
    T5): every candidate then counts as possible."""

    @property
    def count(self) -> int:
        """Number of buckets; each has ids of both sides."""
        return int(self.student.max(initial=-1)) + 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(count, 2) numbers of student ids and of teacher ids in each bucket."""
        sides = (self.student, self.teacher)
        return np.stack([np.bincount(ids[ids >= 0], minlength=self.count) for ids in sides], 1)

    @property
    def shares(self) -> tuple[float, float]:
        """Share of the ids with a text of their own that are in a bucket, of the student and of
        the teacher."""
        student, teacher = (np.count_nonzero(ids >= 0) for ids in (self.student, self.teacher))
        return student / max(1, self.pieces[0]), teacher / max(1, self.pieces[1])

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
            student, teacher = self.shares
            reason = "tokenizers that change the text (BERT, T5) share too little"
            if self.dissolved:
                reason = (
                    f"{self.dissolved} sets of ids are no buckets, because they have more than "
                    f"max_size={self.max_size:,} of the student's, the largest {self.largest:,} "
                    "(vocagno.buckets takes another max_size; an id costs 40 bytes a token)"
                )
            raise BucketError(
                f"of the ids with text {student:.2%} of the student's and {teacher:.2%} of the "
                f"teacher's are in a bucket, expected at least {least:.2%}: {reason}. The others "
                "would count as one; take another teacher, or a guidance.method that reads only "
                "its losses"
            )

    def agreement(self, student: TokenizedTexts, teacher: TokenizedTexts) -> Agreement:
        """Counts the shared starts of tokens in the same texts, and those at which both sides'
        tokens are in one bucket. Raises: the errors of `starts`; IndexError for unknown ids."""
        cu_seqlens = (student.cu_seqlens, teacher.cu_seqlens)
        rows = _vocagno.starts(student.spans, teacher.spans, *cu_seqlens, None)
        covered = rows >= 0
        student_bucket = self.student[student.ids[covered]]
        teacher_bucket = self.teacher[teacher.ids[rows[covered]]]
        return Agreement(
            int(np.count_nonzero(student.spans[:, 0] < student.spans[:, 1])),
            int(np.count_nonzero(covered)),
            int(np.count_nonzero((student_bucket == teacher_bucket) & (student_bucket >= 0))),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a compressed .npz file, atomically."""
        facts = np.array(json.dumps({name: getattr(self, name) for name in _FACTS}))
        check = np.array(_checksum(self.student, self.teacher, facts))
        with atomic_file(Path(path)) as file:
            np.savez_compressed(
                file, student=self.student, teacher=self.teacher, facts=facts, check=check
            )

    @classmethod
    def load(cls, path: str | PathLike[str], student: TokenSpans, teacher: TokenSpans) -> Buckets:
        """Reads the buckets of two tokenizers from a file that `save` wrote.

        Raises: BucketError for a damaged file, and for a file of other tokenizers; OSError.
        """
        data = Path(path).read_bytes()
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                arrays = {name: file[name] for name in ("student", "teacher", "facts")}
                if str(file["check"]) != _checksum(**arrays):
                    raise ValueError("its checksum differs")
            facts = json.loads(str(arrays.pop("facts")))
        except Exception as error:  # NumPy and zipfile raise many types for damaged files
            raise BucketError(
                f"{path}: not a file of buckets of this version, or damaged ({error}); remove it, "
                "and make it again with vocagno.buckets"
            ) from error
        for side, spans, fingerprint in zip(
            ("student", "teacher"), (student, teacher), facts["fingerprints"], strict=True
        ):
            if fingerprint != spans.fingerprint:
                raise BucketError(
                    f"{path}: is of another {side} tokenizer ({fingerprint}) than {spans.name} "
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
    """Sorts the ids of two vocabularies into buckets that the next text determines on both sides.

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
        max_size: the limit of student ids in a bucket, which its cost depends on (`MAX_SIZE`). A
            larger component is no bucket.
        cache: a folder from which the buckets of this pair are read, or to which they are saved.
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
    computed = _compute_buckets(student, teacher, max_size)
    if path is not None:
        computed.save(path)
    return computed


def _compute_buckets(student: TokenSpans, teacher: TokenSpans, max_size: int) -> Buckets:
    """Computes what `buckets` returns, without a cache."""
    student_pieces, teacher_pieces = (
        _possible_pieces(side.text_pieces()) for side in (student, teacher)
    )
    roots = _components(
        _first_tokens(student_pieces, teacher, teacher_pieces),
        _first_tokens(teacher_pieces, student, student_pieces),
    )
    num_student = len(student_pieces)
    sizes = np.bincount(roots, minlength=len(roots))
    student_sizes = np.bincount(roots[:num_student], minlength=len(roots))
    # Each edge joins both sides, so a component of more than one id has ids of both.
    is_bucket = (sizes[roots] > 1) & (student_sizes[roots] <= max_size)
    bucket = np.full(len(roots), -1, np.int32)
    bucket[is_bucket] = np.unique(roots[is_bucket], return_inverse=True)[1]
    return Buckets(
        student=bucket[:num_student],
        teacher=bucket[num_student:],
        fingerprints=(student.fingerprint, teacher.fingerprint),
        pieces=(sum(map(bool, student_pieces)), sum(map(bool, teacher_pieces))),
        max_size=max_size,
        dissolved=int(np.count_nonzero(student_sizes > max_size)),
        largest=int(student_sizes.max(initial=0)),
        boundaries=_boundaries(student, teacher),
    )


def _boundaries(student: TokenSpans, teacher: TokenSpans) -> Boundaries | None:
    """Makes the boundaries of two tokenizers; None if one of them does not keep the text."""
    return None if student.loses or teacher.loses else Boundaries(student, teacher)


def _first_tokens(
    pieces: list[bytes | None], target: TokenSpans, target_pieces: list[bytes | None]
) -> NDArray[np.int32]:
    """Finds the id of the target vocabulary with which each piece of the other one begins.

    Returns: (len(pieces),); -1 where there is none. These are the edges of the graph of `buckets`.
    """
    texts = [text_of(piece or b"") for piece in pieces]
    ids_of_texts = ids_in_context(texts, target.continuing_tokenizer(), target.name)
    firsts = np.fromiter((ids[0] if ids else -1 for ids in ids_of_texts), np.int32, len(pieces))
    id_of = {piece: index for index, piece in enumerate(target_pieces) if piece}
    longest = max(map(len, id_of), default=0)
    for index, piece in enumerate(pieces):
        token = target_pieces[firsts[index]] if firsts[index] >= 0 else None
        if piece and not (token and piece.startswith(token)):
            prefixes = (piece[:size] for size in range(min(len(piece), longest), 0, -1))
            firsts[index] = next((id_of[prefix] for prefix in prefixes if prefix in id_of), -1)
    return firsts


def _possible_pieces(pieces: list[bytes | None]) -> list[bytes | None]:
    """Replaces pieces that occur in no text by None.

    13 of the 256 single bytes are such. A vocabulary with byte fallback has an id for each of them;
    a byte-level one that was trained on text often has none.
    """
    return [None if piece and _NEVER_IN_UTF8.search(piece) else piece for piece in pieces]


def _components(teacher_of: NDArray[np.int32], student_of: NDArray[np.int32]) -> NDArray[np.int64]:
    """Finds the connected components of the graph of `buckets`, as the least node of each node's
    component.

    Nodes are the V_s student ids, then the V_t teacher ids. `teacher_of` and `student_of` give the
    other end of the edge of each id, -1 for none. Returns: (V_s + V_t,).
    """
    num_student = len(teacher_of)
    student, teacher = np.flatnonzero(teacher_of >= 0), np.flatnonzero(student_of >= 0)
    left = np.concatenate([student, teacher + num_student])
    right = np.concatenate([teacher_of[student] + num_student, student_of[teacher]])
    root = np.arange(num_student + len(student_of))
    while True:  # join the roots at the ends of all edges, then point each node at its root
        low, high = np.sort([root[left], root[right]], axis=0)
        if (low == high).all():
            return root
        np.minimum.at(root, high, low)  # `high` are roots, and `low` is less: no circles
        while (root != root[root]).any():
            root = root[root]


def _checksum(student: NDArray[Any], teacher: NDArray[Any], facts: NDArray[Any]) -> str:
    """Computes the hash of a file's contents, by which `load` detects a damaged one."""
    return digest(str(_FORMAT), student.tobytes(), teacher.tobytes(), str(facts))
