"""One student's vocabulary overlap with several teachers, beside the teachers' scores."""

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
        return {
            "teacher": self.teacher,
            **self.overlap.as_dict(),
            "score": self.score,
            "model": self.model,
        }


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
        is no number; OSError.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or []
        for column in (_NAME, _SCORE):
            if column not in columns:
                raise InputError(
                    f"{path}: no column `{column}`; expected `{_NAME}` and `{_SCORE}`, got "
                    f"{', '.join(columns) or 'nothing'}"
                )
        cells: dict[str, str | None] = {}
        for row in reader:
            if row[_NAME] in teachers and row[_NAME] in cells:
                raise InputError(f"{path}: {row[_NAME]} is there twice; leave one row of it")
            cells[row[_NAME]] = row[_SCORE]
    return [_score(path, teacher, cells) for teacher in teachers]


def _score(path: Path, teacher: str, cells: dict[str, str | None]) -> float:
    if teacher not in cells:
        raise InputError(
            f"{path}: no row for the teacher {teacher}; it has {', '.join(cells) or 'none'}"
        )
    try:
        score = float(cells[teacher] or "")
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(
            f"{path}: expected a number as `{_SCORE}` of {teacher}, got {cells[teacher]!r}"
        )
    return score


def write_csv(path: Path, student: str, found: Sequence[TeacherOverlap]) -> None:
    """Writes counts and shares of all teachers, at least one; an unknown score is empty."""
    rows = [{"student": student, **one.as_dict()} for one in found]
    write_table(path, [[*rows[0]], *([*row.values()] for row in rows)])
