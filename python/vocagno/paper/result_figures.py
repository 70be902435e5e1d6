"""Tables and figures of scores on benchmarks, and of what an option of training does."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.errors import InputError
from vocagno.paper.outputs import add_out, answer, check_out, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vocagno.evaluation.results import ResultTable
    from vocagno.paper.comparisons import AlignedStudent, GuidedStudents

_FILES = "CSV or JSON in the form of vocagno.evaluation.results"


def add_table(parser: Any) -> None:
    """Put scores together in a table like the paper's, with averages, the best ones bold."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="CSV, JSON")
    parser.add_argument(
        "--out", type=Path, help="write .md and .csv: either file, or a folder for both"
    )
    parser.add_argument("--title", type=str, help="line above the table in the .md")


def table(options: Any) -> dict[str, Any] | None:
    """Writes Markdown and CSV with --out; the table as data, or as Markdown."""
    from vocagno.evaluation.result_tables import as_markdown
    from vocagno.paper.paper_averages import read_paper_results

    found = read_paper_results(options.files)
    for line in found.disagreements():
        print(line, file=sys.stderr)
    files: list[Path] = []
    if options.out is not None:
        stem = _stem(options.out, options.files[0])
        read = {path.resolve() for path in options.files}
        if stem.with_name(f"{stem.name}.csv").resolve() in read:
            raise InputError(f"--out: {stem}.csv is read, and would be overwritten; name another")
        files = write_tables(stem, found, options.title)
    if options.json:
        return {
            "files": [str(file) for file in files],
            "disagreements": found.disagreements(),
            "rows": [
                {
                    **result.labels,
                    "scores": dict(result.percentages),
                    "averages": {name: found.average(result, name) for name in found.averages},
                }
                for result in found.results
            ],
        }
    print(as_markdown(found), end="")
    print(*files, sep="\n", end="\n" if files else "", file=sys.stderr)
    return None


def _stem(out: Path, first: Path) -> Path:
    """The path of both files without their suffixes."""
    if out.suffix in (".md", ".csv"):
        return out.with_suffix("")
    if out.suffix and not out.is_dir():
        raise InputError(f"--out: expected a file ending in .md or .csv, or a folder, got {out}")
    return out / first.stem


def write_tables(stem: Path, found: "ResultTable", title: str | None) -> list[Path]:
    """Writes STEM.md, with the title above the table, and STEM.csv."""
    from vocagno.evaluation.result_tables import write_csv, write_markdown

    markdown, data = (stem.with_name(stem.name + suffix) for suffix in (".md", ".csv"))
    write_markdown(markdown, found, title=title)
    write_csv(data, found)
    return [markdown, data]


def add_teachers(parser: Any) -> None:
    """Draw students' scores by teacher, ours next to the baselines (Fig. 4)."""
    _add_teachers(parser, "teachers.svg", own="?")


def add_gains(parser: Any) -> None:
    """Draw what students gain against their teachers' own scores (Fig. 5)."""
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
    """Writes figure and CSV; the comparison as data, or a table of it."""
    from vocagno.paper.figures.scores import draw_scores

    return _compare_teachers(options, draw_scores)


def gains(options: Any) -> dict[str, Any] | None:
    """As `teachers`."""
    from vocagno.paper.figures.scores import draw_gains

    return _compare_teachers(options, draw_gains)


def _compare_teachers(
    options: Any, draw: "Callable[[GuidedStudents], Figure]"
) -> dict[str, Any] | None:
    from vocagno.paper.comparisons import compare_teachers
    from vocagno.paper.paper_averages import read_paper_results

    check_out(options.out)
    own = options.teachers and read_paper_results([options.teachers])
    students = read_paper_results([options.students])
    found = compare_teachers(students, own, column=options.column, naive=options.naive)
    files = write_points_figure(draw(found), found.students, options.out)
    lines = [["teacher", "its own", "method", "student", f"above {found.naive}"]]
    for one in found.students:
        scores = _percent(one.teacher_score), _percent(one.score)
        lines.append([one.teacher, scores[0], one.method, scores[1], f"{one.gain:+.1f}"])
    return answer(options, files, {"points": [*map(asdict, found.students)]}, lines)


def add_granularity_scores(parser: Any) -> None:
    """Draw students' scores against IoU and IoS of their alignment (Fig. 6)."""
    parser.add_argument(
        "students", type=Path, help=f"as Table 2, with guidance and chunks: {_FILES}"
    )
    parser.add_argument("overlaps", type=Path, help="CSV of the command `granularity`")
    parser.add_argument("--teacher", type=str, help="whose rows of the latter, if it has several")
    _add_column_and_out(parser, "granularity-scores.svg")


def granularity_scores(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; the joined rows as data, or a table of them."""
    check_out(options.out)
    given = options.students, options.overlaps, options.teacher
    found, files = write_granularity_scores(*given, options.column, options.out)
    lines = [["guidance", "chunks", "IoU", "IoS", options.column]]
    for one in found:
        shares = f"{one.iou:.1%}", f"{one.ios:.1%}"
        lines.append([one.guidance, str(one.chunks or "-"), *shares, _percent(one.score)])
    return answer(options, files, {"points": [*map(asdict, found)]}, lines)


def write_granularity_scores(
    students: Path, overlaps: Path, teacher: str | None, column: str, out: Path
) -> "tuple[list[AlignedStudent], tuple[Path, Path]]":
    """Joins scores and overlaps; writes the figure, and the numbers next to it."""
    from vocagno.paper.comparisons import compare_granularities
    from vocagno.paper.figures.scores import draw_granularity_scores
    from vocagno.paper.paper_averages import read_paper_results

    table = read_paper_results([students])
    found = compare_granularities(table, overlaps, teacher=teacher, column=column)
    return found, write_points_figure(draw_granularity_scores(found, column), found, out)


def add_sweep(parser: Any) -> None:
    """Draw what an option does, from runs that differ in it, their seeds and teachers (Fig. 7)."""
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="the `output` of a training run"
    )
    parser.add_argument(
        "--option", type=str, required=True, help="guidance.top_fraction, say: numbers in all runs"
    )
    parser.add_argument(
        "--column",
        type=str,
        default="validation_loss",
        help="the last validation loss, or a benchmark or average in the results.json of each run",
    )
    add_out(parser, "sweep.svg")


def sweep(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV (a line a run); the points as data, or a table of them."""
    from vocagno.paper.figures.scores import draw_sweep
    from vocagno.paper.sweeps import read_sweep

    check_out(options.out)
    found = read_sweep(options.folders, options.option, quantity=options.column)
    files = write_points_figure(draw_sweep(found), found.runs, options.out)
    lines = [["teacher", found.option, found.quantity, "lowest", "highest", "runs"]]
    for point in found.points:
        losses = (f"{value:.4f}" for value in (point.mean, point.lowest, point.highest))
        lines.append([point.teacher, f"{point.x:g}", *losses, str(point.runs)])
    return answer(options, files, {"points": [*map(asdict, found.points)]}, lines)


def write_points_figure(figure: "Figure", points: Sequence[Any], out: Path) -> tuple[Path, Path]:
    """Writes a figure, and its points (dataclasses of one kind) next to it."""
    from vocagno.paper.comparisons import write_points

    return write_figure(figure, out, lambda path: write_points(path, points))


def _percent(value: float | None) -> str:
    from vocagno.evaluation.result_tables import one_decimal

    return "-" if value is None else one_decimal(value)
