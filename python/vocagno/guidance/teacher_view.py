"""Rows aligned with what the teacher says of their documents, by the mapping of the method.

n: student tokens of all rows, one after the other; M: the teacher's tokens of all their pieces.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from vocagno.alignment.mapping import Reason, align, unmapped_reasons
from vocagno.alignment.reduction import reduce
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.rows import Row
from vocagno.guidance.group_losses import compared_groups
from vocagno.guidance.mappings import chunk_maps, identity_map, positional_map, sharing_text
from vocagno.teacher.live import LivePieces
from vocagno.teacher.matched_scores import NOT_SCORED
from vocagno.teacher.scores import DocumentScores
from vocagno.teacher.windows import ReadTexts


class StoredScores(Protocol):
    """Losses that are known already: `MatchedScores`, a `ScoreStore`, or whatever gives pieces."""

    def piece(self, document: int, first_byte: int, end_byte: int) -> DocumentScores:
        """As `ScoreStore.piece`."""


class SameRows:
    """Stands for the losses of a teacher that reads the rows themselves (`live_rows`)."""


Scores = StoredScores | LivePieces | SameRows
"""Where the losses of a teacher are, or will be."""


@dataclass(frozen=True, slots=True)
class TeacherView:
    """What the teacher has to say of n tokens, in the order of the rows."""

    loss: NDArray[np.float32]
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
    prompts); None without a teacher that has tokens of its own."""
    row_ranges: NDArray[np.int64] | None = None
    """(rows, 2) which of the M belong to the pieces of each row."""
    read: ReadTexts | None = None
    """What a live teacher has to read for the losses."""
    groups: NDArray[np.int64] | None = None
    """(n,) for `unit: group`: the number of each token's group, -1 for none; the mapping is then
    that of the group, and the loss the teacher's sum over it divided by its student tokens."""


def teacher_view(
    rows: Sequence[Row],
    scores: Scores | None,
    guidance: GuidanceConfig,
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
    return _Pieces(rows, scores, guidance).view(is_predicted)


class _Pieces:
    """The pieces of some rows: parts of documents, which the teacher knows by its own tokens."""

    def __init__(
        self,
        rows: Sequence[Row],
        scores: StoredScores | LivePieces,
        guidance: GuidanceConfig,
    ) -> None:
        self.guidance = guidance
        self.student = np.concatenate([row.spans for row in rows])
        self.num_tokens = np.concatenate([row.num_tokens for row in rows])
        self.num_prompt = np.concatenate([row.num_prompt for row in rows])
        self.student_cu = _boundaries(self.num_tokens)
        self.numbers = np.concatenate([row.documents for row in rows]).tolist()
        self.first_bytes = np.minimum.reduceat(self.student[:, 0], self.student_cu[:-1]).tolist()
        self.end_bytes = np.maximum.reduceat(self.student[:, 1], self.student_cu[:-1]).tolist()
        places = self.numbers, self.first_bytes, self.end_bytes
        self.read = None
        if isinstance(scores, LivePieces):
            self.read, documents = scores.read(*places)
        else:
            documents = list(map(scores.piece, *places))
        self.is_missing = np.array([document is NOT_SCORED for document in documents])
        self.documents = documents
        self.teacher = np.concatenate([document.spans for document in documents])
        losses = np.concatenate([document.nll for document in documents])
        self.nll = losses.astype(np.float32)
        self.teacher_cu = _boundaries(np.array([len(document.nll) for document in documents]))
        self.row_sizes = [len(row.ids) for row in rows]
        self.row_pieces = _boundaries(np.array([len(row.num_tokens) for row in rows]))
        """Where the pieces of each row begin."""

    def view(self, is_predicted: NDArray[np.bool_] | None) -> TeacherView:
        """Aligns the tokens of both sides."""
        meeting = self._meeting()
        cu_seqlens = {
            "student_cu_seqlens": self.student_cu, "teacher_cu_seqlens": self.teacher_cu
        }  # fmt: skip
        reasons = unmapped_reasons(
            self.student, self.teacher, meeting, losses=self.nll, **cu_seqlens
        )
        # Without a BOS a document's first teacher token has no loss: nobody's fault.
        whole = np.array([document.first_row == 0 for document in self.documents])
        first_only = meeting[:, 1] == np.repeat(
            np.where(whole, self.teacher_cu[:-1] + 1, -2), self.num_tokens
        )
        mapping, groups = self._mapping(meeting), None
        if self.guidance.unit == "group":
            found = compared_groups(
                self.student, self.teacher, self.nll, is_predicted, self._ends_row(), **cu_seqlens
            )
            mapping, groups, loss = found.mapping, found.groups, found.teacher_loss
        else:
            loss = reduce(self.nll, mapping, self.guidance.aggregation)
        return TeacherView(
            loss, reasons,
            with_text=self.student[:, 0] < self.student[:, 1], first_only=first_only,
            missing=np.repeat(self.is_missing, self.num_tokens), mapping=mapping,
            teacher_spans=self.teacher, teacher_nll=self.nll,
            first_row=self.documents[0].first_row, is_inside=self._inside(self._learnt_from()),
            row_ranges=self.teacher_cu[np.stack([self.row_pieces[:-1], self.row_pieces[1:]], 1)],
            read=self.read, groups=groups,
        )  # fmt: skip

    def _ends_row(self) -> NDArray[np.bool_]:
        """(n,) the last token of each row."""
        ends = np.zeros(len(self.student), bool)
        ends[np.cumsum(self.row_sizes) - 1] = True
        return ends

    def _meeting(self) -> NDArray[np.int32]:
        """Which tokens share text, whatever the method makes of it."""
        cu_seqlens = self.student_cu, self.teacher_cu
        if self.guidance.method == "rho1":
            begins_row = np.isin(np.arange(len(self.numbers)), self.row_pieces)
            return identity_map(
                self.student, self.teacher, *cu_seqlens, self.numbers, begins_row.tolist()
            )
        return align(
            self.student, self.teacher,
            student_cu_seqlens=cu_seqlens[0], teacher_cu_seqlens=cu_seqlens[1],
            # Workers of a DataLoader share the cores among them, as their torch does.
            num_threads=None if get_worker_info() is None else 1,
        )  # fmt: skip

    def _mapping(self, meeting: NDArray[np.int32]) -> NDArray[np.int32]:
        guidance = self.guidance
        if guidance.method == "chunk":
            return chunk_maps(self.row_sizes, self._teacher_rows(), guidance.chunks)
        if guidance.method == "uld" and guidance.pairing == "positional":
            return positional_map(self.student, self.teacher, self.student_cu, self.teacher_cu)
        return meeting

    def _inside(self, first_bytes: Sequence[int]) -> NDArray[np.bool_]:
        return sharing_text(self.teacher, self.teacher_cu, first_bytes, self.end_bytes)

    def _learnt_from(self) -> list[int]:
        """The byte of its document at which the prompt of each piece ends."""
        pieces = zip(
            self.student_cu.tolist(), self.num_prompt.tolist(), self.first_bytes, strict=False
        )
        return [
            int(self.student[token : token + count, 1].max(initial=first))
            for token, count, first in pieces
        ]

    def _teacher_rows(self) -> list[NDArray[np.int64]]:
        """Of each row, the teacher's tokens that share text with it; none if a document is missing:
        the rest would be cut as if it were all."""
        inside = self._inside(self.first_bytes)
        found = []
        for first, stop in itertools.pairwise(self.row_pieces.tolist()):
            start, end = self.teacher_cu[[first, stop]]
            rows = start + np.flatnonzero(inside[start:end])
            found.append(rows[:0] if self.is_missing[first:stop].any() else rows)
        return found


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
        loss=np.zeros(n, np.float32), reasons=np.full(n, Reason.MAPPED, np.uint8),
        with_text=np.ones(n, bool), first_only=np.zeros(n, bool), missing=np.zeros(n, bool),
        mapping=np.stack([place, place + 1], axis=1), teacher_spans=spans,
        teacher_nll=np.zeros(n, np.float32),
    )  # fmt: skip


def _boundaries(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
