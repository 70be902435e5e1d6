"""A model's answers so far, stored item by item, so that a killed evaluation can be resumed."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from vocagno.errors import InputError
from vocagno.evaluation.asking import Asked
from vocagno.evaluation.judging import Verdict
from vocagno.evaluation.prompts import prompt_hash
from vocagno.system.files import write_json

_RUN = "run.json"
_FIELDS = ("idx", "prompt_hash", "room", "gold", *Verdict.__dataclass_fields__)


class Journal:
    """The answers to one benchmark, in NAME.jsonl: one line per item, in the order of answering."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[int, dict[str, Any]] = {}
        whole = _whole_lines(path)
        for number, line in enumerate(whole.splitlines(), 1):
            record = _record(line, f"{path}, line {number}", _FIELDS)
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
    if not path.is_file():
        return
    before = _record(path.read_bytes(), str(path))
    for name in {**before, **about}:
        if before.get(name) != about.get(name):
            raise InputError(
                f"{out}: contains answers with {name} {before.get(name)!r}, not "
                f"{about.get(name)!r}; use another --out"
            )


def note_run(out: Path, about: Mapping[str, Any]) -> None:
    """Records in a folder the model and settings of its answers."""
    write_json(out / _RUN, dict(about))


def _record(line: bytes, where: str, fields: Collection[str] = ()) -> dict[str, Any]:
    try:
        record = dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: damaged ({error}); use another --out") from error
    if missing := sorted(set(fields) - set(record)):
        raise InputError(f"{where}: damaged (no {missing[0]}); use another --out")
    return record


def _whole_lines(path: Path) -> bytes:
    """The complete lines of a file, without one that was cut off when the process was killed."""
    if not path.is_file():
        return b""
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]
