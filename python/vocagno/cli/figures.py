"""Figures of runs, vocabularies and tokens, as PNG or SVG with the numbers behind them as CSV."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.cli.corpora import add_student_and_teachers, student_and_teachers
from vocagno.cli.drawing import add_out, check_out, draw_with_numbers
from vocagno.system.text_tables import in_table

if TYPE_CHECKING:
    from vocagno.paper.vocabulary_overlaps import TeacherOverlap
    from vocagno.training.run_log import Run
    from vocagno.views.aligned_text import AlignedText

_COLUMNS = ("run", "steps", "tokens", "loss", "validation", "best validation", "tokens/s")

_TOKEN_COLUMNS = ("tokenizer", "tokens", "1:1", "1:N", "N:1")

PAPERS_TEXT = "Probability, Uncertainty"
"""Of Fig. 2 of arXiv 2503.19123."""

_SHARE_COLUMNS = (
    *("teacher", "vocabulary", "shared strings", "of it", "as bytes", "of the student's"),
    "score",
)


def add_run(parser: Any) -> None:
    """Draws the learning curves of training runs, and compares them in a table."""
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="the `output` of a training run"
    )
    add_out(parser, "curves.svg")


def run(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; gives the comparison as data, or prints it as a table."""
    from vocagno.training.run_log import read_runs

    check_out(options.out)
    runs = read_runs(options.folders)
    figure, data = draw_runs(runs, options.out)
    if options.json:
        return {"figure": str(figure), "data": str(data), "runs": [run.as_dict() for run in runs]}
    print(in_table([_COLUMNS, *(_line(run.as_dict()) for run in runs)]))
    print(f"{figure}\n{data}", file=sys.stderr)
    return None


def draw_runs(runs: "Sequence[Run]", out: Path) -> list[Path]:
    """Writes the learning curves, and the numbers beside them."""
    from vocagno.paper.figures.learning_curves import draw_learning_curves
    from vocagno.training.run_log import write_csv

    figure, _ = draw_learning_curves(runs)
    return draw_with_numbers(figure, out, lambda path: write_csv(path, runs))


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
    add_student_and_teachers(parser)
    parser.add_argument(
        "--scores", type=Path, help="the teachers' own, beside it: CSV with `teacher` and `AVG`"
    )
    add_out(parser, "overlap.svg")


def overlap(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; gives the overlaps as data, or prints them as a table."""
    from vocagno.paper.vocabulary_overlaps import read_scores, share_with_each

    check_out(options.out)
    student, teachers = student_and_teachers(options)
    shared = share_with_each(student.spans, dict(teachers))
    if options.scores is not None:
        scores = read_scores(options.scores, [one.teacher for one in shared])
        shared = [replace(one, score=score) for one, score in zip(shared, scores, strict=True)]
    figure, data = draw_shared(student.name, shared, options.out)
    if options.json:
        shares = [one.as_dict() for one in shared]
        files = {"figure": str(figure), "data": str(data)}
        return {**files, "student": student.name, "teachers": shares}
    print(in_table([_SHARE_COLUMNS, *map(_share_line, shared)]))
    print(f"{figure}\n{data}", file=sys.stderr)
    return None


def draw_shared(student: str, shared: "Sequence[TeacherOverlap]", out: Path) -> list[Path]:
    """Writes the bars, and the numbers beside them."""
    from vocagno.paper.figures.vocabulary_overlap import draw_vocabulary_overlap
    from vocagno.paper.vocabulary_overlaps import write_csv

    figure = draw_vocabulary_overlap(student, shared)
    return draw_with_numbers(figure, out, lambda path: write_csv(path, student, shared))


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


def add_tokens(parser: Any) -> None:
    """Draws how a student and its teachers cut one text, and what is mapped to what (Fig. 2)."""
    add_student_and_teachers(parser)
    parser.add_argument("--text", type=str, default=PAPERS_TEXT, help="up to a hundred characters")
    add_out(parser, "tokens.svg")


def tokens(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; gives the alignments as data, or prints their counts as a table."""
    from vocagno.paper.aligned_teachers import align_teachers

    check_out(options.out)
    student, teachers = student_and_teachers(options)
    found = align_teachers(student, dict(teachers), options.text)
    figure, data = draw_aligned(found, options.out)
    if options.json:
        aligned = [one.as_dict() for one in found]
        return {"figure": str(figure), "data": str(data), "teachers": aligned}
    lines = [(student.name, f"{len(found[0].student.ids):,}", *"---"), *map(_token_line, found)]
    print(in_table([_TOKEN_COLUMNS, *lines]))
    print(f"{figure}\n{data}", file=sys.stderr)
    return None


def draw_aligned(found: "Sequence[AlignedText]", out: Path) -> list[Path]:
    """Writes the rows of tokens with their links, and the mapping beside them."""
    from vocagno.paper.aligned_teachers import write_csv
    from vocagno.paper.figures.tokens import draw_tokens

    return draw_with_numbers(draw_tokens(found), out, lambda path: write_csv(path, found))


def _token_line(one: "AlignedText") -> tuple[str, ...]:
    links = (one.counts[link] for link in ("one_to_one", "one_to_many", "many_to_one"))
    return (one.teacher.tokenizer, f"{len(one.teacher.ids):,}", *(f"{count:,}" for count in links))
