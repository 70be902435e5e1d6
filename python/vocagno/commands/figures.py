"""Figures of runs and vocabularies, as PNG or SVG with the numbers behind them as CSV."""

import sys
from pathlib import Path
from typing import Any

from vocagno.commands.corpora import TOKENIZER, short_names
from vocagno.wording import in_table

_COLUMNS = ("run", "steps", "tokens", "loss", "validation", "best validation", "tokens/s")

_SHARE_COLUMNS = (
    "teacher", "vocabulary", "shared strings", "of it", "as bytes", "of the student's", "score"
)  # fmt: skip


def add_run(parser: Any) -> None:
    """Draws the learning curves of training runs, and compares them in a table."""
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="the `output` of a training run"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("curves.svg"),
        help="file for the figure, .svg or .png; the numbers go beside it, as .csv",
    )  # fmt: skip


def run(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; gives the comparison as data, or prints it as a table."""
    from vocagno.figures.learning_curves import draw_learning_curves
    from vocagno.figures.style import check_format, save
    from vocagno.learning_curves import read_runs, write_csv

    out = options.out
    check_format(out, "--out")
    runs = read_runs(options.folders)
    figure, _ = draw_learning_curves(runs)
    data = out.with_suffix(".csv")
    save(figure, out)
    write_csv(data, runs)
    if options.json:
        return {"figure": str(out), "data": str(data), "runs": [run.as_dict() for run in runs]}
    print(in_table([_COLUMNS, *(_line(run.as_dict()) for run in runs)]))
    print(f"{out}\n{data}", file=sys.stderr)
    return None


def _line(found: dict[str, Any]) -> tuple[str, ...]:
    """Of a run, losses in nats a token."""
    losses = ("last_loss", "last_validation_loss", "best_validation_loss")
    return (
        found["run"],
        f"{found['steps']:,}",
        f"{found['tokens']:,}",
        *(_worded(found[name], ".4f") for name in losses),
        _worded(found["mean_tokens_per_s"], ",.0f"),
    )


def _worded(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def add_overlap(parser: Any) -> None:
    """Draws how much of their vocabularies a student and its teachers share.

    The paper's Fig. 1: equal strings, and equal bytes (`▁` and `Ġ` are a space), as bars.
    """
    parser.add_argument("student", type=str, help=f"the student's: {TOKENIZER}")
    parser.add_argument(
        "--teachers", type=str, nargs="+", required=True, metavar="TEACHER", help="tokenizers"
    )
    parser.add_argument(
        "--scores", type=Path, help="the teachers' own, beside it: CSV with `teacher` and `AVG`"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("overlap.svg"),
        help="file for the figure, .svg or .png; the numbers go beside it, as .csv",
    )  # fmt: skip


def overlap(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; gives the overlaps as data, or prints them as a table."""
    from vocagno.figures.style import check_format, save
    from vocagno.figures.vocabulary_overlap import draw_vocabulary_overlap
    from vocagno.metrics import vocabulary_overlap
    from vocagno.token_spans import TokenSpans
    from vocagno.vocabulary_overlaps import TeacherOverlap, read_scores, write_csv

    out = options.out
    check_format(out, "--out")
    names = short_names(options.teachers, "--teachers")
    scores: list[float | None] = [None] * len(names)
    if options.scores is not None:
        scores = [*read_scores(options.scores, names)]
    student = TokenSpans.from_pretrained(options.student)
    (student_name,) = short_names([options.student], "student")
    found = [
        TeacherOverlap(name, vocabulary_overlap(student, TokenSpans.from_pretrained(path)), score)
        for name, path, score in zip(names, options.teachers, scores, strict=True)
    ]
    data = out.with_suffix(".csv")
    save(draw_vocabulary_overlap(student_name, found), out)
    write_csv(data, student_name, found)
    if options.json:
        shares = [one.as_dict() for one in found]
        return {"figure": str(out), "data": str(data), "student": student_name, "teachers": shares}
    print(in_table([_SHARE_COLUMNS, *map(_share_line, found)]))
    print(f"{out}\n{data}", file=sys.stderr)
    return None


def _share_line(one: Any) -> tuple[str, ...]:
    shared = one.overlap
    return (
        one.teacher,
        f"{shared.teacher_size:,}",
        f"{shared.shared_strings:,}",
        f"{shared.string_share:.2%}",
        f"{shared.teacher_byte_share:.1%}",
        f"{shared.student_byte_share:.1%}",
        _worded(one.score, "g"),
    )
