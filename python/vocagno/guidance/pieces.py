"""The pieces of some rows, which are parts of documents, with the tokens of student and teacher.

n: student tokens of all rows, one after the other; M: the teacher's tokens of all their pieces.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.alignment.mapping import Reason, unmapped_reasons
from vocagno.data.rows import Row, bytes_of_pieces
from vocagno.errors import GuidanceError
from vocagno.guidance.batch import put
from vocagno.guidance.bucket_loss import WITHOUT_ENTROPY
from vocagno.guidance.bucket_targets import BucketTargets, Targets
from vocagno.guidance.comparison import UNMAPPED, ComparedTokens, DocumentPairs
from vocagno.guidance.methods.base import Method
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.live import LivePieces, LiveText, first_asked
from vocagno.teacher.score_store import DocumentScores


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


def read_pieces(rows: Sequence[Row], scores: StoredScores | LivePieces) -> DocumentPairs:
    """Reads both sides of the pieces of some rows."""
    student = np.concatenate([row.spans for row in rows])
    num_tokens = np.concatenate([row.num_tokens for row in rows])
    numbers: list[int] = np.concatenate([row.documents for row in rows]).tolist()
    first_bytes, end_bytes = bytes_of_pieces(student, num_tokens)
    windowed = None
    if isinstance(scores, LivePieces):
        windowed, documents = scores.read_pieces(numbers, first_bytes, end_bytes)
    else:
        documents = list(map(scores.piece, numbers, first_bytes, end_bytes))
    return DocumentPairs(
        student_spans=student,
        num_tokens=num_tokens,
        num_prompt=np.concatenate([row.num_prompt for row in rows]),
        student_cu=_boundaries(num_tokens),
        document_numbers=numbers,
        first_bytes=first_bytes,
        end_bytes=end_bytes,
        row_sizes=[len(row.ids) for row in rows],
        row_pieces=_boundaries([len(row.num_tokens) for row in rows]),
        windowed=windowed,
        **_teacher_side(documents),
    )


def _teacher_side(documents: Sequence[DocumentScores]) -> dict[str, Any]:
    """The fields of `DocumentPairs` that are the teacher's."""
    return {
        "documents": documents,
        "is_missing": np.array([bool(scores.missing) for scores in documents]),
        "teacher_tokens_before": np.array([scores.first_row for scores in documents]),
        "teacher_spans": np.concatenate([scores.spans for scores in documents]),
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
    pairs: DocumentPairs,
    scores: StoredScores,
    targets: BucketTargets,
    *,
    needs_entropy: bool,
) -> Targets:
    """Adds up the stored candidates of each teacher over buckets.

    Args: scores: those of all teachers; `pairs` has the first one's.
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
    candidates = _candidates(pairs.documents, counts[0], needs_entropy=needs_entropy)
    of_teachers = [targets.of_stored(pairs, ids, candidates)]
    for number, store in enumerate(further_stores, 1):
        ranges = pairs.document_numbers, pairs.first_bytes, pairs.end_bytes
        # The student's tokens stay; every teacher cuts the same text into tokens of its own.
        side = replace(pairs, **_teacher_side(list(map(store.piece, *ranges))))
        candidates = _candidates(side.documents, counts[number], needs_entropy=needs_entropy)
        of_teachers.append(targets.of_stored(side, ids, candidates, number))
    return Targets(*(torch.cat(columns, 1) for columns in zip(*of_teachers, strict=True)))


def _boundaries(counts: Any) -> NDArray[np.int64]:
    """The position at which each of some runs begins, and their total length."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


class SameRows:
    """The mark of a live teacher that reads the rows themselves, so that its losses come later."""


Scores = StoredScores | LivePieces | SameRows
"""The source of a teacher's losses; None instead of one means that there is no teacher."""


def align_rows(
    rows: Sequence[Row],
    scores: Scores | None,
    method: Method,
    is_predicted: NDArray[np.bool_] | None = None,
) -> tuple[DocumentPairs, ComparedTokens]:
    """Aligns the teacher with all tokens of some rows, and computes its loss on each.

    Args:
        scores: the source of the teacher's losses; None: no token has one.
        is_predicted: (n,) True for tokens that are predicted, for `unit: group`; default: all.
    Returns: both sides of the rows' pieces; and for each token what it is compared with, with the
        reason if it is with nothing. The losses of a live teacher are 0 until it has read the rows.
    Raises: GuidanceError if the method needs a teacher with the student's tokens and gets another.
    """
    if scores is None or isinstance(scores, SameRows):
        return _without_text(rows, reads_rows=scores is not None)
    pairs = read_pieces(rows, scores)
    overlapping_tokens = method.overlapping_tokens(pairs)
    compared = method.compare(pairs, overlapping_tokens, is_predicted)
    reasons = unmapped_reasons(
        pairs.student_spans,
        pairs.teacher_spans,
        overlapping_tokens,
        losses=pairs.teacher_nll,
        **pairs.cu_seqlens,
    )
    return pairs, replace(
        compared, reasons=reasons, is_first_only=pairs.first_only(overlapping_tokens)
    )


def _without_text(rows: Sequence[Row], *, reads_rows: bool) -> tuple[DocumentPairs, ComparedTokens]:
    """The sides of rows of which no text is aligned.

    Args: reads_rows: True for a teacher that reads the rows as they are: every token has a loss,
        special ones, too. False if there is no teacher: no token has one.
    """
    spans = np.concatenate([row.spans for row in rows])
    num_tokens = np.concatenate([row.num_tokens for row in rows])
    n, cu_seqlens = len(spans), _boundaries(num_tokens)
    nothing = np.zeros(len(num_tokens), np.int64)
    pairs = DocumentPairs(
        student_spans=spans,
        num_tokens=num_tokens,
        num_prompt=np.concatenate([row.num_prompt for row in rows]),
        student_cu=cu_seqlens,
        document_numbers=np.concatenate([row.documents for row in rows]).tolist(),
        first_bytes=nothing.tolist(),
        end_bytes=nothing.tolist(),
        is_missing=nothing > 0,
        teacher_tokens_before=nothing,
        teacher_spans=spans if reads_rows else spans[:0],
        teacher_nll=np.zeros(n if reads_rows else 0, np.float32),
        teacher_cu=cu_seqlens if reads_rows else np.append(nothing, 0),
        row_sizes=[len(row.ids) for row in rows],
        row_pieces=_boundaries([len(row.num_tokens) for row in rows]),
    )
    place = np.arange(n, dtype=np.int32)
    reason = Reason.MAPPED if reads_rows else Reason.SPECIAL
    compared = ComparedTokens(
        mapping=np.stack([place, place + 1], 1)
        if reads_rows
        else np.full((n, 2), UNMAPPED, np.int32),
        teacher_loss=np.full(n, 0.0 if reads_rows else np.nan, np.float32),
        reasons=np.full(n, reason, np.uint8),
        is_first_only=np.zeros(n, bool),
    )
    return pairs, compared


def live_text(
    pairs: DocumentPairs,
    compared: ComparedTokens,
    places_BT: Tensor,
    target_rows: NDArray[np.int64] | None,
) -> LiveText:
    """Prepares the text that a live teacher reads for some rows, and where its losses go.

    Args:
        places_BT: the number of the token that is predicted at each position; -1 at padding.
        target_rows: (n, 3) what `BucketTargets.rows` gives, for `distill`.
    """
    assert pairs.windowed is not None
    by_group = compared.by_group or compared
    # Asked are the teacher tokens whose loss the live teacher has to compute: those with text that
    # it can predict. A loss is of all of a student token's range; a distribution is compared with
    # that of one, its partner, which is the first asked one.
    partner_n = first_asked(compared.mapping, pairs.windowed.is_asked)
    # The teacher's loss of a group is divided by these; a token without a group is one of its own.
    group_sizes_n = np.ones(len(compared.mapping), np.int64)
    if by_group.groups is not None:
        in_group_n = by_group.groups >= 0
        sizes = np.bincount(by_group.groups[in_group_n])
        group_sizes_n[in_group_n] = sizes[by_group.groups[in_group_n]]
    return LiveText(
        pairs.windowed,
        is_asked_M=torch.from_numpy(pairs.windowed.is_asked),
        mapping_N2=torch.from_numpy(compared.mapping),
        tokens_BT=places_BT,
        partner_BT=put(partner_n, places_BT, -1),
        is_inside_M=torch.from_numpy(pairs.learnt()),
        ranges_B2=torch.from_numpy(pairs.teacher_ranges()),
        group_mapping_N2=torch.from_numpy(by_group.mapping),
        sizes_N=torch.from_numpy(group_sizes_n),
        targets_BT3=None if target_rows is None else put(target_rows, places_BT, -1),
    )
