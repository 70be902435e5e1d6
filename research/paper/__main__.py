"""The command `python -m research.paper`, which draws Figures 1 to 3 of the paper."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from research.paper import granularity as levels
from research.paper import teachers
from research.paper.granularity import Granularity
from research.paper.teachers import align_teachers
from vocagno.config.arguments import CORPUS, TOKENIZER, Command, Program
from vocagno.errors import InputError
from vocagno.system.progress import in_table, track_documents
from vocagno.tokens.token_spans import TokenSpans
from vocagno.views.statistics import VocabularyOverlap, vocabulary_overlap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS_TEXT = "Probability, Uncertainty"
"""The text of Fig. 2 of arXiv 2503.19123."""


class Named(NamedTuple):
    """A tokenizer, and what tables and figures call it."""

    name: str
    spans: TokenSpans


def add_overlap(parser: Any) -> None:
    """Draw how much of their vocabularies a student and its teachers share (Fig. 1).

    Equal strings, and equal bytes (`▁` and `Ġ` are a space), as bars.
    """
    _add_student_and_teachers(parser)
    _add_out(parser, "overlap.svg")


def overlap(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; the overlaps as data, or a table of them."""
    _check_out(options.out)
    student, teacher_tokenizers = _student_and_teachers(options)
    shared = {name: vocabulary_overlap(student.spans, spans) for name, spans in teacher_tokenizers}
    from research.paper.figures import draw_vocabulary_overlap

    figure = draw_vocabulary_overlap(student.name, shared)
    files = _write_figure(
        figure, options.out, lambda path: teachers.write_overlaps(path, student.name, shared)
    )
    facts = [{"teacher": name, **overlap_of.as_dict()} for name, overlap_of in shared.items()]
    data = {"student": student.name, "teachers": facts}
    rows = [_share_row(name, overlap_of) for name, overlap_of in shared.items()]
    return _report(options, files, data, [[*rows[0]], *([*row.values()] for row in rows)])


def _share_row(teacher: str, shared: VocabularyOverlap) -> dict[str, str]:
    return {
        "teacher": teacher,
        "vocabulary": f"{shared.teacher_size:,}",
        "shared strings": f"{shared.shared_strings:,}",
        "of it": f"{shared.string_share:.2%}",
        "as bytes": f"{shared.teacher_byte_share:.1%}",
        "of the student's": f"{shared.student_byte_share:.1%}",
    }


def add_tokens(parser: Any) -> None:
    """Draw how a student and its teachers cut one text, and what is mapped to what (Fig. 2)."""
    _add_student_and_teachers(parser)
    parser.add_argument(
        "--text", type=str, default=PAPERS_TEXT, help="A text of at most a hundred characters."
    )
    _add_out(parser, "tokens.svg")


def tokens(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; the alignments as data, or a table of their counts."""
    _check_out(options.out)
    student, named_teachers = _student_and_teachers(options)
    alignments = align_teachers(student, dict(named_teachers), options.text)
    from research.paper.figures import draw_tokens

    files = _write_figure(
        draw_tokens(alignments), options.out, lambda path: teachers.write_aligned(path, alignments)
    )
    lines = [["tokenizer", "tokens", "1:1", "1:N", "N:1"]]
    lines += [[student.name, f"{len(alignments[0].student.ids):,}", "-", "-", "-"]]
    for alignment in alignments:
        links = (alignment.counts[link] for link in ("one_to_one", "one_to_many", "many_to_one"))
        counts = (f"{count:,}" for count in (len(alignment.teacher.ids), *links))
        lines.append([alignment.teacher.tokenizer, *counts])
    data = {"teachers": [alignment.as_dict() for alignment in alignments]}
    return _report(options, files, data, lines)


def add_granularity(parser: Any) -> None:
    """Measure how well chunks of student and teacher meet, and tokens (Fig. 3).

    Mean IoU and IoS in characters, over sequences of a corpus.
    """
    _add_student_and_teachers(parser)
    parser.add_argument("corpus", type=str, help=f"The corpus: {CORPUS}.")
    parser.add_argument(
        "--seq_len", type=int, default=2_048, help="The student tokens of a sequence."
    )
    parser.add_argument("--limit", type=int, help="Read only this many documents. Default: all.")
    _add_out(parser, None)


def granularity(options: Any) -> dict[str, Any] | None:
    """Measures, and draws with --out; the levels as data, or tables of them."""
    if options.limit is not None and options.limit < 1:
        raise InputError(f"--limit: expected at least 1 document, got {options.limit}")
    if options.out is not None:
        _check_out(options.out)
    results = _measure(*_student_and_teachers(options), options)
    files: Sequence[Path] = []
    if options.out is not None:
        from research.paper.figures import draw_granularity

        files = _write_figure(
            draw_granularity(results), options.out, lambda path: levels.write_csv(path, results)
        )
    if options.json:
        return {"files": [str(file) for file in files], "teachers": [*map(asdict, results)]}
    print(_level_table(results, "IoU"), _level_table(results, "IoS"), sep="\n\n")
    first = results[0]
    print(
        f"means in characters over {first.sequences:,} sequences of {first.seq_len:,} tokens of "
        f"{first.student} ({first.documents:,} documents; the last {first.left_out_tokens:,} "
        "tokens are not measured)",
        *files,
        sep="\n",
        file=sys.stderr,
    )
    return None


def _measure(student: Named, named_teachers: Sequence[Named], options: Any) -> list[Granularity]:
    from vocagno.data.corpus import read_batches

    results = []
    for teacher in named_teachers:
        batches = _first_documents(read_batches(options.corpus), options.limit)
        batches = track_documents(batches, f"{student.name} and {teacher.name}:")
        result = levels.granularity(student.spans, teacher.spans, batches, seq_len=options.seq_len)
        results.append(replace(result, student=student.name, teacher=teacher.name))
    return results


def _first_documents(batches: Iterable[list[str]], limit: int | None) -> Iterator[list[str]]:
    """The batches, up to so many documents in all; without a limit, all of them."""
    for texts in batches:
        yield texts[:limit]
        if limit is not None and (limit := limit - len(texts)) <= 0:
            return


def _level_table(results: Sequence[Granularity], title: str) -> str:
    """Makes the table of one share: a line for each level, a column for each teacher."""
    lines = [[title, *(result.teacher for result in results)]]
    for row in zip(*(result.levels for result in results), strict=True):
        chunks = row[0].chunks
        name = "tokens" if chunks is None else f"{chunks:,} chunk{'s'[: chunks != 1]}"
        lines.append([name, *(f"{getattr(level, title.lower()):.2%}" for level in row)])
    return in_table(lines)


def _add_student_and_teachers(parser: Any) -> None:
    parser.add_argument("student", type=str, help=f"The student's tokenizer: {TOKENIZER}.")
    parser.add_argument(
        "--teachers", type=str, nargs="+", required=True, metavar="TEACHER", help="Tokenizers."
    )


def _student_and_teachers(options: Any) -> tuple[Named, list[Named]]:
    """Loads the tokenizers, named. Raises: InputError for a teacher given twice."""
    names = [*short_names([options.student], ""), *short_names(options.teachers, "--teachers")]
    loaded = map(TokenSpans.from_pretrained, [options.student, *options.teachers])
    student, *named_teachers = map(Named, names, loaded)
    return student, named_teachers


def short_names(names: Sequence[str], option: str) -> list[str]:
    """Names for tables and figures: `qwen2.5` for `tokenizers/qwen2.5.json.gz`.

    A name is that of the file, or of the folder of a plain tokenizer.json. If two of them are
    equal, all names stay as they are.

    Raises: InputError naming the option for a name that is given twice.
    """
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(f"{option}: {name} is given twice; name each once")
    short = [_short(name) for name in names]
    return short if len(set(short)) == len(short) else list(names)


def _short(name: str) -> str:
    path = Path(name)
    bare = path.name.removesuffix(".gz").removesuffix(".json")
    return (path.parent.name if bare == "tokenizer" else bare) or name


def _add_out(parser: Any, default: str | None) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=default and Path(default),
        help="Draw into this .svg or .png file; the numbers go into a .csv next to it.",
    )


def _check_out(out: Path) -> None:
    """Refuses a file that cannot hold a figure, before anything is read."""
    from vocagno.views.figure import check_format

    check_format(out, "--out")


def _write_figure(
    figure: "Figure", out: Path, write_numbers: Callable[[Path], None]
) -> tuple[Path, Path]:
    from vocagno.views.figure import save

    data = out.with_suffix(".csv")
    save(figure, out)
    write_numbers(data)
    return out, data


def _report(
    options: Any,
    files: tuple[Path, Path],
    data: Mapping[str, Any],
    table: Sequence[Sequence[str]],
) -> dict[str, Any] | None:
    """Returns the data with `--json`; otherwise prints the table and the files that were drawn."""
    if options.json:
        return {"figure": str(files[0]), "data": str(files[1]), **data}
    print(in_table(table))
    print(*files, sep="\n", file=sys.stderr)
    return None


main: Program = Program(
    "python -m research.paper",
    "Draw Figures 1 to 3 of arXiv 2503.19123: what tokenizers share, and how they cut a text.",
    {
        "overlap": Command(add_overlap, overlap),
        "tokens": Command(add_tokens, tokens),
        "granularity": Command(add_granularity, granularity),
    },
)
"""Runs the command line of the process, or the arguments passed. Returns the exit status."""

if __name__ == "__main__":
    sys.exit(main())
