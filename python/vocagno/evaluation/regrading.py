"""Grades stored completions without the model."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from vocagno.evaluation.benchmarks import Benchmark, Item
from vocagno.evaluation.judging import Judge, Verdict
from vocagno.evaluation.reading import BenchmarkError, Completion
from vocagno.system.files import appearing


@dataclass(frozen=True, slots=True)
class Graded:
    """A completion with its verdict."""

    item: Item
    completion: str
    verdict: Verdict

    def record(self) -> dict[str, object]:
        """The fields of a line in a file."""
        verdict = asdict(self.verdict)
        return {"idx": self.item.index, "gold": self.item.gold, **verdict}


def grade(
    benchmark: Benchmark, items: list[Item], completions: list[Completion]
) -> Iterator[Graded]:
    """Verdicts in the order of the completions.

    Raises: BenchmarkError for a completion of an item that does not exist.
    """
    named = {item.index: item for item in items}
    for completion in completions:
        if completion.index not in named:
            raise BenchmarkError(
                f"{completion.where}: {benchmark.name} has no item with idx {completion.index}"
            )
    with Judge() as judge:
        for completion in completions:
            item = named[completion.index]
            yield Graded(item, completion.text, judge.verdict(benchmark, item, completion.text))


def write_verdicts(path: Path, graded: list[Graded], *, with_completions: bool = False) -> None:
    """Writes one verdict per line, as JSON."""
    with appearing(path) as file:
        for one in graded:
            completion = {"completion": one.completion} if with_completions else {}
            file.write((json.dumps({**one.record(), **completion}) + "\n").encode())
