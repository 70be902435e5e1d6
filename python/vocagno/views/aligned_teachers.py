"""One text under a student's tokenizer and under several teachers', with the mapping to each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vocagno.system.files import write_table
from vocagno.tokens.token_spans import TokenSpans
from vocagno.views.aligned_text import AlignedText, align_text
from vocagno.views.statistics import Link

COLUMNS = (
    "student", "teacher", "row", "token", "id", "start", "end", "link", "first", "stop",
    "teacher_tokens",
)  # fmt: skip
"""Of the CSV: a line a student token and teacher. `start` and `end` in bytes of the text, `first`
and `stop` a half-open range of the teacher's tokens, which `teacher_tokens` has as a JSON list."""


def align_teachers(
    student: tuple[str, TokenSpans], teachers: Mapping[str, TokenSpans], text: str
) -> list[AlignedText]:
    """Aligns a text once for each teacher; tokenizers bear the given names in the results.

    Raises: as `TokenSpans.encode`.
    """
    name, spans = student
    found = []
    for other, teacher in teachers.items():
        one = align_text(spans, teacher, text)
        sides = (replace(one.student, tokenizer=name), replace(one.teacher, tokenizer=other))
        found.append(replace(one, student=sides[0], teacher=sides[1]))
    return found


def write_csv(path: Path, found: Sequence[AlignedText]) -> None:
    """Writes a line for each student token and teacher under `COLUMNS`."""
    write_table(path, [COLUMNS, *(_cells(one, row) for one in found for row in _rows(one))])


def _rows(one: AlignedText) -> range:
    return range(len(one.student.ids))


def _cells(one: AlignedText, row: int) -> list[Any]:
    start, end = one.student.spans[row].tolist()
    first, stop = one.mapping[row].tolist()
    mapped: list[Any] = [None, None, None]
    if first >= 0:
        tokens = one.teacher.tokens[first:stop]
        mapped = [first, stop, json.dumps(tokens, ensure_ascii=False)]
    return [
        one.student.tokenizer, one.teacher.tokenizer, row, one.student.tokens[row],
        int(one.student.ids[row]), start, end, Link(one.links[row]).name.lower(), *mapped,
    ]  # fmt: skip
