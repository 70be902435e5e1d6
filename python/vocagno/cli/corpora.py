"""The tokenizers and the corpus that a command measures."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vocagno.errors import InputError

if TYPE_CHECKING:
    from vocagno.tokens.token_spans import TokenSpans

CORPUS = "JSON Lines, Parquet or text files, a folder of these, or datasets:NAME"
TOKENIZER = "tokenizer.json(.gz), a folder with one, or a name that transformers knows"


class Named(NamedTuple):
    """A tokenizer, and what tables and figures call it."""

    name: str
    spans: "TokenSpans"


def add_student_and_teachers(parser: Any) -> None:
    """The argument and the option of commands that compare one student with several teachers."""
    parser.add_argument("student", type=str, help=f"the student's: {TOKENIZER}")
    parser.add_argument(
        "--teachers", type=str, nargs="+", required=True, metavar="TEACHER", help="tokenizers"
    )


def student_and_teachers(options: Any) -> tuple[Named, list[Named]]:
    """Loads what `add_student_and_teachers` asks for.

    Raises: InputError for a teacher given twice; as `TokenSpans.from_pretrained`.
    """
    teachers = short_names(options.teachers, "--teachers")
    (student,) = short_names([options.student], "student")
    names, places = [student, *teachers], [options.student, *options.teachers]
    loaded = [Named(name, load_tokenizer(place)) for name, place in zip(names, places, strict=True)]
    return loaded[0], loaded[1:]


def load_tokenizer(place: str) -> "TokenSpans":
    """As `TokenSpans.from_pretrained`, which is imported here for the commands that need it."""
    from vocagno.tokens.token_spans import TokenSpans

    return TokenSpans.from_pretrained(place)


def tracked(batches: Iterable[list[str]], doing: str) -> Iterator[list[str]]:
    """Shows on a terminal how many documents were counted."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.completed:,.0f} documents"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(doing, total=None)
        for texts in batches:
            yield texts
            bar.advance(task, len(texts))


def first_documents(batches: Iterable[list[str]], limit: int | None) -> Iterator[list[str]]:
    """The batches, up to so many documents in all; without a limit, all of them."""
    left = limit
    for texts in batches:
        yield texts[:left]
        if left is not None:
            left -= len(texts)
            if left <= 0:
                return


def short_names(names: Sequence[str], option: str) -> list[str]:
    """Names for tables and figures: `qwen2.5` for `tokenizers/qwen2.5.json.gz`.

    The file's name, or the folder's of a plain tokenizer.json; the names as they are where these
    do not tell them apart.
    Raises: InputError naming the option for a name that is given twice.
    """
    refuse_repeated(names, option)
    short = [_short(name) for name in names]
    return short if len(set(short)) == len(short) else list(names)


def refuse_repeated(names: Sequence[str], option: str) -> None:
    """Raises: InputError naming the option for a name that is given twice."""
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(f"{option}: {name} is given twice; name each once")


def _short(name: str) -> str:
    path = Path(name)
    bare = path.name.removesuffix(".gz").removesuffix(".json")
    return (path.parent.name if bare == "tokenizer" else bare) or name
