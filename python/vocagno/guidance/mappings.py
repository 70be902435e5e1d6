"""Both sides of the pieces of rows, and the mapping of each method: the teacher tokens, or groups
of them, behind each student token.

N: student tokens and M: teacher tokens of all pieces of a batch, one after the other.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.alignment.arrays import rows_in, sums_in
from vocagno.alignment.mapping import Groups, chunk_boundaries, chunk_map, groups
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import GuidanceError

UNMAPPED = -1
NO_GROUP = -1
"""In place of a group's number: the token is compared with no teacher token, and is a unit of its
own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Both sides of the pieces of some rows: parts of documents. n: student tokens of all rows, one
    after the other; M: the teacher's tokens of all their pieces."""

    student: NDArray[np.int32]
    """(n, 2) spans, bytes."""
    num_tokens: NDArray[np.int64]
    """The student's tokens of each piece."""
    num_prompt: NDArray[np.int64]
    student_cu: NDArray[np.int64]
    numbers: list[int]
    """The document of each piece."""
    first_bytes: list[int]
    end_bytes: list[int]
    is_missing: NDArray[np.bool_]
    """Which pieces are of documents without scores."""
    first_rows: NDArray[np.int64]
    """The teacher's tokens of the document before those of each piece."""
    teacher: NDArray[np.int32]
    """(M, 2) spans, bytes."""
    teacher_nll: NDArray[np.float32]
    teacher_cu: NDArray[np.int64]
    row_sizes: list[int]
    row_pieces: NDArray[np.int64]
    """Where the pieces of each row begin."""

    @property
    def cu_seqlens(self) -> dict[str, NDArray[np.int64]]:
        """As the functions of `vocagno` take them."""
        return {"student_cu_seqlens": self.student_cu, "teacher_cu_seqlens": self.teacher_cu}

    def teacher_ranges(self) -> NDArray[np.int64]:
        """(rows, 2) which of the teacher's tokens belong to the pieces of each row."""
        return self.teacher_cu[np.stack([self.row_pieces[:-1], self.row_pieces[1:]], 1)]

    def teacher_rows(self) -> list[NDArray[np.int64]]:
        """The teacher's tokens that share text with each row; none if a document is missing: the
        rest would be cut as if it were all."""
        inside = self.sharing_text(self.first_bytes)
        found = []
        for first, stop in itertools.pairwise(self.row_pieces.tolist()):
            start, end = self.teacher_cu[[first, stop]]
            rows = start + np.flatnonzero(inside[start:end])
            found.append(rows[:0] if self.is_missing[first:stop].any() else rows)
        return found

    def learnt(self) -> NDArray[np.bool_]:
        """(M,) which of the teacher's tokens share text with what their row learns: all of it but
        prompts."""
        prompt_ends = [
            int(self.student[token : token + count, 1].max(initial=first))
            for token, count, first in zip(
                self.student_cu.tolist(), self.num_prompt.tolist(), self.first_bytes, strict=False
            )
        ]
        return self.sharing_text(prompt_ends)

    def sharing_text(self, first_bytes: Sequence[int]) -> NDArray[np.bool_]:
        """(M,) which of the teacher's tokens share text with the part of their document, from
        `first_bytes` of each piece on, that is in the row."""
        sizes = np.diff(self.teacher_cu)
        first, end = np.repeat(first_bytes, sizes), np.repeat(self.end_bytes, sizes)
        starts, ends = self.teacher.T
        inside: NDArray[np.bool_] = (starts < ends) & (starts < end) & (ends > first)
        return inside

    def with_text(self, piece: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of a piece whose spans are not empty, of both sides."""
        student = _with_text(self.student, *self.student_cu[piece : piece + 2])
        return student, _with_text(self.teacher, *self.teacher_cu[piece : piece + 2])

    def first_only(self, meeting: NDArray[np.int32]) -> NDArray[np.bool_]:
        """(n,) mapped only to the first teacher token of the document, which has no loss without a
        BOS."""
        first_stop = np.where(self.first_rows == 0, self.teacher_cu[:-1] + 1, -2)
        first_only: NDArray[np.bool_] = meeting[:, 1] == np.repeat(first_stop, self.num_tokens)
        return first_only


@dataclass(frozen=True, slots=True)
class ComparedTokens:
    """The teacher's losses for n student tokens."""

    mapping: NDArray[np.int32]
    """(n, 2) rows of the teacher's tokens that each is compared with; (-1, -1) for none."""
    teacher_loss: NDArray[np.float32]
    """(n,) nats, NaN for none; of a group the teacher's sum divided by its student tokens."""
    groups: NDArray[np.int64] | None = None
    """(n,) for `unit: group`: the number of each token's group, from 0 in the order of the text; -1
    for none. A group that is compared has a loss of both models."""
    by_group: "ComparedTokens | None" = None
    """The same for `unit: group`, where a rule of single tokens `needs_group_loss`."""


def identity_map(pieces: Pieces) -> NDArray[np.int32]:
    """Token to token, for a teacher with the student's vocabulary (Rho-1): by counting, not by
    searching, and what is counted is compared. The teacher's tokens may extend before and after a
    piece, or be missing altogether. A piece that is the first of its row may begin anywhere in its
    document; the others begin where that does.

    Returns: (n, 2) int32 ranges of one teacher row each, (-1, -1) for tokens without text.
    Raises: GuidanceError if the tokens are not the same, which names document and bytes.
    """
    student, teacher = pieces.student, pieces.teacher
    mapping = np.full((len(student), 2), UNMAPPED, np.int32)
    begins_row = {*pieces.row_pieces.tolist()}
    for piece, document in enumerate(pieces.numbers):
        mine, theirs = pieces.with_text(piece)
        if not len(theirs) or not len(mine):
            continue
        first = _first_counterpart(student[mine], teacher[theirs]) if piece in begins_row else 0
        rows = theirs[first : first + len(mine)]
        if len(rows) < len(mine) or (student[mine] != teacher[rows]).any():
            raise GuidanceError(_difference(student[mine], teacher[rows], document))
        mapping[mine, 0], mapping[mine, 1] = rows, rows + 1
    return mapping


def positional_map(pieces: Pieces) -> NDArray[np.int32]:
    """(n, 2): the k-th token with text of each piece to the teacher's k-th, whatever they cover;
    what the longer side has more of stays unmapped.

    Source: the published ULD (Boizard et al., arXiv 2402.12030) compares sequences position by
    position, up to the length of the shorter one.
    """
    mapping = np.full((len(pieces.student), 2), UNMAPPED, np.int32)
    for piece in range(len(pieces.numbers)):
        mine, theirs = pieces.with_text(piece)
        both = min(len(mine), len(theirs))
        mapping[mine[:both], 0], mapping[mine[:both], 1] = theirs[:both], theirs[:both] + 1
    return mapping


def chunk_maps(pieces: Pieces, chunks: int) -> NDArray[np.int32]:
    """(n, 2): `chunk_map` of each row, of the teacher's tokens that share text with it. What lies
    between them shares none, and has no loss."""
    maps = []
    for mine, theirs in zip(pieces.row_sizes, pieces.teacher_rows(), strict=True):
        mapping = chunk_map(mine, len(theirs), chunks)
        mapped = mapping[:, 0] >= 0
        first, stop = mapping[mapped].T
        mapping[mapped, 0], mapping[mapped, 1] = theirs[first], theirs[stop - 1] + 1
        maps.append(mapping)
    return np.concatenate(maps)


def chunk_numbers(num_tokens: int, chunks: int) -> NDArray[np.int64]:
    """(num_tokens,): the number of the chunk that each token of a row is in."""
    ends = chunk_boundaries(num_tokens, chunks)[1:]
    return np.searchsorted(ends, np.arange(num_tokens), side="right").astype(np.int64)


def _with_text(spans: NDArray[np.int32], start: int, stop: int) -> NDArray[np.int64]:
    part = spans[start:stop]
    rows: NDArray[np.int64] = start + np.flatnonzero(part[:, 0] < part[:, 1])
    return rows


def _first_counterpart(mine: NDArray[np.int32], theirs: NDArray[np.int32]) -> int:
    """Where the teacher's tokens of a piece begin. A row may begin between the tokens of one
    character, which all have its span: then the last of them are meant."""
    first = int(np.searchsorted(theirs[:, 1], mine[0, 0], side="right"))
    alike = [_leading(spans, mine[0]) for spans in (theirs[first:], mine)]
    return first + max(0, alike[0] - alike[1])


def _leading(spans: NDArray[np.int32], span: NDArray[np.int32]) -> int:
    """How many of the first spans are this one."""
    other = (spans != span).any(1)
    return int(np.argmax(other)) if other.any() else len(spans)


def _difference(mine: NDArray[np.int32], theirs: NDArray[np.int32], document: int) -> str:
    both = min(len(mine), len(theirs))
    differing = np.flatnonzero((mine[:both] != theirs[:both]).any(1))
    place = int(differing[0]) if len(differing) else both
    found = f"[{theirs[place, 0]}, {theirs[place, 1]})" if place < len(theirs) else "missing"
    return (
        f"guidance.method: rho1: document {document}: the student's token of bytes "
        f"[{mine[place, 0]}, {mine[place, 1]}) is {found} in the teacher's scores: the "
        "vocabularies are not the same; use guidance.method: vocagno"
    )


def compared_groups(pieces: Pieces, is_predicted: NDArray[np.bool_] | None) -> ComparedTokens:
    """Groups of which both models have the loss of the whole text.

    Args: is_predicted: (n,) which tokens the student predicts; None for all.

    A group has no teacher loss if one of its teacher tokens has none, if one of its student tokens
    is not predicted (the first of a row, those of a prompt), if it holds the last token of a row,
    whose text may continue in the next one, or if the teacher's text stops inside it.
    """
    student, teacher = pieces.student, pieces.teacher
    found = groups(student, teacher, **pieces.cu_seqlens)
    with_text = student[:, 0] < student[:, 1]
    whole = with_text.copy()
    whole[np.cumsum(pieces.row_sizes) - 1] = False  # the last token of each row
    if is_predicted is not None:
        whole &= is_predicted
    size = sums_in(with_text, found.student)
    is_cut = sums_in(with_text & ~whole, found.student) > 0
    of_teacher = teacher[:, 0] < teacher[:, 1]
    has_loss = np.isfinite(pieces.teacher_nll)
    is_known = sums_in(of_teacher & ~has_loss, found.teacher) == 0
    is_known &= ~_stops_early(pieces, found)
    total = sums_in(np.where(of_teacher & has_loss, pieces.teacher_nll, 0), found.teacher)

    compared = np.flatnonzero(is_known & ~is_cut)
    of_token = np.full(len(student), NO_GROUP)
    rows, sizes = rows_in(found.student[compared])
    of_token[rows] = np.repeat(np.arange(len(compared)), sizes)
    of_token[~with_text] = NO_GROUP
    in_group = of_token != NO_GROUP
    number = compared[of_token[in_group]]

    mapping = np.full((len(student), 2), UNMAPPED, np.int32)
    mapping[in_group] = found.teacher[number]
    loss = np.full(len(student), np.nan, np.float32)
    loss[in_group] = total[number] / size[number]
    return ComparedTokens(mapping, loss, of_token)


def _stops_early(pieces: Pieces, found: Groups) -> NDArray[np.bool_]:
    """(G,): whether the last of the teacher's tokens of a text ends inside the group."""
    teacher, cu_seqlens = pieces.teacher, pieces.teacher_cu
    with_text = np.where(teacher[:, 0] < teacher[:, 1], np.arange(len(teacher)), -1)
    last_so_far = np.maximum.accumulate(with_text)
    stops = cu_seqlens[1:][np.diff(cu_seqlens) > 0]
    last = found.teacher[:, 1] - 1
    ends_early = teacher[last, 1] < pieces.student[found.student[:, 1] - 1, 1]
    stops_early: NDArray[np.bool_] = np.isin(last, last_so_far[stops - 1]) & ends_early
    return stops_early


def chunk_ends_of(tensors: Mapping[str, Any], guidance: GuidanceConfig) -> NDArray[np.int64] | None:
    """`group_ends` of the tensors of a `Batch`, on the host; None where they have no use."""
    if not guidance.has_fixed_threshold or tensors.get("groups") is None:
        return None
    return group_ends(tensors["groups"])


def group_ends(groups: ArrayLike) -> NDArray[np.int64]:
    """The places, in the order of the tokens, before which no group is cut; the last one is their
    number.
    Args: groups: the number of each token's group, in the order of the groups; -1 for none."""
    groups_N = np.asarray(groups).ravel()
    places = np.flatnonzero(groups_N >= 0)
    begins = np.flatnonzero(np.diff(groups_N[places], prepend=-1))
    first, last = places[begins], places[np.append(begins[1:], len(places))[: len(begins)] - 1]
    inside = np.zeros(len(groups_N) + 2, np.int64)
    np.add.at(inside, first + 1, 1)
    np.add.at(inside, last + 1, -1)
    is_cut = np.cumsum(inside)[: len(groups_N) + 1] > 0
    ends: NDArray[np.int64] = np.flatnonzero(~is_cut)
    return ends[ends > 0]
