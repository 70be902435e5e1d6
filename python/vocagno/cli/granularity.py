"""`vocagno granularity`: overlap of equal chunks of two token sequences, and of aligned tokens."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.cli.corpora import (
    CORPUS,
    Named,
    add_student_and_teachers,
    first_documents,
    student_and_teachers,
    tracked,
)
from vocagno.cli.drawing import check_out, draw_with_numbers
from vocagno.errors import InputError
from vocagno.system.text_tables import in_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vocagno.paper.granularity import Granularity

_SHARES = (("IoU", "iou"), ("IoS", "ios"))


def add_granularity(parser: Any) -> None:
    """Measures the overlap of student and teacher chunks, from coarse to fine, and of tokens.

    The paper's Fig. 3: mean IoU and IoS in characters, over sequences of the corpus.
    """
    add_student_and_teachers(parser)
    parser.add_argument("corpus", type=Path, help=CORPUS)
    add_sequences(parser)
    parser.add_argument(
        "--out", type=Path, help="draw it into this .svg or .png; numbers next to it, as .csv"
    )


def add_sequences(parser: Any) -> None:
    """Adds the options that `check_sequences` reads."""
    parser.add_argument("--seq_len", type=int, default=2_048, help="student tokens of a sequence")
    parser.add_argument("--limit", type=int, help="documents to read; default: all")


def check_sequences(options: Any) -> None:
    """Raises: InputError for a length or a limit below 1."""
    if options.limit is not None and options.limit < 1:
        raise InputError(f"--limit: expected at least 1 document, got {options.limit}")
    if options.seq_len < 1:
        raise InputError(f"--seq_len: expected at least 1 token, got {options.seq_len}")


def granularity(options: Any) -> dict[str, Any] | None:
    """Measures, draws with `--out`, and returns the levels as data or prints them as tables."""
    check_sequences(options)
    if options.out is not None:
        check_out(options.out)
    found = measured(*student_and_teachers(options), options)
    files = [] if options.out is None else drawn(options.out, found)
    if options.json:
        return {"files": [str(file) for file in files], "teachers": [g.as_dict() for g in found]}
    print(_tables(found))
    print(_facts(found[0]), *files, sep="\n", file=sys.stderr)
    return None


def measured(student: Named, teachers: "Sequence[Named]", options: Any) -> "list[Granularity]":
    """Measures each teacher on `options.corpus`, in the sequences of `add_sequences`."""
    from vocagno.data.corpus import read_batches
    from vocagno.paper.granularity import granularity as measure

    found = []
    for teacher in teachers:
        batches = first_documents(read_batches(options.corpus), options.limit)
        batches = tracked(batches, f"{student.name} and {teacher.name}:")
        one = measure(student.spans, teacher.spans, batches, seq_len=options.seq_len)
        found.append(replace(one, student=student.name, teacher=teacher.name))
    return found


def drawn(out: Path, found: "Sequence[Granularity]") -> list[Path]:
    """Writes the figure, and its numbers next to it."""
    from vocagno.paper.figures.granularity import draw_granularity
    from vocagno.paper.granularity import write_csv

    return draw_with_numbers(draw_granularity(found), out, lambda path: write_csv(path, found))


def _tables(found: "Sequence[Granularity]") -> str:
    """IoU, then IoS: a line for each granularity, a column for each teacher."""
    return "\n\n".join(_table(found, title, share) for title, share in _SHARES)


def _table(found: "Sequence[Granularity]", title: str, share: str) -> str:
    header = [title, *(one.teacher for one in found)]
    lines = [
        [_named(levels[0].chunks), *(f"{getattr(level, share):.2%}" for level in levels)]
        for levels in zip(*(one.levels for one in found), strict=True)
    ]
    return in_table([header, *lines])


def _named(chunks: int | None) -> str:
    return "tokens" if chunks is None else f"{chunks:,} chunk{'s'[: chunks != 1]}"


def _facts(one: "Granularity") -> str:
    return (
        f"means in characters over {one.sequences:,} sequences of {one.seq_len:,} tokens of "
        f"{one.student} ({one.documents:,} documents; {one.left_out_tokens:,} tokens at the end "
        "are skipped)"
    )
