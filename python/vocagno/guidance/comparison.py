"""The tokens of student and teacher in the same parts of documents, and the mapping of each
method: which teacher tokens, or which group of them, a student token is compared with.

n: student tokens and M: teacher tokens of all pieces of a batch, one after the other. N: positions
of a batch, B * T.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.alignment.arrays import rows_in, sums_in
from vocagno.alignment.mapping import Groups, chunk_boundaries, chunk_map, groups
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import GuidanceError

if TYPE_CHECKING:  # stores need pyarrow, the loss does not
    from vocagno.teacher.score_store import DocumentScores
    from vocagno.teacher.windows import WindowedTexts

UNMAPPED = -1
NO_GROUP = -1
"""The number of no group: the token is compared with no teacher token, and is a unit of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPairs:
    """The tokens of both models in the pieces of some rows. A piece is the part of one document
    that lies in a row.

    n: student tokens of all rows, one after the other; M: the teacher's tokens of all pieces.
    """

    student_spans: NDArray[np.int32]
    """(n, 2) bytes of each token in its document."""
    num_tokens: NDArray[np.int64]
    """The number of student tokens of each piece."""
    num_prompt: NDArray[np.int64]
    """The number of them, from the first, that belong to a prompt."""
    student_cu: NDArray[np.int64]
    """(pieces + 1,) the first student token of each piece, and the number of them all."""
    document_numbers: list[int]
    """The number of each piece's document."""
    first_bytes: list[int]
    """The byte of its document at which each piece begins."""
    end_bytes: list[int]
    """The byte at which it ends."""
    is_missing: NDArray[np.bool_]
    """True for pieces of documents without scores."""
    teacher_tokens_before: NDArray[np.int64]
    """The number of teacher tokens that the document has before those of each piece."""
    teacher_spans: NDArray[np.int32]
    """(M, 2) bytes of each token in its document."""
    teacher_nll: NDArray[np.float32]
    """(M,) losses in nats; NaN for none."""
    teacher_cu: NDArray[np.int64]
    """(pieces + 1,) the first teacher token of each piece, and the number of them all."""
    row_sizes: list[int]
    """The number of student tokens of each row."""
    row_pieces: NDArray[np.int64]
    """(rows + 1,) the number of each row's first piece, and that of all pieces."""
    documents: "Sequence[DocumentScores]" = ()
    """The teacher's scores of each piece, with candidates if the store was asked for them. Empty if
    no text is aligned: without a teacher, or with one that reads the rows as they are."""
    windowed: "WindowedTexts | None" = None
    """The text of the pieces, cut into windows that a live teacher can read at once; None with
    stored scores."""

    @property
    def cu_seqlens(self) -> dict[str, NDArray[np.int64]]:
        """The boundaries of pieces by the names of the arguments of `vocagno.align` and others."""
        return {"student_cu_seqlens": self.student_cu, "teacher_cu_seqlens": self.teacher_cu}

    def teacher_ranges(self) -> NDArray[np.int64]:
        """(rows, 2) the range of teacher tokens that belong to the pieces of each row."""
        return self.teacher_cu[np.stack([self.row_pieces[:-1], self.row_pieces[1:]], 1)]

    def teacher_tokens_of_rows(self) -> list[NDArray[np.int64]]:
        """The indices (of M) of the teacher's tokens that share text with each row; none if a
        document is missing: the rest would be cut as if it were all."""
        inside = self.sharing_text(self.first_bytes)
        tokens_of_rows = []
        for first, stop in itertools.pairwise(self.row_pieces.tolist()):
            start, end = self.teacher_cu[[first, stop]]
            tokens = start + np.flatnonzero(inside[start:end])
            tokens_of_rows.append(tokens[:0] if self.is_missing[first:stop].any() else tokens)
        return tokens_of_rows

    def learnt(self) -> NDArray[np.bool_]:
        """(M,) True for teacher tokens that share text with what their row learns, which is all of
        it but prompts."""
        # Without a prompt a piece is learnt from its first byte on.
        prompt_ends = [
            int(self.student_spans[token : token + count, 1].max(initial=first))
            for token, count, first in zip(
                self.student_cu.tolist(), self.num_prompt.tolist(), self.first_bytes, strict=False
            )
        ]
        return self.sharing_text(prompt_ends)

    def sharing_text(self, first_bytes: Sequence[int]) -> NDArray[np.bool_]:
        """(M,) True for teacher tokens that share text with the part of their document that is in
        the row, from `first_bytes` of each piece on."""
        sizes = np.diff(self.teacher_cu)
        first, end = np.repeat(first_bytes, sizes), np.repeat(self.end_bytes, sizes)
        starts, ends = self.teacher_spans.T
        inside: NDArray[np.bool_] = (starts < ends) & (starts < end) & (ends > first)
        return inside

    def with_text(self, piece: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The indices (of n and of M) of the tokens of a piece whose spans are not empty."""
        student = _with_text(self.student_spans, *self.student_cu[piece : piece + 2])
        return student, _with_text(self.teacher_spans, *self.teacher_cu[piece : piece + 2])

    def first_only(self, overlapping_tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
        """(n,) True for student tokens that are mapped only to the first teacher token of their
        document. Without a BOS that token has no loss, which is no fault of the alignment."""
        # -2: no range stops there. -1 would be that of an unmapped token.
        first_stop = np.where(self.teacher_tokens_before == 0, self.teacher_cu[:-1] + 1, -2)
        first_only: NDArray[np.bool_] = overlapping_tokens[:, 1] == np.repeat(
            first_stop, self.num_tokens
        )
        return first_only


@dataclass(frozen=True, slots=True)
class ComparedTokens:
    """The teacher's losses for n student tokens."""

    mapping: NDArray[np.int32]
    """(n, 2) the range of teacher tokens that each one is compared with; (-1, -1) for none."""
    teacher_loss: NDArray[np.float32]
    """(n,) nats, NaN for none. In a group it is the teacher's loss on the group divided by the
    number of its student tokens, so that both models' losses are sums over the same text."""
    groups: NDArray[np.int64] | None = None
    """(n,) for `unit: group`: the number of each token's group, from 0 in the order of the text; -1
    for none. A group that is compared has a loss of both models."""
    reasons: NDArray[np.uint8] | None = None
    """(n,) the `Reason` why each token overlaps no teacher token with a loss, or `MAPPED`, whatever
    is compared: a `MAPPED` token has no `teacher_loss` if its group has none. `align_rows` adds
    it."""
    is_first_only: NDArray[np.bool_] | None = None
    """(n,) True for tokens that overlap only the first teacher token of the document."""
    by_group: "ComparedTokens | None" = None
    """The result of `unit: group`, if the rule is on single tokens but measures lines on groups
    (`GuidanceConfig.needs_group_loss`)."""


def identity_map(pairs: DocumentPairs) -> NDArray[np.int32]:
    """Maps token to token, for a teacher with the student's vocabulary (Rho-1).

    The k-th token of a piece is mapped to the teacher's k-th from the byte on at which the piece
    begins, and the spans of both must be equal. The teacher's tokens may extend before and after a
    piece, or be missing altogether. The first piece of a row may begin anywhere in its document;
    the others begin where their documents do.

    Returns: (n, 2) int32 ranges of one teacher row each, (-1, -1) for tokens without text.
    Raises: GuidanceError if the tokens are not the same, which names document and bytes.
    """
    student, teacher = pairs.student_spans, pairs.teacher_spans
    mapping = np.full((len(student), 2), UNMAPPED, np.int32)
    begins_row = {*pairs.row_pieces.tolist()}
    for piece, document in enumerate(pairs.document_numbers):
        student_tokens, teacher_tokens = pairs.with_text(piece)
        if not len(teacher_tokens) or not len(student_tokens):
            continue  # a document without scores has no loss, which is no difference of tokens
        own_spans, first = student[student_tokens], 0
        if piece in begins_row:
            first = _first_counterpart(own_spans, teacher[teacher_tokens])
        rows = teacher_tokens[first : first + len(student_tokens)]
        if len(rows) < len(student_tokens) or (own_spans != teacher[rows]).any():
            raise GuidanceError(_difference(own_spans, teacher[rows], document))
        mapping[student_tokens, 0], mapping[student_tokens, 1] = rows, rows + 1
    return mapping


def positional_map(pairs: DocumentPairs) -> NDArray[np.int32]:
    """Maps the k-th token with text of each piece to the teacher's k-th, whatever they cover. The
    tokens that a piece has more than the teacher stay unmapped.

    Returns: (n, 2) int32 ranges of one teacher token each, (-1, -1) for none.
    Source: the published ULD (Boizard et al., arXiv 2402.12030) compares sequences position by
    position, up to the length of the shorter one.
    """
    mapping = np.full((len(pairs.student_spans), 2), UNMAPPED, np.int32)
    for piece in range(len(pairs.document_numbers)):
        student_tokens, teacher_tokens = pairs.with_text(piece)
        count = min(len(student_tokens), len(teacher_tokens))
        mapping[student_tokens[:count], 0] = teacher_tokens[:count]
        mapping[student_tokens[:count], 1] = teacher_tokens[:count] + 1
    return mapping


def chunk_maps(pairs: DocumentPairs, chunks: int) -> NDArray[np.int32]:
    """(n, 2) the range of teacher tokens in the chunk of each token, by `chunk_map` of each row.

    Only the teacher's tokens that share text with the row are counted. Between them in a range lie
    only special tokens, which have no loss."""
    maps = []
    for num_tokens, tokens in zip(pairs.row_sizes, pairs.teacher_tokens_of_rows(), strict=True):
        mapping = chunk_map(num_tokens, len(tokens), chunks)
        is_mapped = mapping[:, 0] >= 0
        # `chunk_map` counts the tokens that share text with the row; others may lie between them.
        first, stop = mapping[is_mapped].T
        mapping[is_mapped, 0] = tokens[first]
        mapping[is_mapped, 1] = tokens[stop - 1] + 1
        maps.append(mapping)
    return np.concatenate(maps)


def chunk_numbers(num_tokens: int, chunks: int) -> NDArray[np.int64]:
    """(num_tokens,): the number of the chunk that each token of a row is in."""
    ends = chunk_boundaries(num_tokens, chunks)[1:]
    return np.searchsorted(ends, np.arange(num_tokens), side="right").astype(np.int64)


def _with_text(spans: NDArray[np.int32], start: int, stop: int) -> NDArray[np.int64]:
    """The indices from `start` to `stop` of spans that are not empty."""
    part = spans[start:stop]
    rows: NDArray[np.int64] = start + np.flatnonzero(part[:, 0] < part[:, 1])
    return rows


def _first_counterpart(student: NDArray[np.int32], teacher: NDArray[np.int32]) -> int:
    """The index of the teacher's span that belongs to the student's first one.

    A row may begin between the tokens of one character, which all have its span. Then the student
    has fewer of them than the teacher, and its tokens are the last ones.
    """
    first = int(np.searchsorted(teacher[:, 1], student[0, 0], side="right"))
    of_teacher, of_student = (_count_leading(s, student[0]) for s in (teacher[first:], student))
    return first + max(0, of_teacher - of_student)


def _count_leading(spans: NDArray[np.int32], span: NDArray[np.int32]) -> int:
    """Counts the spans, from the first, that are equal to one."""
    differs = (spans != span).any(1)
    return int(np.argmax(differs)) if differs.any() else len(spans)


def _difference(student: NDArray[np.int32], teacher: NDArray[np.int32], document: int) -> str:
    """The message about the first token whose span differs."""
    count = min(len(student), len(teacher))
    differing = np.flatnonzero((student[:count] != teacher[:count]).any(1))
    place = int(differing[0]) if len(differing) else count
    of_teacher = "missing"
    if place < len(teacher):
        of_teacher = f"[{teacher[place, 0]}, {teacher[place, 1]})"
    return (
        f"guidance.method: rho1: document {document}: the student's token of bytes "
        f"[{student[place, 0]}, {student[place, 1]}) is {of_teacher} in the teacher's scores: the "
        "vocabularies are not the same; use guidance.method: vocagno"
    )


def compared_groups(pairs: DocumentPairs, is_predicted: NDArray[np.bool_] | None) -> ComparedTokens:
    """Compares groups: the smallest runs of text at whose ends the tokens of both sides end.

    Args: is_predicted: (n,) True for tokens that the student predicts; None for all.

    In place of L_T of one student token (Eq. 2 of arXiv 2503.19123) each token of a group gets the
    sum of -log P over the group's teacher tokens (`total`), divided by its student tokens (`size`).
    So no teacher token counts twice, which Eq. 2 lets it do where it spans several student tokens.

    A group has no teacher loss if one of its teacher tokens has none, if one of its student tokens
    is not predicted (the first of a row, those of a prompt), if it holds the last token of a row,
    whose text may continue in the next one, or if the teacher's text stops inside it.
    """
    student, teacher = pairs.student_spans, pairs.teacher_spans
    all_groups = groups(student, teacher, **pairs.cu_seqlens)
    with_text = student[:, 0] < student[:, 1]
    is_whole = with_text.copy()
    is_whole[np.cumsum(pairs.row_sizes) - 1] = False  # the last token of each row
    if is_predicted is not None:
        is_whole &= is_predicted
    size = sums_in(with_text, all_groups.student)
    is_cut = sums_in(with_text & ~is_whole, all_groups.student) > 0
    of_teacher = teacher[:, 0] < teacher[:, 1]
    has_loss = np.isfinite(pairs.teacher_nll)
    is_scored = sums_in(of_teacher & ~has_loss, all_groups.teacher) == 0
    is_scored &= ~_stops_early(pairs, all_groups)
    total = sums_in(np.where(of_teacher & has_loss, pairs.teacher_nll, 0), all_groups.teacher)

    compared = np.flatnonzero(is_scored & ~is_cut)
    # Only compared groups are numbered, so the numbers have no gaps and ascend with the text.
    of_token = np.full(len(student), NO_GROUP)
    rows, sizes = rows_in(all_groups.student[compared])
    of_token[rows] = np.repeat(np.arange(len(compared)), sizes)
    of_token[~with_text] = NO_GROUP  # special tokens may stand inside a group's range
    in_group = of_token != NO_GROUP
    number = compared[of_token[in_group]]

    mapping = np.full((len(student), 2), UNMAPPED, np.int32)
    mapping[in_group] = all_groups.teacher[number]
    loss = np.full(len(student), np.nan, np.float32)
    loss[in_group] = total[number] / size[number]
    return ComparedTokens(mapping, loss, of_token)


def _stops_early(pairs: DocumentPairs, all_groups: Groups) -> NDArray[np.bool_]:
    """(G,) True for a group inside which the teacher's text of a document ends. The teacher's loss
    would be of less text than the student's."""
    teacher, cu_seqlens = pairs.teacher_spans, pairs.teacher_cu
    with_text = np.where(teacher[:, 0] < teacher[:, 1], np.arange(len(teacher)), -1)
    # Special tokens may follow the last token with text, where the text stops.
    last_so_far = np.maximum.accumulate(with_text)
    stops = cu_seqlens[1:][np.diff(cu_seqlens) > 0]
    last = all_groups.teacher[:, 1] - 1
    ends_early = teacher[last, 1] < pairs.student_spans[all_groups.student[:, 1] - 1, 1]
    stops_early: NDArray[np.bool_] = np.isin(last, last_so_far[stops - 1]) & ends_early
    return stops_early


def safe_cuts_of(groups: ArrayLike | None, guidance: GuidanceConfig) -> NDArray[np.int64] | None:
    """The `safe_cuts` of a batch, on the host; None for guidance that does not compute on chunks of
    whole groups."""
    return safe_cuts(groups) if guidance.takes_one_pass and groups is not None else None


def safe_cuts(groups: ArrayLike) -> NDArray[np.int64]:
    """Positions at which a batch can be cut into chunks without splitting a group, ascending. The
    last one is the number of tokens.

    Args: groups: the number of each token's group, ascending; -1 for none.
    """
    groups_N = np.asarray(groups).ravel()
    places = np.flatnonzero(groups_N >= 0)
    begins = np.flatnonzero(np.diff(groups_N[places], prepend=-1))
    # first, last: the positions of each group's first and last token.
    first, last = places[begins], places[np.append(begins[1:], len(places))[: len(begins)] - 1]
    # A position is inside a group if more groups begin before it than have ended.
    changes = np.zeros(len(groups_N) + 2, np.int64)
    np.add.at(changes, first + 1, 1)
    np.add.at(changes, last + 1, -1)
    is_inside = np.cumsum(changes)[: len(groups_N) + 1] > 0
    cuts: NDArray[np.int64] = np.flatnonzero(~is_inside)
    return cuts[cuts > 0]
