"""One student's vocabulary overlap with several teachers, and the teachers' scores."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocagno.errors import InputError
from vocagno.system.files import write_table
from vocagno.tokens.token_spans import TokenSpans
from vocagno.views.statistics import VocabularyOverlap, vocabulary_overlap

_NAME, _SCORE = "teacher", "AVG"


@dataclass(frozen=True, slots=True)
class TeacherOverlap:
    """What the student shares with one teacher (Fig. 1 of arXiv 2503.19123)."""

    teacher: str
    overlap: VocabularyOverlap
    score: float | None = None
    """The teacher's own score, in the unit of the file it comes from."""
    model: str | None = None
    """Whose score it is, where `teacher` names a tokenizer that stands for a model's."""

    def as_dict(self) -> dict[str, Any]:
        """Name, counts, shares, score and whose it is, as JSON has them."""
        shared = self.overlap.as_dict()
        return {"teacher": self.teacher, **shared, "score": self.score, "model": self.model}


def share_with_each(
    student: TokenSpans, teachers: Mapping[str, TokenSpans]
) -> list[TeacherOverlap]:
    """What a student shares with teachers of these names; they have no scores yet."""
    return [
        TeacherOverlap(name, vocabulary_overlap(student, teacher))
        for name, teacher in teachers.items()
    ]


def read_scores(path: Path, teachers: Sequence[str]) -> list[float]:
    """The scores of the teachers, from a CSV file with the columns `teacher` and `AVG`.

    Other columns, and rows of other teachers, are not looked at.
    Raises: InputError for a column or teacher that is missing or there twice, and for a score that
        is missing, NaN or infinite; OSError.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        columns, rows = reader.fieldnames or ["nothing"], list(reader)
    for column in (_NAME, _SCORE):
        if column not in columns:
            raise InputError(
                f"{path}: no column `{column}`; expected `{_NAME}` and `{_SCORE}`, got "
                f"{', '.join(columns)}"
            )
    return [_score(path, teacher, rows) for teacher in teachers]


def _score(path: Path, teacher: str, rows: Sequence[dict[str, str | None]]) -> float:
    cells = [row[_SCORE] for row in rows if row[_NAME] == teacher]
    if len(cells) > 1:
        raise InputError(f"{path}: {teacher} is there twice; keep one row of it")
    if not cells:
        names = ", ".join(str(row[_NAME]) for row in rows) or "none"
        raise InputError(f"{path}: no row for the teacher {teacher}; it has {names}")
    try:
        score = float(cells[0] or "")
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{path}: expected a number as `{_SCORE}` of {teacher}, got {cells[0]!r}")
    return score


def write_csv(path: Path, student: str, found: Sequence[TeacherOverlap]) -> None:
    """Writes counts and shares of all teachers, at least one; an unknown score is empty."""
    rows = [{"student": student, **one.as_dict()} for one in found]
    write_table(path, [[*rows[0]], *([*row.values()] for row in rows)])
