"""The commands `vocagno align`, `overlap` and `describe`: two tokenizers compared, one described.

The module also reads the text of a command (`add_text`, `read_text`), for `vocagno guidance`, too.
"""

import codecs
import sys
from pathlib import Path
from typing import Any

from vocagno.config.arguments import CORPUS, TOKENIZER
from vocagno.errors import InputError
from vocagno.system.progress import draw_in_terminal, in_columns, track_documents

MOST_BYTES = 20_000_000
"""The longest text that a command takes. All tokens of a text are held in memory and shown."""


def add_text(parser: Any, verb: str) -> None:
    """Adds the argument `text` and the option `--file`. `verb` says what the command does to it."""
    parser.add_argument(
        "text",
        type=str,
        nargs="?",
        help=f"The text to {verb}. Without it, --file is read, else standard input.",
    )
    parser.add_argument(
        "--file",
        type=Path,
        help="Read the text from this UTF-8 file; - is standard input.",
    )


def read_text(options: Any, advice: str) -> str:
    """Reads the text of a command: the argument, the file, or standard input.

    Args: advice: what the error for a text that is too long says to do.
    Raises: InputError for two texts, none, one that is too long, and bytes that are not UTF-8;
        OSError.
    """
    data: bytes
    if options.text is not None:
        if options.file is not None:
            raise InputError("--file: the command line has a text already; give one of them")
        data, where = options.text.encode("utf-8", "surrogateescape"), "text"
        _warn_of_file_name(options.text)
    elif options.file is not None and str(options.file) != "-":
        where = str(options.file)
        with options.file.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    else:
        if sys.stdin is None:
            raise InputError("standard input is closed; give the text, or --file FILE")
        if sys.stdin.isatty():
            print("reading the text from here; end it with Ctrl-D", file=sys.stderr)
        data, where = sys.stdin.buffer.read(MOST_BYTES + 1), "standard input"
    data = data.removeprefix(codecs.BOM_UTF8)  # editors of Windows write one
    if not data:
        raise InputError(
            f"{where}: the text is empty; give one as an argument, or its file with --file FILE"
        )
    if len(data) > MOST_BYTES:
        raise InputError(f"{where}: the text has more than {MOST_BYTES:,} bytes; {advice}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: the text is not UTF-8 at byte {error.start} (0x{data[error.start]:02X}); "
            "convert it, for example with iconv"
        ) from error


def _warn_of_file_name(text: str) -> None:
    """Prints a warning if the text is the name of a file, whose content was probably meant."""
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return
    if is_file:
        print(
            f"warning: text: takes {text!r} itself as the text; --file reads the file of that name",
            file=sys.stderr,
        )


def add_align(parser: Any) -> None:
    """Show one text under two tokenizers: as a picture, as a page, or as JSON.

    Without --picture, --html and --json, the command draws the picture if the output is a terminal,
    and prints JSON otherwise.
    """
    _add_pair(parser)
    add_text(parser, "align")
    parser.add_argument(
        "--special_tokens", action="store_true", help="Add each tokenizer's own BOS and EOS."
    )
    parser.add_argument(
        "--picture", action="store_true", help="Draw the alignment in the terminal."
    )
    parser.add_argument("--html", type=Path, help="Write the alignment as a page into this file.")


def add_overlap(parser: Any) -> None:
    """Count what two vocabularies share, and how their tokens meet on a corpus."""
    _add_pair(parser)
    parser.add_argument(
        "corpus", type=str, nargs="?", help=f"The corpus to count the tokens of: {CORPUS}."
    )


def add_describe(parser: Any) -> None:
    """Describe a tokenizer, and where the spans of its tokens come from."""
    parser.add_argument("tokenizer", type=str, help=f"The tokenizer: {TOKENIZER}.")


def _add_pair(parser: Any) -> None:
    parser.add_argument("student", type=str, help=f"The student's tokenizer: {TOKENIZER}.")
    parser.add_argument("teacher", type=str, help="The teacher's tokenizer.")


def align(options: Any) -> dict[str, Any] | None:
    """Draws the picture or writes the page; otherwise returns the mapping as data."""
    from vocagno.tokens.token_spans import TokenSpans
    from vocagno.views.texts import align_text

    formats = [name for name in ("json", "picture", "html") if options[name]]
    if len(formats) > 1:
        raise InputError(f"--{' and --'.join(formats)}: choose one")
    text = read_text(
        options,
        "`align` shows one text. For a corpus use `vocagno overlap`, for only the mapping "
        "vocagno.align in Python",
    )
    student, teacher = map(TokenSpans.from_pretrained, (options.student, options.teacher))
    aligned = align_text(student, teacher, text, special_tokens=options.special_tokens)
    if options.html:
        options.html.write_text(aligned.html(), encoding="utf-8")
        print(f"{aligned.summary()}\n{options.html}", file=sys.stderr)
        return None
    if options.picture or (not formats and sys.stdout.isatty()):
        draw_in_terminal(aligned)
        return None
    options.json = True  # the output is no terminal
    return aligned.as_dict()


def overlap(options: Any) -> dict[str, Any] | None:
    """Returns the counts as data, or prints them as a table."""
    from vocagno.tokens.token_spans import TokenSpans
    from vocagno.views.statistics import alignment_rates, vocabulary_overlap

    student, teacher = map(TokenSpans.from_pretrained, (options.student, options.teacher))
    rates = None
    if options.corpus is not None:
        from vocagno.data.corpus import read_batches

        # The corpus first: buckets of large vocabularies take a while, and a wrong path should not.
        rates = alignment_rates(
            student, teacher, track_documents(read_batches(options.corpus), "aligning")
        )
    shared, merged = vocabulary_overlap(student, teacher), _bucket_counts(student, teacher)
    if options.json:
        return {
            "student": student.name,
            "teacher": teacher.name,
            "vocabulary": shared.as_dict(),
            "buckets": merged,
            "corpus": None if rates is None else rates.as_dict(),
        }
    rows = {
        "student's vocabulary": f"{shared.student_size:,}",
        "teacher's vocabulary": f"{shared.teacher_size:,}",
        "shared strings": f"{shared.shared_strings:,}, {shared.string_share:.2%} of the teacher's",
        "shared as bytes": f"{shared.teacher_byte_share:.1%} of the teacher's entries, "
        f"{shared.student_byte_share:.1%} of the student's",
        "buckets": f"{merged['count']:,}, with {merged['student_share']:.2%} of the student's ids "
        f"and {merged['teacher_share']:.2%} of the teacher's; at most "
        f"{merged['largest_of_student']:,} and {merged['largest_of_teacher']:,} ids in one",
        "method: distill": merged["refused"] or "can train this student",
    }
    print(in_columns(rows if rates is None else rows | _corpus_rows(rates)))
    return None


def _bucket_counts(student: Any, teacher: Any) -> dict[str, Any]:
    """Counts the buckets of two tokenizers; `refused` says why `distill` cannot use them."""
    from vocagno.tokens.buckets import BucketError, buckets

    merged, refused = buckets(student, teacher), None
    try:
        merged.check()
    except BucketError as error:
        refused = str(error)
    student_share, teacher_share = merged.shares
    largest_of_student, largest_of_teacher = merged.sizes.max(0, initial=0).tolist()
    return {
        "count": merged.count,
        "student_share": student_share,
        "teacher_share": teacher_share,
        "largest_of_student": largest_of_student,
        "largest_of_teacher": largest_of_teacher,
        "refused": refused,
    }


def _corpus_rows(rates: Any) -> dict[str, str]:
    """Words the alignment rates of a corpus, one entry for each row of the table."""
    from vocagno.views.statistics import LARGE_GROUP

    def count_and_share(count: int) -> str:
        return f"{count:,}, {rates.share(count):.2%}"

    def token_count(side: str) -> str:
        return f"{data[f'{side}_tokens']:,}, {data[f'{side}_bytes_per_token']:.2f} bytes each"

    data = rates.as_dict()
    reasons = ", ".join(f"{data[reason]:,} {reason}" for reason in ("special", "truncated", "hole"))
    rows = {
        "documents": f"{rates.documents:,}, {rates.bytes:,} bytes",
        "student's tokens": token_count("student"),
        "teacher's tokens": token_count("teacher"),
        "coverage": f"{rates.coverage:.2%} of {rates.with_text:,} student tokens with text",
        "1:1": count_and_share(rates.one_to_one),
        "1:N": count_and_share(rates.one_to_many),
        "N:1": count_and_share(rates.many_to_one),
        "unmapped": reasons,
        "groups": f"{rates.groups:,}, the largest of {rates.largest_group:,} student tokens; "
        f"{rates.share(rates.in_large_groups):.2%} of the tokens in groups of more than "
        f"{LARGE_GROUP}",
        "proved from ids": f"{rates.student_proved:,} documents of the student, "
        f"{rates.teacher_proved:,} of the teacher",
    }
    for side in ("student", "teacher"):
        if refused := data[f"{side}_refused"]:
            document, reason = next(iter(refused.items()))
            rows[f"omitted for {side}"] = (
                f"{len(refused):,} documents, whose tokens cannot be placed; {document}: {reason}"
            )
        if documents := data[f"{side}_without_tokens"]:
            numbers = ", ".join(map(str, documents[:10])) + (" and more" if documents[10:] else "")
            rows[f"no {side} token"] = f"{len(documents):,} documents with text: {numbers}"
    return rows


def describe(options: Any) -> dict[str, Any] | None:
    """Returns the description as data, or prints it."""
    from vocagno.tokens.token_spans import TokenSpans

    description = TokenSpans.from_pretrained(options.tokenizer).describe()
    if options.json:
        return description.as_dict()
    print(description)
    return None
