"""A model's answers so far, stored item by item, so that a killed evaluation can be resumed."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from vocagno.errors import InputError
from vocagno.evaluation.asking import Asked
from vocagno.evaluation.benchmarks import prompt_hash
from vocagno.evaluation.judging import Verdict
from vocagno.system.files import write_json

_RUN = "run.json"
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "idx": (int,),
    "prompt_hash": (str,),
    "room": (int,),
    "gold": (str,),
    "answer": (str, NoneType),
    "harness_match": (bool,),
    "math_verify": (bool,),
    "undecided": (list,),
}
"""Fields of a line that are read, those of the verdict last, with their types."""
_OTHER_OUT = "use another --out"


class Journal:
    """The answers to one benchmark, in NAME.jsonl: one line per item, in the order of answering."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[int, dict[str, Any]] = {}
        whole = _whole_lines(path)
        for number, line in enumerate(whole.splitlines(), 1):
            record = _record(line, f"{path}, line {number}")
            self._found[record["idx"]] = record
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("ab")
        self._file.truncate(len(whole))

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def verdict(self, asked: Asked) -> Verdict | None:
        """The stored verdict on an item, if there is one.

        Raises: InputError if it was asked with another prompt, room or gold answer.
        """
        record = self._found.get(asked.item.index)
        if record is None:
            return None
        now = {
            "prompt_hash": prompt_hash(asked.prompt),
            "room": asked.room,
            "gold": asked.item.gold,
        }
        for name, value in now.items():
            if record[name] != value:
                raise InputError(
                    f"{self.path}: idx {asked.item.index} was asked with {name} {record[name]!r}, "
                    f"which is {value!r} now; use another --out"
                )
        fields = {name: record[name] for name in Verdict.__dataclass_fields__}
        return Verdict(**{**fields, "undecided": tuple(fields["undecided"])})

    def add(self, asked: Asked, completion: str, verdict: Verdict) -> None:
        """Stores an answer."""
        item = asked.item
        record = {
            "idx": item.index,
            "prompt_hash": prompt_hash(asked.prompt),
            "room": asked.room,
            "completion": completion,
            "gold": item.gold,
            **asdict(verdict),
        }
        self._file.write((json.dumps(record) + "\n").encode())
        self._file.flush()


def check_same_run(out: Path, about: Mapping[str, Any]) -> None:
    """Checks that the answers in a folder are of the same model and settings as a run.

    Raises: InputError if they are not.
    """
    path = out / _RUN
    if path.is_file():
        check_same(out, _object(path.read_bytes(), str(path), _OTHER_OUT), about)


def check_same(where: Path, before: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Checks that stored answers are of the same model and settings as a run.

    Raises: InputError if they are not.
    """
    for name in {**before, **about}:
        if before.get(name) != about.get(name):
            raise InputError(
                f"{where}: contains answers with {name} {before.get(name)!r}, not "
                f"{about.get(name)!r}; {_OTHER_OUT}"
            )


def note_run(out: Path, about: Mapping[str, Any]) -> None:
    """Records in a folder the model and settings of its answers."""
    write_json(out / _RUN, dict(about))


def _record(line: bytes, where: str) -> dict[str, Any]:
    """The fields of a line. Raises: InputError if one is missing or has another type."""
    remedy = f"remove the line to ask its item again, or {_OTHER_OUT}"
    record = _object(line, where, remedy)
    for name, kinds in _FIELDS.items():
        if name not in record:
            raise InputError(f"{where}: damaged (no {name}); {remedy}")
        if type(record[name]) not in kinds:  # a bool is an int, too
            raise InputError(f"{where}: damaged ({name} is {record[name]!r:.60}); {remedy}")
    return record


def _object(data: bytes, where: str, remedy: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: damaged ({error}); {remedy}") from error
    if not isinstance(found, dict):
        raise InputError(f"{where}: damaged (not an object: {found!r:.60}); {remedy}")
    return found


def _whole_lines(path: Path) -> bytes:
    """The complete lines of a file, without one that was cut off when the process was killed."""
    if not path.is_file():
        return b""
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]
