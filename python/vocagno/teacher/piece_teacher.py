"""A teacher that reads what a student reads: the pieces that its rows have of each document.

At each token it then has the student's context. In windows of its own it has another one, and what
it knows from text that the student has not read, the student cannot learn (docs/guidance.md).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from vocagno.data.corpus import text_hash
from vocagno.data.prepare import whole_characters
from vocagno.data.rows import RowStore, bytes_of_pieces
from vocagno.data.store.building import Advance
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.score_store import DocumentScores
from vocagno.teacher.scoring import Teacher


class Piece(NamedTuple):
    """The part of a document that a row holds, in bytes of the document."""

    first_byte: int
    learnt_from: int
    """The student only reads what comes before: the row before has learnt it."""
    end_byte: int


def pieces_of(rows: RowStore) -> dict[bytes, list[Piece]]:
    """Lists the pieces of each document in order, by `text_hash`. Of equal documents, which may be
    cut differently, those of the last one."""
    pieces: dict[int, list[Piece]] = defaultdict(list)
    for number in range(len(rows)):
        row = rows[number]
        limits = bytes_of_pieces(row.spans, row.num_tokens)
        for document, first_byte, end_byte in zip(row.documents.tolist(), *limits, strict=True):
            # The first token of a row is the last one of the row before.
            before = pieces[document]
            learnt_from = before[-1].end_byte if before else first_byte
            if learnt_from < end_byte:
                before.append(Piece(first_byte, learnt_from, end_byte))
    hashes, _ = rows.documents()
    return {hashes[document].tobytes(): of_text for document, of_text in pieces.items()}


class PieceTeacher(Teacher):
    """A `Teacher` that reads each piece of a document as a text by itself."""

    def __init__(self, pieces: Mapping[bytes, Sequence[Piece]], *arguments: Any) -> None:
        """Args:
        pieces: of each document (`pieces_of`). One that no row holds is read whole.
        arguments: those of `Teacher`.
        """
        super().__init__(*arguments)
        self._pieces = pieces

    def score(
        self, texts: list[str], advance: Advance = lambda fraction, tokens: None
    ) -> list[DocumentScores]:
        """Computes the scores of each document from those of its pieces.
        Raises: what `Teacher.score` raises."""
        cuts, parts = [], []
        for text in texts:
            data = text.encode()
            cuts.append(self._pieces.get(text_hash(text)) or [Piece(0, 0, len(data))])
            parts += [whole_characters(data, cut.first_byte, cut.end_byte) for cut in cuts[-1]]
        scored = iter(super().score([part for part, _ in parts], advance))
        starts = iter(start for _, start in parts)
        return [
            _join([_keep_learnt(next(scored), next(starts), piece) for piece in of_text])
            for of_text in cuts
        ]


def _keep_learnt(scores: DocumentScores, start: int, piece: Piece) -> DocumentScores:
    """Keeps the tokens inside what the student learns of a piece, with spans in the document."""
    spans = scores.spans + np.int32(start)
    is_learnt = (spans[:, 0] >= piece.learnt_from) & (spans[:, 1] <= piece.end_byte)
    kept = np.flatnonzero(is_learnt)
    candidates = scores.candidates and scores.candidates[kept]
    return replace(scores, spans=spans[kept], nll=scores.nll[kept], candidates=candidates)


def _join(parts: Sequence[DocumentScores]) -> DocumentScores:
    """Makes the scores of a document of those of its pieces. If the teacher cannot read one of
    them, the document has none."""
    if missing := [part.missing for part in parts if part.missing]:
        return DocumentScores.none(missing[0])
    candidates = [part.candidates for part in parts if part.candidates is not None]
    return DocumentScores(
        np.concatenate([part.spans for part in parts]),
        np.concatenate([part.nll for part in parts]),
        num_unscored=sum(part.num_unscored for part in parts),
        candidates=Candidates.concatenate(candidates) if candidates else None,
    )
