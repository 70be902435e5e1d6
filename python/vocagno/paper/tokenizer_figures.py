"""Figures of tokenizers: shared vocabularies, one text in tokens, chunks against tokens."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.config.commands import CORPUS
from vocagno.errors import InputError
from vocagno.paper.inputs import Named, add_student_and_teachers, student_and_teachers
from vocagno.paper.outputs import add_out, answer, check_out, worded, write_figure
from vocagno.system.terminal import tracked
from vocagno.system.text_tables import in_table

if TYPE_CHECKING:
    from vocagno.paper.granularity import Granularity
    from vocagno.paper.vocabulary_overlaps import TeacherOverlap
    from vocagno.views.aligned_text import AlignedText

PAPERS_TEXT = "Probability, Uncertainty"
"""Of Fig. 2 of arXiv 2503.19123."""


def add_overlap(parser: Any) -> None:
    """Draw how much of their vocabularies a student and its teachers share (Fig. 1).

    Equal strings, and equal bytes (`▁` and `Ġ` are a space), as bars.
    """
    add_student_and_teachers(parser)
    parser.add_argument(
        "--scores", type=Path, help="the teachers' own, drawn too: CSV with `teacher` and `AVG`"
    )
    add_out(parser, "overlap.svg")


def overlap(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; the overlaps as data, or a table of them."""
    from vocagno.paper.vocabulary_overlaps import read_scores, share_with_each

    check_out(options.out)
    student, teachers = student_and_teachers(options)
    shared = share_with_each(student.spans, dict(teachers))
    if options.scores is not None:
        scores = read_scores(options.scores, [one.teacher for one in shared])
        shared = [replace(one, score=score) for one, score in zip(shared, scores, strict=True)]
    files = write_shared(student.name, shared, options.out)
    data = {"student": student.name, "teachers": [one.as_dict() for one in shared]}
    rows = list(map(_share_row, shared))
    return answer(options, files, data, [[*rows[0]], *([*row.values()] for row in rows)])


def write_shared(student: str, shared: "Sequence[TeacherOverlap]", out: Path) -> tuple[Path, Path]:
    """Writes the bars, and the numbers next to them."""
    from vocagno.paper.figures.vocabulary_overlap import draw_vocabulary_overlap
    from vocagno.paper.vocabulary_overlaps import write_csv

    figure = draw_vocabulary_overlap(student, shared)
    return write_figure(figure, out, lambda path: write_csv(path, student, shared))


def _share_row(one: "TeacherOverlap") -> dict[str, str]:
    """Cells by their headings."""
    return {
        "teacher": one.teacher,
        "vocabulary": f"{one.overlap.teacher_size:,}",
        "shared strings": f"{one.overlap.shared_strings:,}",
        "of it": f"{one.overlap.string_share:.2%}",
        "as bytes": f"{one.overlap.teacher_byte_share:.1%}",
        "of the student's": f"{one.overlap.student_byte_share:.1%}",
        "score": worded(one.score, "g"),
    }


def add_tokens(parser: Any) -> None:
    """Draw how a student and its teachers cut one text, and what is mapped to what (Fig. 2)."""
    add_student_and_teachers(parser)
    parser.add_argument("--text", type=str, default=PAPERS_TEXT, help="up to a hundred characters")
    add_out(parser, "tokens.svg")


def tokens(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; the alignments as data, or a table of their counts."""
    from vocagno.paper.aligned_teachers import align_teachers

    check_out(options.out)
    student, teachers = student_and_teachers(options)
    found = align_teachers(student, dict(teachers), options.text)
    files = write_aligned(found, options.out)
    lines = [["tokenizer", "tokens", "1:1", "1:N", "N:1"]]
    lines += [[student.name, f"{len(found[0].student.ids):,}", "-", "-", "-"]]
    for one in found:
        links = (one.counts[link] for link in ("one_to_one", "one_to_many", "many_to_one"))
        counts = (f"{count:,}" for count in (len(one.teacher.ids), *links))
        lines.append([one.teacher.tokenizer, *counts])
    return answer(options, files, {"teachers": [one.as_dict() for one in found]}, lines)


def write_aligned(found: "Sequence[AlignedText]", out: Path) -> tuple[Path, Path]:
    """Writes the rows of tokens with their links, and the mapping next to them."""
    from vocagno.paper.aligned_teachers import write_csv
    from vocagno.paper.figures.tokens import draw_tokens

    return write_figure(draw_tokens(found), out, lambda path: write_csv(path, found))


def add_granularity(parser: Any) -> None:
    """Measure how well chunks of student and teacher meet, and tokens (Fig. 3).

    Mean IoU and IoS in characters, over sequences of a corpus.
    """
    add_student_and_teachers(parser)
    parser.add_argument("corpus", type=str, help=CORPUS)
    add_sequences(parser)
    add_out(parser, None)


def add_sequences(parser: Any) -> None:
    """Adds the options that `check_sequences` looks at."""
    parser.add_argument("--seq_len", type=int, default=2_048, help="student tokens of a sequence")
    parser.add_argument("--limit", type=int, help="documents to read; default: all")


def check_sequences(options: Any) -> None:
    """Raises: InputError for a length or a limit below 1."""
    if options.limit is not None and options.limit < 1:
        raise InputError(f"--limit: expected at least 1 document, got {options.limit}")
    if options.seq_len < 1:
        raise InputError(f"--seq_len: expected at least 1 token, got {options.seq_len}")


def granularity(options: Any) -> dict[str, Any] | None:
    """Measures, and draws with --out; the levels as data, or tables of them."""
    check_sequences(options)
    if options.out is not None:
        check_out(options.out)
    found = measured(*student_and_teachers(options), options)
    files = [] if options.out is None else write_levels(found, options.out)
    if options.json:
        return {"files": [str(file) for file in files], "teachers": [g.as_dict() for g in found]}
    print(_levels(found, "IoU"), _levels(found, "IoS"), sep="\n\n")
    one = found[0]
    print(
        f"means in characters over {one.sequences:,} sequences of {one.seq_len:,} tokens of "
        f"{one.student} ({one.documents:,} documents; the last {one.left_out_tokens:,} tokens are "
        "not measured)",
        *files,
        sep="\n",
        file=sys.stderr,
    )
    return None


def measured(student: Named, teachers: Sequence[Named], options: Any) -> "list[Granularity]":
    """Measures each teacher on `options.corpus`, in the sequences of `add_sequences`."""
    from vocagno.data.corpus import read_batches
    from vocagno.paper.granularity import granularity as measure

    found = []
    for teacher in teachers:
        batches = _first(read_batches(options.corpus), options.limit)
        batches = tracked(batches, f"{student.name} and {teacher.name}:")
        one = measure(student.spans, teacher.spans, batches, seq_len=options.seq_len)
        found.append(replace(one, student=student.name, teacher=teacher.name))
    return found


def write_levels(found: "Sequence[Granularity]", out: Path) -> tuple[Path, Path]:
    """Writes the figure of the levels, and the numbers next to it."""
    from vocagno.paper.figures.granularity import draw_granularity
    from vocagno.paper.granularity import write_csv

    return write_figure(draw_granularity(found), out, lambda path: write_csv(path, found))


def _first(batches: Iterable[list[str]], limit: int | None) -> Iterator[list[str]]:
    """The batches, up to so many documents in all; without a limit, all of them."""
    for texts in batches:
        yield texts[:limit]
        if limit is not None and (limit := limit - len(texts)) <= 0:
            return


def _levels(found: "Sequence[Granularity]", title: str) -> str:
    """One share; a line a level, a column a teacher."""
    lines = [[title, *(one.teacher for one in found)]]
    for levels in zip(*(one.levels for one in found), strict=True):
        chunks = levels[0].chunks
        name = "tokens" if chunks is None else f"{chunks:,} chunk{'s'[: chunks != 1]}"
        lines.append([name, *(f"{getattr(level, title.lower()):.2%}" for level in levels)])
    return in_table(lines)
