"""Guided students compared: by their teachers, and by how finely they were aligned."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from vocagno.errors import InputError
from vocagno.evaluation.results import Result, ResultError, ResultTable, read_csv_lines
from vocagno.system.files import write_table

GUIDED = "S + "
"""What the `model` of a student begins with, before the name of its teacher (as in Table 1)."""

OURS = "Ours"
"""The `method` of this paper; others are the baselines on distributions."""

TOKENS = "token"
"""How a granularity file calls the level of tokens; a table of results has `-` there."""

_LONG_NAMES = {"Qwen2.5-Math-Inst": "Qwen2.5-Math-Instruct"}
"""Names that Table 1 shortens, as Table 4 has them."""


@dataclass(frozen=True, slots=True)
class GuidedStudent:
    """A student's score under a teacher, in percent, as are all of these."""

    teacher: str
    method: str
    score: float
    gain: float
    """Percentage points above the student of naive pretraining."""
    teacher_score: float | None
    """The teacher's own, where it is known."""


@dataclass(frozen=True, slots=True)
class GuidedStudents:
    """Students of several teachers, the weakest teacher first and unknown ones before it."""

    column: str
    """The average or benchmark that is compared."""
    naive: str
    naive_score: float
    students: tuple[GuidedStudent, ...]

    @property
    def teachers(self) -> list[str]:
        return list(dict.fromkeys(student.teacher for student in self.students))

    @property
    def methods(self) -> list[str]:
        """The baselines, then ours."""
        return sorted(dict.fromkeys(s.method for s in self.students), key=lambda m: m == OURS)

    def of(self, method: str) -> list[GuidedStudent]:
        return [student for student in self.students if student.method == method]


def compare_teachers(
    students: ResultTable,
    teachers: ResultTable | None = None,
    *,
    column: str = "AVG",
    naive: str = "TinyLlama-CPT",
) -> GuidedStudents:
    """The students of a table in the form of Table 1, with their teachers' scores from Table 4.

    Args:
        naive: `model` of the row of naive pretraining, in `students`; as a teacher's name too it
            stands for that row.
    Raises: ResultError if a label is missing, or no such row has a score.
    """
    _require_labels(students, ("model", "method"))
    own = scores_by(students, "model", column)
    if teachers is not None:
        _require_labels(teachers, ("teacher",))
        own |= scores_by(teachers, "teacher", column)
    if naive not in own:
        raise ResultError(f"no row whose `model` is {naive} has a score under {column}")
    found = []
    for result in students.results:
        score = students.value(result, column)
        if score is None or not result.labels["model"].startswith(GUIDED):
            continue
        name = result.labels["model"].removeprefix(GUIDED)
        teacher = _LONG_NAMES.get(name, name)
        gain = score - own[naive]
        found.append(GuidedStudent(teacher, result.labels["method"], score, gain, own.get(teacher)))
    if not found:
        raise ResultError(f"no row whose `model` begins with `{GUIDED}` has a score under {column}")
    found.sort(key=lambda student: -1.0 if student.teacher_score is None else student.teacher_score)
    return GuidedStudents(column, naive, own[naive], tuple(found))


def scores_by(table: ResultTable, label: str, column: str) -> dict[str, float]:
    """The scores under a column by a label of the rows, of those that have both."""
    values = {result.labels.get(label): table.value(result, column) for result in table.results}
    return {name: value for name, value in values.items() if name is not None and value is not None}


def _require_labels(table: ResultTable, labels: Sequence[str]) -> None:
    for result in table.results:
        if missing := [label for label in labels if label not in result.labels]:
            raise ResultError(
                f"{result.where}: no column `{missing[0]}`; expected {' and '.join(labels)}"
            )


@dataclass(frozen=True, slots=True)
class AlignedStudent:
    """A student's score, and how well the chunks or tokens that it was guided by meet."""

    guidance: str
    """Who chose: the teacher, or chance."""
    chunks: int | None
    """Of a row; None for tokens."""
    iou: float
    ios: float
    score: float
    """Percent; IoU and IoS are shares."""


def compare_granularities(
    students: ResultTable, overlaps: Path, *, teacher: str | None = None, column: str = "AVG"
) -> list[AlignedStudent]:
    """Joins a table in the form of Table 2 with IoU and IoS of the same levels (Fig. 6).

    Args:
        overlaps: CSV with `teacher`, `chunks` (`token` for the level of tokens), `iou` and `ios`,
            as the command `granularity` writes it.
        teacher: whose rows of `overlaps` to take, if it has several.
    Raises: ResultError for a level that has no overlap, or a file of another form.
    """
    _require_labels(students, ("guidance", "chunks"))
    levels = _read_levels(overlaps, teacher)
    found = []
    for result in students.results:
        chunks = _chunks(result)
        score = students.value(result, column)
        if score is None:
            continue
        if chunks not in levels:
            raise ResultError(
                f"{overlaps}: no row of {TOKENS if chunks is None else f'{chunks} chunks'}, which "
                f"{result.where} needs"
            )
        found.append(AlignedStudent(result.labels["guidance"], chunks, *levels[chunks], score))
    if not found:
        raise ResultError(f"{students.results[0].where}: no row has a score under {column}")
    return sorted(found, key=lambda one: (one.guidance, one.chunks is None, one.chunks or 0))


def _chunks(result: Result) -> int | None:
    cell = result.labels["chunks"]
    if cell == "-":
        return None
    if not cell.isascii() or not cell.isdigit():
        raise ResultError(f"{result.where}, chunks: expected a number, or - for tokens: {cell!r}")
    return int(cell)


def _read_levels(path: Path, teacher: str | None) -> dict[int | None, tuple[float, float]]:
    header, *lines = read_csv_lines(path)
    for column in ("teacher", "chunks", "iou", "ios"):
        if column not in header:
            raise ResultError(
                f"{path}: no column `{column}`; expected what `granularity --out` writes"
            )
    rows = [dict(zip(header, line, strict=False)) for line in lines]
    names = list(dict.fromkeys(row.get("teacher", "") for row in rows))
    if not names:
        raise ResultError(f"{path}: a header without rows")
    if teacher is None and len(names) > 1:
        raise ResultError(f"{path}: has several teachers; name one: {', '.join(names)}")
    if teacher is not None and teacher not in names:
        raise ResultError(f"{path}: no teacher {teacher}; it has {', '.join(names)}")
    levels: dict[int | None, tuple[float, float]] = {}
    for number, row in enumerate(rows, 2):
        if row.get("teacher") != (teacher or names[0]):
            continue
        try:
            chunks = None if row["chunks"] == TOKENS else int(row["chunks"])
            levels[chunks] = float(row["iou"]), float(row["ios"])
        except (KeyError, ValueError) as error:
            raise ResultError(
                f"{path}, row {number}: expected numbers as chunks (or {TOKENS}), iou and ios: "
                f"{error}"
            ) from error
    return levels


def write_points(path: Path, points: Sequence[Any]) -> None:
    """Writes dataclasses of one kind as CSV, a column for each field; None is an empty cell.

    Numbers are written to six digits behind the point.
    """
    if not points:
        raise InputError(f"{path}: nothing to write")
    lines: list[list[object]] = [[field.name for field in fields(points[0])]]
    for point in points:
        cells = astuple(point)
        lines.append([round(cell, 6) if isinstance(cell, float) else cell for cell in cells])
    write_table(path, lines)
