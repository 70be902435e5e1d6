"""The pieces of some rows, which are parts of documents, with the tokens of student and teacher.

n: student tokens of all rows, one after the other; M: the teacher's tokens of all their pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.alignment.mapping import Reason, unmapped_reasons
from vocagno.data.rows import Row
from vocagno.errors import GuidanceError
from vocagno.guidance.bucket_loss import WITHOUT_ENTROPY
from vocagno.guidance.bucket_targets import BucketTargets, Targets
from vocagno.guidance.mappings import ComparedTokens, DocumentPairs
from vocagno.guidance.methods.base import Method
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.live import LivePieces, LiveText, first_asked
from vocagno.teacher.scores import DocumentScores
from vocagno.teacher.windows import WindowedTexts


class StoredScores(Protocol):
    """Stored losses: `MatchedScores`, a `ScoreStore`, or another object that returns pieces."""

    def piece(self, document: int, first_byte: int, end_byte: int) -> DocumentScores:
        """The scores of the teacher's tokens that share text with these bytes of a document.
        Further tokens of the document may come with them."""


class ScoresInOrder:
    """Stored losses (`StoredScores`) of whole documents, by their position in a list."""

    def __init__(self, documents: Sequence[DocumentScores]) -> None:
        self._documents = documents

    def piece(self, document: int, first_byte: int, end_byte: int) -> DocumentScores:
        """The scores of the whole document; the bytes are not looked at."""
        return self._documents[document]


class SeveralTeachers:
    """Stored losses (`StoredScores`) of one text by several teachers. The losses are those of the
    first one; the others add their candidates, for `distill`."""

    def __init__(self, stores: Sequence[StoredScores]) -> None:
        self.stores: list[StoredScores] = [*stores]

    def piece(self, document: int, first_byte: int, end_byte: int) -> DocumentScores:
        """The scores of a piece by the first teacher."""
        return self.stores[0].piece(document, first_byte, end_byte)


def read_pieces(
    rows: Sequence[Row], scores: StoredScores | LivePieces
) -> tuple[DocumentPairs, Sequence[DocumentScores], WindowedTexts | None]:
    """Reads both sides of the pieces of some rows.

    Returns: the pieces of all rows, the teacher's scores of each piece, and text for a live
        teacher, None with stored scores.
    """
    student = np.concatenate([row.spans for row in rows])
    num_tokens = np.concatenate([row.num_tokens for row in rows])
    numbers: list[int] = np.concatenate([row.documents for row in rows]).tolist()
    student_cu = _boundaries(num_tokens)
    first_bytes: list[int] = np.minimum.reduceat(student[:, 0], student_cu[:-1]).tolist()
    end_bytes: list[int] = np.maximum.reduceat(student[:, 1], student_cu[:-1]).tolist()
    windowed = None
    if isinstance(scores, LivePieces):
        windowed, documents = scores.read(numbers, first_bytes, end_bytes)
    else:
        documents = list(map(scores.piece, numbers, first_bytes, end_bytes))
    pieces = DocumentPairs(
        student=student,
        num_tokens=num_tokens,
        num_prompt=np.concatenate([row.num_prompt for row in rows]),
        student_cu=student_cu,
        numbers=numbers,
        first_bytes=first_bytes,
        end_bytes=end_bytes,
        row_sizes=[len(row.ids) for row in rows],
        row_pieces=_boundaries([len(row.num_tokens) for row in rows]),
        **_teacher_side(documents),
    )
    return pieces, documents, windowed


def _teacher_side(documents: Sequence[DocumentScores]) -> dict[str, Any]:
    """The fields of `DocumentPairs` that are the teacher's."""
    return {
        "is_missing": np.array([bool(scores.missing) for scores in documents]),
        "first_rows": np.array([scores.first_row for scores in documents]),
        "teacher": np.concatenate([scores.spans for scores in documents]),
        "teacher_nll": np.concatenate([scores.nll for scores in documents]).astype(np.float32),
        "teacher_cu": _boundaries([len(scores.nll) for scores in documents]),
    }


def _candidates(
    documents: Sequence[DocumentScores], count: int, *, needs_entropy: bool
) -> Candidates:
    """Joins the candidates of all documents.
    Raises: GuidanceError if a document with tokens has none, or another number of them, or no
        entropies where these are needed."""
    parts = [Candidates.none(0, count)]  # so that there is something to join
    for scores in documents:
        candidates = scores.candidates
        if candidates is not None:
            parts.append(candidates)
        if len(scores.nll) and (candidates is None or candidates.ids.shape[1] != count):
            raise GuidanceError(
                f"guidance.method: distill needs scores with {count} candidates of each token: "
                "give MatchedScores(..., candidates=True), or score again with --candidates"
            )
    candidates = Candidates.concatenate(parts)
    if needs_entropy and len(candidates.tokens) and candidates.entropy is None:
        raise GuidanceError(WITHOUT_ENTROPY)
    return candidates


def stored_targets(
    rows: Sequence[Row],
    pieces: DocumentPairs,
    documents: Sequence[DocumentScores],
    scores: StoredScores,
    targets: BucketTargets,
    *,
    needs_entropy: bool,
) -> Targets:
    """Adds up the stored candidates of each teacher over buckets.

    Args:
        documents: the first teacher's scores of each piece. scores: those of all teachers.
    Raises: GuidanceError for scores of another number of teachers than the buckets', and for scores
        without candidates, with another number of them, or without entropies that are needed.
    """
    ids = np.concatenate([row.ids for row in rows])
    counts = targets.table.places
    further_stores = scores.stores[1:] if isinstance(scores, SeveralTeachers) else []
    if len(counts) != 1 + len(further_stores):
        raise GuidanceError(
            f"targets: buckets of {len(counts)} teachers, scores of {1 + len(further_stores)}; "
            "give one for each (SeveralTeachers)"
        )
    candidates = _candidates(documents, counts[0], needs_entropy=needs_entropy)
    of_teachers = [targets.of_stored(pieces, ids, candidates)]
    for number, store in enumerate(further_stores, 1):
        ranges = pieces.numbers, pieces.first_bytes, pieces.end_bytes
        documents = list(map(store.piece, *ranges))
        # The student's tokens stay; every teacher cuts the same text into tokens of its own.
        side = replace(pieces, **_teacher_side(documents))
        candidates = _candidates(documents, counts[number], needs_entropy=needs_entropy)
        of_teachers.append(targets.of_stored(side, ids, candidates, number))
    return Targets(*(torch.cat(columns, 1) for columns in zip(*of_teachers, strict=True)))


def _boundaries(counts: Any) -> NDArray[np.int64]:
    """The position at which each of some runs begins, and their total length."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


class SameRows:
    """The mark of a live teacher that reads the rows themselves, so that its losses come later."""


Scores = StoredScores | LivePieces | SameRows
"""The source of a teacher's losses; None instead of one means that there is no teacher."""


@dataclass(frozen=True, slots=True)
class TeacherView:
    """The teacher's side of n tokens, in the order of the rows."""

    teacher_loss: NDArray[np.float32]
    """The loss that each token is compared with, nats; NaN for none."""
    reasons: NDArray[np.uint8]
    """The `Reason` why each token has no loss, or `MAPPED`."""
    with_text: NDArray[np.bool_]
    """True for tokens that cover text: no special ones."""
    first_only: NDArray[np.bool_]
    """True for tokens that are mapped only to the first teacher token of the document."""
    missing: NDArray[np.bool_]
    """True for tokens of documents that are not scored."""
    mapping: NDArray[np.int32]
    """(n, 2) the range of teacher tokens that the method compares each token with."""
    teacher_spans: NDArray[np.int32]
    """(M, 2) the teacher's tokens, of all pieces one after the other."""
    teacher_nll: NDArray[np.float32]
    """(M,) their losses, nats; NaN for none."""
    first_row: int = 0
    """The number of teacher tokens that the first document has before these."""
    is_inside: NDArray[np.bool_] | None = None
    """(M,) True for teacher tokens that share text with what their row learns, which is all of it
    but prompts; None if there is no teacher, or it reads the student's tokens."""
    row_ranges: NDArray[np.int64] | None = None
    """(rows, 2) the range of the M that belongs to the pieces of each row."""
    windowed: WindowedTexts | None = None
    """Text for a live teacher."""
    groups: NDArray[np.int64] | None = None
    """(n,) for `unit: group`: the number of each token's group, -1 for none; the mapping is then
    that of the group, and the loss the teacher's sum over it divided by its student tokens."""
    by_group: ComparedTokens | None = None
    """The losses of groups, for a rule of single tokens whose lines are measured on groups."""
    targets: Targets | None = None
    """The teachers' probabilities of buckets, for `distill` with stored candidates."""
    target_rows: NDArray[np.int64] | None = None
    """(n, 3) the rows of the teacher's tokens, their ids, and the student's ids before them
    (`BucketTargets.rows`), for `distill` with a live teacher."""


def teacher_view(
    rows: Sequence[Row],
    scores: Scores | None,
    method: Method,
    is_predicted: NDArray[np.bool_] | None = None,
) -> TeacherView:
    """Aligns the teacher with all tokens of some rows, and computes losses and reasons.

    Args:
        scores: the source of the teacher's losses; None: no token has one.
        is_predicted: (n,) True for tokens that are predicted, for `unit: group`; default: all.
    Raises: GuidanceError if the method needs a teacher with the student's tokens and gets another.
    """
    if scores is None:
        return _view_without_teacher(rows)
    if isinstance(scores, SameRows):
        return _view_of_same_rows(rows)
    pieces, documents, windowed = read_pieces(rows, scores)
    targets = target_rows = None
    if method.targets is not None:
        if isinstance(scores, LivePieces):
            assert windowed is not None
            ids = np.concatenate([row.ids for row in rows])
            target_rows = method.targets.rows(pieces, ids, windowed.tokens.ids)
        else:
            needs_entropy = method.guidance.needs_entropy
            targets = stored_targets(
                rows, pieces, documents, scores, method.targets, needs_entropy=needs_entropy
            )
    overlapping_tokens = method.overlapping_tokens(pieces)
    compared = method.compare(pieces, overlapping_tokens, is_predicted)
    reasons = unmapped_reasons(
        pieces.student,
        pieces.teacher,
        overlapping_tokens,
        losses=pieces.teacher_nll,
        **pieces.cu_seqlens,
    )
    return TeacherView(
        teacher_loss=compared.teacher_loss,
        reasons=reasons,
        with_text=pieces.student[:, 0] < pieces.student[:, 1],
        first_only=pieces.first_only(overlapping_tokens),
        missing=np.repeat(pieces.is_missing, pieces.num_tokens),
        mapping=compared.mapping,
        teacher_spans=pieces.teacher,
        teacher_nll=pieces.teacher_nll,
        first_row=int(pieces.first_rows[0]),
        is_inside=pieces.learnt(),
        row_ranges=pieces.teacher_ranges(),
        windowed=windowed,
        groups=compared.groups,
        by_group=compared.by_group,
        targets=targets,
        target_rows=target_rows,
    )


def _view_without_teacher(rows: Sequence[Row]) -> TeacherView:
    """A view in which no token has a loss, and none is counted as mapped."""
    n = sum(len(row.ids) for row in rows)
    nothing = np.zeros(n, bool)
    special = np.full(n, Reason.SPECIAL, np.uint8)
    loss, mapping = np.full(n, np.nan, np.float32), np.full((n, 2), -1, np.int32)
    spans, nll = np.empty((0, 2), np.int32), np.empty(0, np.float32)
    return TeacherView(loss, special, nothing, nothing, nothing, mapping, spans, nll)


def _view_of_same_rows(rows: Sequence[Row]) -> TeacherView:
    """A view for a teacher that reads the rows as they are: every token has a loss, special ones,
    too. It is 0 until the teacher has read them."""
    spans = np.concatenate([row.spans for row in rows])
    n = len(spans)
    place = np.arange(n, dtype=np.int32)
    return TeacherView(
        teacher_loss=np.zeros(n, np.float32),
        reasons=np.full(n, Reason.MAPPED, np.uint8),
        with_text=np.ones(n, bool),
        first_only=np.zeros(n, bool),
        missing=np.zeros(n, bool),
        mapping=np.stack([place, place + 1], axis=1),  # each token to itself
        teacher_spans=spans,
        teacher_nll=np.zeros(n, np.float32),
    )


def live_text(view: TeacherView, tokens_BT: NDArray[np.int64]) -> LiveText:
    """Prepares the text that a live teacher reads for some rows, and where its losses go.
    Args: tokens_BT: the number of the token that is predicted at each position; -1 at padding."""
    assert view.windowed is not None
    assert view.is_inside is not None
    assert view.row_ranges is not None
    by_group = view.by_group or view
    # A distribution is compared with one teacher token of the range, a loss with all of them.
    partner_N = first_asked(view.mapping, view.windowed.is_asked)
    # The teacher's loss of a group is divided by these; a token without a group is one of its own.
    group_sizes_N = np.ones(len(view.mapping), np.int64)
    if by_group.groups is not None:
        in_group_N = by_group.groups >= 0
        sizes = np.bincount(by_group.groups[in_group_N])
        group_sizes_N[in_group_N] = sizes[by_group.groups[in_group_N]]
    arrays: tuple[NDArray[Any], ...] = (
        view.windowed.is_asked,
        view.mapping,
        tokens_BT,
        np.append(partner_N, -1)[tokens_BT],
        view.is_inside,
        view.row_ranges,
        by_group.mapping,
        group_sizes_N,
    )
    # Padding, -1, takes the row that is appended.
    if view.target_rows is not None:
        arrays = *arrays, np.append(view.target_rows, [[-1, -1, -1]], 0)[tokens_BT]
    tensors = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
    return LiveText(view.windowed, *tensors)
