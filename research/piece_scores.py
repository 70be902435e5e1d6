"""Scores of what a student reads: the teacher has as much context at each token as the student.

    python -m research.piece_scores TEXT ROWS TEACHER OUT [--dtype float32]

A store of `vocagno score` has windows of the teacher's own, whose tokens see more text than those
of the student's rows. A live teacher reads the rows' pieces. OUT becomes a store of 8 sampled
candidates that such a teacher gives, for any run with these rows (`vocagno prepare`), whatever its
order and its method.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import scan, text_hash
from vocagno.data.rows import RowStore
from vocagno.data.store.building import Advance
from vocagno.models.loading import local_device
from vocagno.system.files import digest
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.score_store import DocumentScores
from vocagno.teacher.scoring import Teacher, score_corpus


class Piece(NamedTuple):
    """The part of a document that a row of the student holds, in bytes of the document."""

    first_byte: int
    learnt_from: int
    """The student only reads what comes before: the row before has learnt it."""
    end_byte: int


def pieces_of(rows: RowStore) -> dict[bytes, list[Piece]]:
    """Lists the pieces of each document, which is named by `text_hash`, in order. Of equal
    documents the last one counts."""
    pieces: dict[int, list[Piece]] = defaultdict(list)
    for number in range(len(rows)):
        row = rows[number]
        ends = [0, *accumulate(row.num_tokens.tolist())]
        for place, (start, stop) in enumerate(pairwise(ends)):
            spans = row.spans[start:stop]
            first_byte, end_byte = int(spans[:, 0].min()), int(spans[:, 1].max())
            # The first token of a row is the last one of the row before.
            before = pieces[int(row.documents[place])]
            learnt_from = before[-1].end_byte if before else first_byte
            if learnt_from < end_byte:
                before.append(Piece(first_byte, learnt_from, end_byte))
    hashes, _ = rows.documents()
    return {hashes[document].tobytes(): of_text for document, of_text in pieces.items()}


class PieceTeacher(Teacher):
    """A teacher that reads each piece of a document as a text by itself."""

    def __init__(self, teacher: Teacher, pieces: dict[bytes, list[Piece]]) -> None:
        super().__init__(teacher.scorer, teacher.reader, candidates=teacher.candidates)
        self._pieces = pieces

    def score(
        self, texts: list[str], advance: Advance = lambda fraction, tokens: None
    ) -> list[DocumentScores]:
        """Computes the scores of each document from those of its pieces."""
        pieces = [self._pieces.get(text_hash(text), []) for text in texts]
        parts = [
            _characters(text, piece)
            for text, of_text in zip(texts, pieces, strict=True)
            for piece in of_text
        ]
        scores = iter(super().score([part for part, _ in parts], advance))
        starts = iter(start for _, start in parts)
        return [_joined([_learnt(next(scores), next(starts), p) for p in cuts]) for cuts in pieces]


def _characters(text: str, piece: Piece) -> tuple[str, int]:
    """Cuts a piece out of a text, extended to whole characters, with the byte of its start."""
    data = text.encode()
    start, stop = piece.first_byte, piece.end_byte
    while data[start] & 0xC0 == 0x80:
        start -= 1
    while stop < len(data) and data[stop] & 0xC0 == 0x80:
        stop += 1
    return data[start:stop].decode(), start


def _learnt(scores: DocumentScores, start: int, piece: Piece) -> DocumentScores:
    """Keeps the tokens inside what the student learns, with spans in the document."""
    assert scores.candidates is not None
    spans = scores.spans + np.int32(start)
    is_learnt = (spans[:, 0] >= piece.learnt_from) & (spans[:, 1] <= piece.end_byte)
    kept = np.flatnonzero(is_learnt)
    candidates = scores.candidates[kept]
    return replace(scores, spans=spans[kept], nll=scores.nll[kept], candidates=candidates)


def _joined(parts: list[DocumentScores]) -> DocumentScores:
    """Makes the scores of a document of those of its pieces."""
    if not parts:
        return DocumentScores.none("no row of the student holds it")
    return DocumentScores(
        np.concatenate([part.spans for part in parts]),
        np.concatenate([part.nll for part in parts]),
        num_unscored=sum(part.num_unscored for part in parts),
        candidates=Candidates.concatenate([part.candidates for part in parts if part.candidates]),
    )


def main() -> None:
    """Writes the store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("rows", type=Path, help="the student's rows of this text")
    parser.add_argument("teacher", help="a model's folder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    config = TeacherConfig(
        model=options.teacher,
        context=512,
        min_context=128,
        batch_tokens=2048,
        dtype=options.dtype,
        candidates=8,
        sampled=True,
    )
    teacher = ConfiguredTeacher(config, Path(".cache/vocagno"), local_device())
    rows = RowStore(options.rows)
    pieces = pieces_of(rows)
    made_from = teacher.made_from | {"pieces": digest(*map(repr, sorted(pieces.items())))}
    load = partial(PieceTeacher, teacher.load(), pieces)
    score_corpus(scan(options.text), options.out, made_from, load, show_progress=True)


if __name__ == "__main__":
    main()
