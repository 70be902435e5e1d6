"""The pieces of some rows: parts of documents, with the tokens of student and teacher.

n: student tokens of all rows, one after the other; M: the teacher's tokens of all their pieces.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vocagno.data.rows import Row
from vocagno.guidance.mappings import sharing_text
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
