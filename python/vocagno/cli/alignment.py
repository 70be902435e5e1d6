"""`vocagno align`, `overlap` and `describe`: tokenizers and their alignment; and the text of a
command: an argument, a file, or standard input."""

import codecs
import sys
from pathlib import Path
from typing import Any

from vocagno.config.arguments import CORPUS, TOKENIZER
from vocagno.errors import InputError
from vocagno.system.progress import draw_in_terminal, in_columns, track_documents

MOST_BYTES = 20_000_000
"""Longest text that a command takes: all of its tokens are in memory, and are shown."""


def add_text(parser: Any, doing: str) -> None:
    """Adds the argument and the option. `doing`: what the command does to the text."""
    parser.add_argument("text", type=str, nargs="?", help="default: --file, else standard input")
    parser.add_argument("--file", type=Path, help=f"UTF-8 text to {doing}; - is standard input")


def given_text(options: Any, instead: str) -> str:
    """The text. `instead`: what to use for one that is too long.

    Raises: InputError for two texts, none, one that is too long, and bytes that are not UTF-8;
        OSError.
    """
    data: bytes
    if options.text is not None:
        if options.file is not None:
            raise InputError("--file: there is a text on the command line already")
        data, where = options.text.encode("utf-8", "surrogateescape"), "text"
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
    data = data.removeprefix(codecs.BOM_UTF8)  # as editors of Windows write it
    if not data:
        raise InputError(
            f"{where}: no text; give it as an argument, or the file of one: --file FILE"
        )
    if len(data) > MOST_BYTES:
        raise InputError(f"{where}: more than {MOST_BYTES:,} bytes; {instead}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 at byte {error.start} (0x{data[error.start]:02X}); convert it, "
            "for example with iconv"
        ) from error


def add_align(parser: Any) -> None:
    """Show one text under two tokenizers: as a picture, as a page, or as JSON.

    Without --picture, --html and --json: the picture on a terminal, else JSON.
    """
    _add_pair(parser)
    add_text(parser, "align")
    parser.add_argument(
        "--special_tokens", action="store_true", help="add each tokenizer's own BOS and EOS"
    )
    parser.add_argument("--picture", action="store_true", help="draw it in the terminal")
    parser.add_argument("--html", type=Path, help="draw it as a page, into this file")


def add_overlap(parser: Any) -> None:
    """Count what two vocabularies share, and how their tokens meet on a corpus."""
    _add_pair(parser)
    parser.add_argument("corpus", type=str, nargs="?", help=CORPUS)


def add_describe(parser: Any) -> None:
    """Describe a tokenizer, and where the spans of its tokens come from."""
    parser.add_argument("tokenizer", type=str, help=TOKENIZER)


def _add_pair(parser: Any) -> None:
    parser.add_argument("student", type=str, help=f"the student's: {TOKENIZER}")
    parser.add_argument("teacher", type=str, help="the teacher's")


def align(options: Any) -> dict[str, Any] | None:
    """Prints the picture or writes the page; or the mapping as data."""
    from vocagno.tokens.token_spans import TokenSpans
    from vocagno.views.texts import align_text

    wanted = [name for name in ("json", "picture", "html") if options[name]]
    if len(wanted) > 1:
        raise InputError(f"--{' and --'.join(wanted)}: choose one")
    text = given_text(
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
    if options.picture or (not wanted and sys.stdout.isatty()):
        draw_in_terminal(aligned)
        return None
    options.json = True
    return aligned.as_dict()


def overlap(options: Any) -> dict[str, Any] | None:
    """The counts as data, or in words."""
    from vocagno.tokens.token_spans import TokenSpans
    from vocagno.views.statistics import alignment_rates, vocabulary_overlap

    student, teacher = map(TokenSpans.from_pretrained, (options.student, options.teacher))
    shared, joined = vocabulary_overlap(student, teacher), _joined(student, teacher)
    rates = None
    if options.corpus is not None:
        from vocagno.data.corpus import read_batches

        rates = alignment_rates(
            student, teacher, track_documents(read_batches(options.corpus), "aligning")
        )
    if options.json:
        return {
            "student": student.name,
            "teacher": teacher.name,
            "vocabulary": shared.as_dict(),
            "buckets": joined,
            "corpus": None if rates is None else rates.as_dict(),
        }
    rows = {
        "student's vocabulary": f"{shared.student_size:,}",
        "teacher's vocabulary": f"{shared.teacher_size:,}",
        "shared strings": f"{shared.shared_strings:,}, {shared.string_share:.2%} of the teacher's",
        "shared as bytes": f"{shared.teacher_byte_share:.1%} of the teacher's entries, "
        f"{shared.student_byte_share:.1%} of the student's",
        "buckets": f"{joined['count']:,}, with {joined['student_share']:.2%} of the student's ids "
        f"and {joined['teacher_share']:.2%} of the teacher's; at most "
        f"{joined['largest_of_student']:,} and {joined['largest_of_teacher']:,} ids in one",
        "method: distill": joined["refused"] or "can train this student",
    }
    print(in_columns(rows if rates is None else rows | _corpus_rows(rates)))
    return None


def _joined(student: Any, teacher: Any) -> dict[str, Any]:
    """The buckets of two tokenizers in numbers, and why `distill` refuses them; None if not."""
    from vocagno.tokens.buckets import BucketError, buckets

    made, refused = buckets(student, teacher), None
    try:
        made.check()
    except BucketError as error:
        refused = str(error)
    (own, other), (most, most_others) = made.shares, made.sizes.max(0, initial=0).tolist()
    return {
        "count": made.count,
        "student_share": own,
        "teacher_share": other,
        "largest_of_student": most,
        "largest_of_teacher": most_others,
        "refused": refused,
    }


def _corpus_rows(rates: Any) -> dict[str, str]:
    from vocagno.views.statistics import LARGE_GROUP

    def part(count: int) -> str:
        return f"{count:,}, {rates.share(count):.2%}"

    def tokens(side: str) -> str:
        return f"{data[f'{side}_tokens']:,}, {data[f'{side}_bytes_per_token']:.2f} bytes each"

    data = rates.as_dict()
    reasons = ", ".join(f"{data[reason]:,} {reason}" for reason in ("special", "truncated", "hole"))
    rows = {
        "documents": f"{rates.documents:,}, {rates.bytes:,} bytes",
        "student's tokens": tokens("student"),
        "teacher's tokens": tokens("teacher"),
        "coverage": f"{rates.coverage:.2%} of {rates.with_text:,} student tokens with text",
        "1:1": part(rates.one_to_one),
        "1:N": part(rates.one_to_many),
        "N:1": part(rates.many_to_one),
        "unmapped": reasons,
        "groups": f"{rates.groups:,}, the largest of {rates.largest_group:,} student tokens; "
        f"{rates.share(rates.in_large_groups):.2%} of the tokens in groups of more than "
        f"{LARGE_GROUP}",
        "proved from ids": f"{rates.student_proved:,} documents of the student, "
        f"{rates.teacher_proved:,} of the teacher",
    }
    for side in ("student", "teacher"):
        if refused := data[f"{side}_refused"]:
            number, why = next(iter(refused.items()))
            rows[f"omitted for {side}"] = (
                f"{len(refused):,} documents, whose tokens cannot be placed; {number}: {why}"
            )
        if without := data[f"{side}_without_tokens"]:
            named = ", ".join(map(str, without[:10])) + (" and more" if without[10:] else "")
            rows[f"no {side} token"] = f"{len(without):,} documents with text: {named}"
    return rows


def describe(options: Any) -> dict[str, Any] | None:
    """The description as data, or in words."""
    from vocagno.tokens.token_spans import TokenSpans

    description = TokenSpans.from_pretrained(options.tokenizer).describe()
    if options.json:
        return description.as_dict()
    print(description)
    return None
