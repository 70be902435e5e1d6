"""A student next to several teachers: shared vocabularies, one text aligned to each."""

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
"""Of the CSV, with a line for each student token and teacher. `start` and `end` are in bytes.
`first` and `stop` are a half-open range of the teacher's tokens, in `teacher_tokens` as JSON."""


def write_overlaps(path: Path, student: str, found: Mapping[str, VocabularyOverlap]) -> None:
    """Writes counts and shares of all teachers, at least one (Fig. 1 of arXiv 2503.19123)."""
    rows = [{"student": student, "teacher": name, **one.as_dict()} for name, one in found.items()]
    write_table(path, [[*rows[0]], *([*row.values()] for row in rows)])


def align_teachers(
    student: tuple[str, TokenSpans], teachers: Mapping[str, TokenSpans], text: str
) -> list[AlignedText]:
    """Aligns a text once for each teacher. The results have the given names of the tokenizers."""
    name, spans = student
    found = []
    for other, teacher in teachers.items():
        one = align_text(spans, teacher, text)
        sides = (replace(one.student, tokenizer=name), replace(one.teacher, tokenizer=other))
        found.append(replace(one, student=sides[0], teacher=sides[1]))
    return found


def write_aligned(path: Path, found: Sequence[AlignedText]) -> None:
    """Writes a line for each student token and teacher under `COLUMNS`."""
    write_table(path, [COLUMNS, *(line for one in found for line in _aligned_lines(one))])


def _aligned_lines(one: AlignedText) -> Iterator[list[Any]]:
    names = one.student.tokenizer, one.teacher.tokenizer
    mapping = one.mapping.tolist()
    for row, (token, (first, stop)) in enumerate(zip(one.student.rows, mapping, strict=True)):
        mapped: list[Any] = [None, None, None]
        if first >= 0:
            tokens = one.teacher.tokens[first:stop]
            mapped = [first, stop, json.dumps(tokens, ensure_ascii=False)]
        yield [*names, row, *token, Link(one.links[row]).name.lower(), *mapped]
