"""Reads benchmarks and stored completions from JSON Lines, plain or .gz."""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import Benchmark, Item


class BenchmarkError(InputError):
    """A file of questions or completions cannot be read; names file and line."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's completion for one item."""

    index: int
    text: str
    question: str | None
    """The question it answers, if the file has it."""
    where: str
    """File and line."""


def read_items(benchmark: Benchmark, data: Path, *, limit: int | None = None) -> list[Item]:
    """The items of a benchmark in the order of their `idx`, or of the file if there is no `idx`. Of
    items with the same `idx`, the last is used.

    Args:
        data: contains NAME/test.jsonl or NAME/test.jsonl.gz.
        limit: maximum number of items, starting with the first.
    Raises: BenchmarkError.
    """
    path = _file_of(benchmark, data)
    items: dict[int, Item] = {}
    for position, (where, record) in enumerate(_records(path)):
        index = record.get("idx", position)
        try:
            items[int(index)] = benchmark.item(record, int(index))
        except KeyError as error:
            raise BenchmarkError(f"{where}: no field {error} of {benchmark.name}") from error
        except (TypeError, ValueError, IndexError) as error:
            raise BenchmarkError(f"{where}: not an item of {benchmark.name}: {error}") from error
    if not items:
        raise BenchmarkError(f"{path}: no items")
    return [items[index] for index in sorted(items)[:limit]]


def read_completions(path: Path) -> tuple[list[Completion], int]:
    """Completions in the order of their `idx`, and the number of duplicates. Of completions with
    the same `idx`, the last is used.

    Raises: BenchmarkError for a line without an `idx` and a `completion`, or with a `question` that
        is not a string.
    """
    found: dict[int, Completion] = {}
    lines = 0
    for lines, (where, record) in enumerate(_records(path), 1):  # noqa: B007  # their number
        index, text = record.get("idx"), record.get("completion")
        if not isinstance(index, int) or not isinstance(text, str):
            raise BenchmarkError(
                f"{where}: expected an integer `idx` and a string `completion`, got {record!r:.80}"
            )
        question = record.get("question")
        if not isinstance(question, str | None):
            raise BenchmarkError(
                f"{where}: expected a string as `question`, or none, got {question!r:.60}"
            )
        found[index] = Completion(index, text, question, where)
    if not found:
        raise BenchmarkError(f"{path}: no completions")
    return [found[index] for index in sorted(found)], lines - len(found)


def _file_of(benchmark: Benchmark, data: Path) -> Path:
    if not data.is_dir():
        raise BenchmarkError(f"{data}: no such folder; expected one that holds NAME/test.jsonl")
    for name in ("test.jsonl", "test.jsonl.gz"):
        if (path := data / benchmark.folder / name).is_file():
            return path
    raise BenchmarkError(
        f"{data / benchmark.folder / 'test.jsonl'}: no such file, plain or .gz; expected the "
        f"questions of {benchmark.name}"
    )


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with its place. Lines end only in LF; blank ones are skipped."""
    opened = gzip.open if path.suffix == ".gz" else open
    line = b""
    number = 0
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(file, 1):
                where = f"{path}, line {number}"
                if line.strip():
                    yield where, _object(line, where)
    except (OSError, EOFError, zlib.error) as error:
        raise BenchmarkError(f"{path}: cannot be read after line {number}: {error}") from error


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise BenchmarkError(f"{where}: not JSON in UTF-8 ({error})") from error
    if not isinstance(record, dict):
        raise BenchmarkError(f"{where}: expected an object, got {line[:60]!r}")
    return record
