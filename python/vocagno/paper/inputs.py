"""The tokenizers that a figure compares, and the names that it calls them by."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vocagno.config.commands import TOKENIZER
from vocagno.errors import InputError
from vocagno.tokens.token_spans import TokenSpans


class Named(NamedTuple):
    """A tokenizer, and what tables and figures call it."""

    name: str
    spans: TokenSpans


def add_student_and_teachers(parser: Any) -> None:
    """Adds the options of commands that compare one student with several teachers."""
    parser.add_argument("student", type=str, help=f"the student's: {TOKENIZER}")
    parser.add_argument(
        "--teachers", type=str, nargs="+", required=True, metavar="TEACHER", help="tokenizers"
    )


def student_and_teachers(options: Any) -> tuple[Named, list[Named]]:
    """Loads what `add_student_and_teachers` asks for.

    Raises: InputError for a teacher given twice; as `TokenSpans.from_pretrained`.
    """
    names = [*short_names([options.student], ""), *short_names(options.teachers, "--teachers")]
    loaded = map(TokenSpans.from_pretrained, [options.student, *options.teachers])
    student, *teachers = map(Named, names, loaded)
    return student, teachers


def short_names(names: Sequence[str], option: str) -> list[str]:
    """Names for tables and figures: `qwen2.5` for `tokenizers/qwen2.5.json.gz`.

    A name is that of the file, or of the folder of a plain tokenizer.json. If two of them are
    equal, all names stay as they are.

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
