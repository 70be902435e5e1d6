"""The pieces of some rows: parts of documents, with the tokens of student and teacher.

n: student tokens of all rows, one after the other; M: the teacher's tokens of all their pieces.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vocagno.alignment.mapping import Reason, unmapped_reasons
from vocagno.data.rows import Row
from vocagno.guidance.mappings import ComparedTokens, sharing_text
from vocagno.guidance.methods.base import Method
from vocagno.teacher.live import LivePieces
from vocagno.teacher.scores import DocumentScores
from vocagno.teacher.windows import WindowedTexts


class StoredScores(Protocol):
    """Losses that are known already: `MatchedScores`, a `ScoreStore`, or whatever gives pieces."""

    def piece(self, document: int, first_byte: int, end_byte: int) -> DocumentScores:
        """As `ScoreStore.piece`."""


class ScoresInOrder:
    """`StoredScores` of whole documents, by their place in a list."""

    def __init__(self, documents: Sequence[DocumentScores]) -> None:
        self._documents = documents

    def piece(self, document: int, first_byte: int, end_byte: int) -> DocumentScores:
        """As `StoredScores.piece`: all of the document."""
        return self._documents[document]


class Pieces:
    """Both sides of the pieces of some rows."""

    def __init__(self, rows: Sequence[Row], scores: StoredScores | LivePieces) -> None:
        self.student: NDArray[np.int32] = np.concatenate([row.spans for row in rows])
        """(n, 2) spans, bytes."""
        self.num_tokens: NDArray[np.int64] = np.concatenate([row.num_tokens for row in rows])
        """The student's tokens of each piece."""
        self.num_prompt: NDArray[np.int64] = np.concatenate([row.num_prompt for row in rows])
        self.student_cu: NDArray[np.int64] = _boundaries(self.num_tokens)
        self.numbers: list[int] = np.concatenate([row.documents for row in rows]).tolist()
        """The document of each piece."""
        self.first_bytes: list[int] = _of_pieces(np.minimum, self.student[:, 0], self.student_cu)
        self.end_bytes: list[int] = _of_pieces(np.maximum, self.student[:, 1], self.student_cu)
        places = self.numbers, self.first_bytes, self.end_bytes
        self.windowed: WindowedTexts | None = None
        """Text for a live teacher."""
        if isinstance(scores, LivePieces):
            self.windowed, documents = scores.read(*places)
        else:
            documents = list(map(scores.piece, *places))
        self.documents: list[DocumentScores] = documents
        self.is_missing: NDArray[np.bool_] = np.array([bool(one.missing) for one in documents])
        self.teacher: NDArray[np.int32] = np.concatenate([one.spans for one in documents])
        """(M, 2) spans, bytes."""
        losses = np.concatenate([one.nll for one in documents])
        self.teacher_nll: NDArray[np.float32] = losses.astype(np.float32)
        self.teacher_cu: NDArray[np.int64] = _boundaries([len(one.nll) for one in documents])
        self.row_sizes: list[int] = [len(row.ids) for row in rows]
        self.row_pieces: NDArray[np.int64] = _boundaries([len(row.num_tokens) for row in rows])
        """Where the pieces of each row begin."""

    @property
    def cu_seqlens(self) -> dict[str, NDArray[np.int64]]:
        """As the functions of `vocagno` take them."""
        return {"student_cu_seqlens": self.student_cu, "teacher_cu_seqlens": self.teacher_cu}

    def ends_row(self) -> NDArray[np.bool_]:
        """(n,) the last token of each row."""
        ends = np.zeros(len(self.student), bool)
        ends[np.cumsum(self.row_sizes) - 1] = True
        return ends

    def begins_row(self) -> list[bool]:
        """Whether each piece is the first of its row."""
        begins: list[bool] = np.isin(np.arange(len(self.numbers)), self.row_pieces).tolist()
        return begins

    def teacher_ranges(self) -> NDArray[np.int64]:
        """(rows, 2) which of the teacher's tokens belong to the pieces of each row."""
        return self.teacher_cu[np.stack([self.row_pieces[:-1], self.row_pieces[1:]], 1)]

    def teacher_rows(self) -> list[NDArray[np.int64]]:
        """The teacher's tokens that share text with each row; none if a document is missing: the
        rest would be cut as if it were all."""
        inside = sharing_text(self.teacher, self.teacher_cu, self.first_bytes, self.end_bytes)
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
        return sharing_text(self.teacher, self.teacher_cu, prompt_ends, self.end_bytes)

    def first_only(self, meeting: NDArray[np.int32]) -> NDArray[np.bool_]:
        """(n,) mapped only to the first teacher token of the document, which has no loss without a
        BOS."""
        is_whole = np.array([one.first_row == 0 for one in self.documents])
        first_stop = np.where(is_whole, self.teacher_cu[:-1] + 1, -2)
        first_only: NDArray[np.bool_] = meeting[:, 1] == np.repeat(first_stop, self.num_tokens)
        return first_only


def _of_pieces(
    least_or_most: np.ufunc, values: NDArray[np.int32], student_cu: NDArray[np.int64]
) -> list[int]:
    found: list[int] = least_or_most.reduceat(values, student_cu[:-1]).tolist()
    return found


def _boundaries(counts: Any) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


class SameRows:
    """Stands for the losses of a teacher that reads the rows themselves."""


Scores = StoredScores | LivePieces | SameRows
"""Where the losses of a teacher are, or will be."""


@dataclass(frozen=True, slots=True)
class TeacherView:
    """The teacher's side of n tokens, in the order of the rows."""

    teacher_loss: NDArray[np.float32]
    """The loss that each token is compared with, nats; NaN for none."""
    reasons: NDArray[np.uint8]
    with_text: NDArray[np.bool_]
    first_only: NDArray[np.bool_]
    """Mapped to nothing but the first teacher token of the document."""
    missing: NDArray[np.bool_]
    """Of a document that is not scored."""
    mapping: NDArray[np.int32]
    """(n, 2) rows of the teacher's tokens, by the method."""
    teacher_spans: NDArray[np.int32]
    """(M, 2) the teacher's tokens, of all pieces one after the other."""
    teacher_nll: NDArray[np.float32]
    """(M,) their losses."""
    first_row: int = 0
    """Tokens of the first document before these."""
    is_inside: NDArray[np.bool_] | None = None
    """(M,) which of the teacher's tokens share text with what their row learns (all of it but
    prompts); None if there is no teacher, or it reads the student's tokens."""
    row_ranges: NDArray[np.int64] | None = None
    """(rows, 2) which of the M belong to the pieces of each row."""
    windowed: WindowedTexts | None = None
    """Text for a live teacher."""
    groups: NDArray[np.int64] | None = None
    """(n,) for `unit: group`: the number of each token's group, -1 for none; the mapping is then
    that of the group, and the loss the teacher's sum over it divided by its student tokens."""
    by_group: ComparedTokens | None = None
    """As `ComparedTokens.by_group`."""


def teacher_view(
    rows: Sequence[Row],
    scores: Scores | None,
    method: Method,
    is_predicted: NDArray[np.bool_] | None = None,
) -> TeacherView:
    """Losses and reasons of all tokens of all rows.

    Args:
        is_predicted: (n,) which tokens are predicted, for `unit: group`; default: all.
    Raises: GuidanceError if the method needs a teacher with the student's tokens, and has not.
    """
    if scores is None:
        return _unaligned(rows)
    if isinstance(scores, SameRows):
        return _same_rows(rows)
    pieces = Pieces(rows, scores)
    meeting = method.meeting(pieces)
    compared = method.compared(pieces, meeting, is_predicted)
    reasons = unmapped_reasons(
        pieces.student, pieces.teacher, meeting, losses=pieces.teacher_nll, **pieces.cu_seqlens
    )
    return TeacherView(
        teacher_loss=compared.teacher_loss,
        reasons=reasons,
        with_text=pieces.student[:, 0] < pieces.student[:, 1],
        first_only=pieces.first_only(meeting),
        missing=np.repeat(pieces.is_missing, pieces.num_tokens),
        mapping=compared.mapping,
        teacher_spans=pieces.teacher,
        teacher_nll=pieces.teacher_nll,
        first_row=pieces.documents[0].first_row,
        is_inside=pieces.learnt(),
        row_ranges=pieces.teacher_ranges(),
        windowed=pieces.windowed,
        groups=compared.groups,
        by_group=compared.by_group,
    )


def _unaligned(rows: Sequence[Row]) -> TeacherView:
    """Where there is no teacher, no token has a loss, and none is counted as mapped."""
    n = sum(len(row.ids) for row in rows)
    nothing = np.zeros(n, bool)
    special = np.full(n, Reason.SPECIAL, np.uint8)
    loss, mapping = np.full(n, np.nan, np.float32), np.full((n, 2), -1, np.int32)
    spans, nll = np.empty((0, 2), np.int32), np.empty(0, np.float32)
    return TeacherView(loss, special, nothing, nothing, nothing, mapping, spans, nll)


def _same_rows(rows: Sequence[Row]) -> TeacherView:
    """Where the teacher reads the rows as they are, every token has a loss, special ones too."""
    spans = np.concatenate([row.spans for row in rows])
    n = len(spans)
    place = np.arange(n, dtype=np.int32)
    return TeacherView(
        teacher_loss=np.zeros(n, np.float32),
        reasons=np.full(n, Reason.MAPPED, np.uint8),
        with_text=np.ones(n, bool),
        first_only=np.zeros(n, bool),
        missing=np.zeros(n, bool),
        mapping=np.stack([place, place + 1], axis=1),
        teacher_spans=spans,
        teacher_nll=np.zeros(n, np.float32),
    )
