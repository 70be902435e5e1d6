"""Stored scores of texts that must all have some."""

from collections.abc import Sequence

from vocagno.errors import InputError
from vocagno.teacher.score_store import DocumentScores, ScoresOfTexts, ScoreStore


def scores_of(store: ScoreStore, texts: Sequence[str]) -> list[DocumentScores]:
    """Reads the scores of each text; those of an empty text are empty.

    Raises: InputError, which names store, text and reason, for a text that was not scored or that
        the teacher could not read.
    """
    scores = ScoresOfTexts(store).find(texts)
    for text, of_text in zip(texts, scores, strict=True):
        if text and of_text.missing:
            raise InputError(f"{store.folder}: has no scores of {text[:40]!r}: {of_text.missing}")
    return scores
