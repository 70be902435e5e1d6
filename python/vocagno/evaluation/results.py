"""Results of models on benchmarks, from files in the layout of the paper's tables, and averages.

CSV: label columns (model, method, chunks, ...), then a column for each benchmark, of which the
first is one of `BENCHMARKS`. Results are in percent, `-` if missing. A `*` at the end of a column
name excludes the column from `AVG (w/o *)`. Columns that begin with `AVG` may follow: they are not
used, but compared with the averages of the results.

JSON: one object per model (or a list of objects), with strings as labels and `scores`, a percentage
(or null) by benchmark. `about` is optional and for readers:

    {"model": "S + Llemma", "method": "Ours", "scores": {"GSM8K": 8.1, "MATH": 5.2, "SAT": 34.4}}
"""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vocagno.errors import InputError

BENCHMARKS = tuple("GSM8K MATH GSM-Hard SVAMP ASDiv MAWPS TAB MQA MMLU-STEM SAT".split())
"""Names of the paper's benchmarks, in its order (arXiv 2503.19123, section 4.1, Table 1)."""

STARRED = frozenset({"TAB", "MMLU-STEM", "SAT"})
"""Those that the paper omits to compare with Rho-1 (Table 1); a CSV file marks its own."""

NOT_AVERAGED = frozenset({"GSM-Hard"})
"""Named in the paper's text, but not in its tables."""

AVERAGES = ("AVG", "AVG (w/o *)", "AVG (w/o SAT)")


class ResultError(InputError):
    """A file of results cannot be read, or tables do not fit together."""


@dataclass(frozen=True, slots=True)
class Result:
    """The results of one model."""

    where: str
    """The file and the row."""
    labels: Mapping[str, str]
    percentages: Mapping[str, float]
    """Percent by benchmark; missing ones are absent."""
    published: Mapping[str, str] = field(default_factory=dict)
    """Averages in the file, as written there."""

    @property
    def name(self) -> str:
        """Its labels, for messages."""
        return ", ".join(value for value in self.labels.values() if value not in ("", "-"))


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Results with their label columns and benchmarks, in order of first appearance."""

    labels: tuple[str, ...]
    benchmarks: tuple[str, ...]
    starred: frozenset[str]
    results: tuple[Result, ...]

    def averaged(self, average: str) -> tuple[str, ...]:
        """The benchmarks in an average.

        Raises: ResultError for a name that is not in `AVERAGES`.
        """
        if average not in AVERAGES:
            raise ResultError(f"{average}: not an average; expected {', '.join(AVERAGES)}")
        others = {"AVG": frozenset(), "AVG (w/o *)": self.starred}.get(average, frozenset({"SAT"}))
        left_out = others | NOT_AVERAGED
        return tuple(name for name in self.benchmarks if name not in left_out)

    @property
    def averages(self) -> tuple[str, ...]:
        """Those of `AVERAGES` that this table has: AVG, and others that omit a benchmark."""
        return tuple(
            name
            for name in AVERAGES
            if name == "AVG" or 0 < len(self.averaged(name)) < len(self.benchmarks)
        )

    def average(self, result: Result, average: str) -> float | None:
        """Mean of the results in an average; None if one of them is missing."""
        found = [result.percentages.get(name) for name in self.averaged(average)]
        present = [one for one in found if one is not None]
        return sum(present) / len(present) if len(present) == len(found) > 0 else None

    def value(self, result: Result, column: str) -> float | None:
        """A result or an average.

        Raises: ResultError for a column that is neither.
        """
        if column in self.benchmarks:
            return result.percentages.get(column)
        if column not in AVERAGES:
            raise ResultError(
                f"{column}: no such column; expected one of "
                f"{', '.join((*self.benchmarks, *AVERAGES))}"
            )
        return self.average(result, column)

    def disagreements(self) -> list[str]:
        """Averages in the files that differ from those of the results, at the files' precision."""
        found = []
        for result in self.results:
            for name, written in result.published.items():
                value = self.average(result, name)
                digits = len(written.partition(".")[2])
                if value is None or abs(value - float(written)) > 0.5 * 10**-digits + 1e-9:
                    given = "do not give one" if value is None else f"give {value:.{digits + 2}f}"
                    found.append(
                        f"{result.where} ({result.name}), column {name}: the file has {written}, "
                        f"its results {given}"
                    )
        return found


def read_results(paths: Sequence[Path]) -> ResultTable:
    """One table of all files, with all their columns in order of first appearance.

    Raises: ResultError naming the file, row and column, and the expected value.
    """
    tables = [_read_json(path) if path.suffix == ".json" else _read_csv(path) for path in paths]
    if not tables:
        raise ResultError("no files of results")
    labels = tuple(dict.fromkeys(name for table in tables for name in table.labels))
    benchmarks = tuple(dict.fromkeys(name for table in tables for name in table.benchmarks))
    _check_stars(paths, tables)
    results = tuple(result for table in tables for result in table.results)
    _check_names_differ(results, labels)
    return ResultTable(
        labels, benchmarks, frozenset().union(*(table.starred for table in tables)), results
    )


def _check_stars(paths: Sequence[Path], tables: Sequence[ResultTable]) -> None:
    marked: dict[str, tuple[bool, Path]] = {}
    for path, table in zip(paths, tables, strict=True):
        for name in table.benchmarks:
            is_starred, first = marked.setdefault(name, (name in table.starred, path))
            if is_starred != (name in table.starred):
                yes, no = (first, path) if is_starred else (path, first)
                raise ResultError(
                    f"{no}: column {name} has no star, but has one in {yes}; star it in both or "
                    "neither"
                )


def _check_names_differ(results: Iterable[Result], labels: Sequence[str]) -> None:
    seen: dict[tuple[str, ...], str] = {}
    for result in results:
        key = tuple(result.labels.get(label, "") for label in labels)
        if key in seen:
            raise ResultError(
                f"{result.where}: its labels ({result.name}) are the same as in {seen[key]}; give "
                "each row different labels"
            )
        seen[key] = result.where


def read_csv_lines(path: Path) -> list[list[str]]:
    """The cells of a CSV file in UTF-8, the header first.

    Raises: ResultError if it is empty or not CSV in UTF-8.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ResultError(f"{path}: not CSV in UTF-8 ({error})") from error
    if not lines:
        raise ResultError(f"{path}: empty; expected a header and rows")
    return lines


def _read_csv(path: Path) -> ResultTable:
    header, *rows = read_csv_lines(path)
    columns = [name.strip().removesuffix("*").strip() for name in header]
    if doubled := [name for name, count in Counter(columns).items() if count > 1]:
        raise ResultError(f"{path}: column {doubled[0]} is there twice")
    first = next((i for i, name in enumerate(columns) if name in BENCHMARKS), None)
    if first is None:
        raise ResultError(f"{path}: no benchmark column ({', '.join(BENCHMARKS)})")
    benchmarks = [name for name in columns[first:] if not name.startswith("AVG")]
    results = [
        _csv_result(f"{path}, row {number}", columns, first, row)
        for number, row in enumerate(rows, 2)
        if row
    ]
    if not results:
        raise ResultError(f"{path}: a header without rows")
    for name in columns[first:]:
        if name.startswith("AVG") and name not in AVERAGES:
            raise ResultError(
                f"{path}, column {name}: not an average; expected {', '.join(AVERAGES)}"
            )
    starred = frozenset(name for name, raw in zip(columns, header, strict=True) if "*" in raw[-1:])
    return ResultTable(
        tuple(columns[:first]), tuple(benchmarks), starred & {*benchmarks}, tuple(results)
    )


def _csv_result(where: str, columns: Sequence[str], first: int, row: Sequence[str]) -> Result:
    if len(row) != len(columns):
        raise ResultError(f"{where}: {len(row)} cells under {len(columns)} columns")
    cells = {name: cell.strip() for name, cell in zip(columns, row, strict=True)}
    labels = {name: cells[name] for name in columns[:first]}
    numbers = {name: cells[name] for name in columns[first:] if cells[name] not in ("", "-")}
    percentages, published = {}, {}
    for name, cell in numbers.items():
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        _check_percentage(value, cell, f"{where}, column {name}")
        if name.startswith("AVG"):
            published[name] = cell
        else:
            percentages[name] = value
    return Result(where, labels, percentages, published)


def _read_json(path: Path) -> ResultTable:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ResultError(f"{path}: not JSON ({error})") from error
    entries = found if isinstance(found, list) else [found]
    results = [
        _json_result(f"{path}, entry {number}" if isinstance(found, list) else str(path), entry)
        for number, entry in enumerate(entries, 1)
    ]
    if not results:
        raise ResultError(f"{path}: an empty list; expected an object for each model")
    labels = dict.fromkeys(name for result in results for name in result.labels)
    names = dict.fromkeys(name for result in results for name in result.percentages)
    known = [name for name in BENCHMARKS if name in names]
    benchmarks = (*known, *(name for name in names if name not in known))
    return ResultTable(tuple(labels), benchmarks, STARRED & {*benchmarks}, tuple(results))


def _json_result(where: str, entry: Any) -> Result:
    if not isinstance(entry, dict) or not isinstance(entry.get("scores"), dict):
        raise ResultError(f"{where}: expected an object with `scores`, a percentage by benchmark")
    labels = {name: value for name, value in entry.items() if name not in ("scores", "about")}
    for name, value in labels.items():
        if not isinstance(value, str):
            raise ResultError(f"{where}, {name}: expected a string as a label, got {value!r}")
    if not labels:
        raise ResultError(f"{where}: no label that names the model, such as `model`")
    percentages = {name: value for name, value in entry["scores"].items() if value is not None}
    if not percentages:
        raise ResultError(f"{where}: no result in `scores`")
    for name, value in percentages.items():
        _check_percentage(value, value, f"{where}, scores, {name}")
    return Result(where, labels, percentages)


def _check_percentage(value: object, written: object, where: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 100:
        raise ResultError(f"{where}: expected a percentage from 0 to 100, or none, got {written!r}")
