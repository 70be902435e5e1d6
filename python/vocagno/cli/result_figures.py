"""Figures of scores on benchmarks, and of what an option of training does."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.cli.drawing import add_out, check_out, draw_with_numbers
from vocagno.system.text_tables import in_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vocagno.paper.comparisons import AlignedStudent, GuidedStudents

_FILES = "CSV or JSON in the form of vocagno.evaluation.results"


def add_teachers(parser: Any) -> None:
    """Draws students' scores by teacher, ours beside the baselines (the paper's Fig. 4)."""
    _add_teachers(parser, "teachers.svg", own="?")


def add_gains(parser: Any) -> None:
    """Draws what students gain against their teachers' own scores (the paper's Fig. 5)."""
    _add_teachers(parser, "gains.svg", own=None)


def _add_teachers(parser: Any, out: str, own: str | None) -> None:
    parser.add_argument("students", type=Path, help=f"as Table 1, with model and method: {_FILES}")
    parser.add_argument(
        "teachers", type=Path, nargs=own, help="as Table 4, with teacher: the teachers' own scores"
    )
    parser.add_argument(
        "--naive", type=str, default="TinyLlama-CPT", help="`model` of naive pretraining"
    )
    _add_column_and_out(parser, out)


def _add_column_and_out(parser: Any, out: str) -> None:
    parser.add_argument("--column", type=str, default="AVG", help="a benchmark or an average")
    add_out(parser, out)


def teachers(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; gives the comparison as data, or prints it as a table."""
    from vocagno.paper.figures.students import draw_scores

    return _compare_teachers(options, draw_scores)


def gains(options: Any) -> dict[str, Any] | None:
    """As `teachers`."""
    from vocagno.paper.figures.students import draw_gains

    return _compare_teachers(options, draw_gains)


def _compare_teachers(
    options: Any, draw: "Callable[[GuidedStudents], Figure]"
) -> dict[str, Any] | None:
    from vocagno.evaluation.results import read_results
    from vocagno.paper.comparisons import compare_teachers

    check_out(options.out)
    own = options.teachers and read_results([options.teachers])
    found = compare_teachers(
        read_results([options.students]), own, column=options.column, naive=options.naive
    )
    files = draw_and_write(draw(found), found.students, options.out)
    head = ("teacher", "its own", "method", "student", f"above {found.naive}")
    lines = [
        (s.teacher, _percent(s.teacher_score), s.method, _percent(s.score), f"{s.gain:+.1f}")
        for s in found.students
    ]
    return _shown(options, files, [asdict(student) for student in found.students], [head, *lines])


def add_granularity_scores(parser: Any) -> None:
    """Draws students' scores against IoU and IoS of their alignment (the paper's Fig. 6)."""
    parser.add_argument(
        "students", type=Path, help=f"as Table 2, with guidance and chunks: {_FILES}"
    )
    parser.add_argument("overlaps", type=Path, help="CSV of `vocagno granularity --out`")
    parser.add_argument("--teacher", type=str, help="whose rows of the latter, if it has several")
    _add_column_and_out(parser, "granularity-scores.svg")


def granularity_scores(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; gives the joined rows as data, or prints them as a table."""
    check_out(options.out)
    found, figure = join_granularities(
        options.students, options.overlaps, options.teacher, options.column
    )
    files = draw_and_write(figure, found, options.out)
    head = ("guidance", "chunks", "IoU", "IoS", options.column)
    lines = [
        (one.guidance, str(one.chunks or "-"), f"{one.iou:.1%}", f"{one.ios:.1%}",
         _percent(one.score))
        for one in found
    ]  # fmt: skip
    return _shown(options, files, [asdict(one) for one in found], [head, *lines])


def join_granularities(
    students: Path, overlaps: Path, teacher: str | None, column: str
) -> "tuple[list[AlignedStudent], Figure]":
    from vocagno.evaluation.results import read_results
    from vocagno.paper.comparisons import compare_granularities
    from vocagno.paper.figures.granularity_scores import draw_granularity_scores

    found = compare_granularities(
        read_results([students]), overlaps, teacher=teacher, column=column
    )
    return found, draw_granularity_scores(found, column)


def add_sweep(parser: Any) -> None:
    """Draws what an option does, from runs that differ in it, seeds and teachers aside (Fig. 7)."""
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="the `output` of a training run"
    )
    parser.add_argument(
        "--option", type=str, required=True, help="guidance.top_fraction, say: numbers in all runs"
    )
    parser.add_argument(
        "--column", type=str, default="validation_loss",
        help="the last validation loss, or a benchmark or average in the results.json of each run",
    )  # fmt: skip
    add_out(parser, "sweep.svg")


def sweep(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV (a line a run); gives the points as data, or prints them as a table."""
    from vocagno.paper.figures.sweep import draw_sweep
    from vocagno.paper.sweeps import read_sweep

    check_out(options.out)
    found = read_sweep(options.folders, options.option, quantity=options.column)
    files = draw_and_write(draw_sweep(found), found.runs, options.out)
    head = ("teacher", found.option, found.quantity, "lowest", "highest", "runs")
    lines = [
        (p.teacher, f"{p.x:g}", f"{p.mean:.4f}", f"{p.lowest:.4f}", f"{p.highest:.4f}", f"{p.runs}")
        for p in found.points
    ]
    return _shown(options, files, [asdict(point) for point in found.points], [head, *lines])


def draw_and_write(figure: "Figure", points: Sequence[Any], out: Path) -> list[Path]:
    """Writes a figure, and the numbers beside it."""
    from vocagno.paper.comparisons import write_points

    return draw_with_numbers(figure, out, lambda path: write_points(path, points))


def _shown(
    options: Any, files: Sequence[Path], points: list[Any], lines: Sequence[Sequence[str]]
) -> dict[str, Any] | None:
    if options.json:
        return {"figure": str(files[0]), "data": str(files[1]), "points": points}
    print(in_table(lines))
    print(*files, sep="\n", file=sys.stderr)
    return None


def _percent(value: float | None) -> str:
    from vocagno.evaluation.result_tables import one_decimal

    return "-" if value is None else one_decimal(value)
