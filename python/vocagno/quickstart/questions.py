"""Held-out questions with their answers, from JSON Lines."""

import json
from dataclasses import dataclass
from pathlib import Path

from vocagno.errors import InputError

_EXPECTED = 'expected an object as {"question": "1 + 1", "answer": "2"}'


@dataclass(frozen=True, slots=True)
class Asked:
    """A held-out problem."""

    question: str
    answer: str


def read_questions(path: Path) -> list[Asked]:
    """The questions in a file of JSON Lines with `question` and `answer`.

    Other fields and blank lines are ignored. A number is taken as its text, as written.

    Raises: InputError naming the file and the line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error})") from error
    # Only \n ends a line: JSON may hold other line separators, as U+2028, as they are.
    lines = enumerate(text.split("\n"), 1)
    found = [_asked(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not found:
        raise InputError(f"{path}: no questions in it; {_EXPECTED} on each line")
    return found


def _asked(line: str, where: str) -> Asked:
    try:
        values = json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error}); {_EXPECTED}") from error
    if not isinstance(values, dict):
        raise InputError(f"{where}: {line.strip():.60}; {_EXPECTED}")
    for name in ("question", "answer"):
        if name not in values:
            others = ", ".join(values) or "none"
            raise InputError(f"{where}: no field `{name}` (its fields: {others}); {_EXPECTED}")
        if not isinstance(values[name], str):
            raise InputError(f"{where}: `{name}` is {values[name]!r:.60}; {_EXPECTED}")
        try:
            values[name].encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{where}: `{name}` has half of a \\u pair ({error})") from error
    return Asked(values["question"], values["answer"])
