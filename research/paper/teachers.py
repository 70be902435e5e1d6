"""Compares a student with several teachers: shared vocabularies, and one text aligned to each."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from research.tables import write_table
from vocagno.tokens.token_spans import TokenSpans
from vocagno.views.statistics import Link, VocabularyOverlap
from vocagno.views.texts import AlignedText, align_text

COLUMNS = (
    *("student", "teacher", "row", "token", "id", "start", "end", "link", "first", "stop"),
    "teacher_tokens",
)
"""The columns of the CSV, which has a line for each student token and teacher. `start` and `end`
are in bytes. `first` and `stop` are a half-open range of the teacher's tokens, which
`teacher_tokens` holds as JSON."""


def write_overlaps(path: Path, student: str, overlaps: Mapping[str, VocabularyOverlap]) -> None:
    """Writes counts and shares of all teachers, at least one (Fig. 1 of arXiv 2503.19123)."""
    rows = [
        {"student": student, "teacher": name, **overlap.as_dict()}
        for name, overlap in overlaps.items()
    ]
    write_table(path, [[*rows[0]], *([*row.values()] for row in rows)])


def align_teachers(
    student: tuple[str, TokenSpans], teachers: Mapping[str, TokenSpans], text: str
) -> list[AlignedText]:
    """Aligns a text once for each teacher. The results carry the names passed here."""
    name, spans = student
    alignments = []
    for teacher_name, teacher in teachers.items():
        alignment = align_text(spans, teacher, text)
        named_student = replace(alignment.student, tokenizer=name)
        named_teacher = replace(alignment.teacher, tokenizer=teacher_name)
        alignments.append(replace(alignment, student=named_student, teacher=named_teacher))
    return alignments


def write_aligned(path: Path, alignments: Sequence[AlignedText]) -> None:
    """Writes a line for each student token and teacher under `COLUMNS`."""
    lines = (line for alignment in alignments for line in _aligned_lines(alignment))
    write_table(path, [COLUMNS, *lines])


def _aligned_lines(alignment: AlignedText) -> Iterator[list[Any]]:
    names = alignment.student.tokenizer, alignment.teacher.tokenizer
    mapping = alignment.mapping.tolist()
    for row, (token, (first, stop)) in enumerate(zip(alignment.student.rows, mapping, strict=True)):
        mapped: list[Any] = [None, None, None]
        if first >= 0:
            tokens = alignment.teacher.tokens[first:stop]
            mapped = [first, stop, json.dumps(tokens, ensure_ascii=False)]
        yield [*names, row, *token, Link(alignment.links[row]).name.lower(), *mapped]
