"""Evaluates a model on benchmarks, or grades stored completions without the model."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vocagno.evaluation.asking import NEW_TOKENS, Asked, answered, fitted
from vocagno.evaluation.benchmarks import (
    Benchmark,
    BenchmarkError,
    Completion,
    Item,
    read_examples,
    read_items,
)
from vocagno.evaluation.journal import Journal
from vocagno.evaluation.judging import Judge, Verdict
from vocagno.system.files import appearing
from vocagno.system.progress import Progress


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark with its prompts for a model."""

    benchmark: Benchmark
    asked: Sequence[Asked]
    examples: str
    """Where its worked examples were read from."""


def prepared(
    lm: Any,
    benchmarks: Iterable[Benchmark],
    data: Path,
    *,
    limit: int | None,
    new_tokens: int = NEW_TOKENS,
) -> list[Task]:
    """Reads all benchmarks and checks that they fit the model, before the first question.

    Raises: InputError for a benchmark that cannot be read or does not fit.
    """
    tasks = []
    for benchmark in benchmarks:
        examples = read_examples(benchmark, data)
        items = read_items(benchmark, data, limit=limit)
        asked = fitted(lm, benchmark, examples, items, new_tokens=new_tokens)
        tasks.append(Task(benchmark, asked, examples.source))
    return tasks


def say_what_is_short(tasks: Iterable[Task]) -> None:
    """Reports prompts that leave less room for an answer than the paper's harness does."""
    for task in tasks:
        if short := [one.room for one in task.asked if one.room < NEW_TOKENS]:
            print(
                f"{task.benchmark.name}: {len(short):,} of {len(task.asked):,} prompts leave fewer "
                f"than {NEW_TOKENS:,} tokens for an answer, the longest {min(short):,}",
                file=sys.stderr,
            )


def evaluate(
    lm: Any, tasks: Sequence[Task], out: Path, *, batch_size: int, show: bool
) -> dict[str, list[Verdict]]:
    """Verdicts by benchmark, in the order of the items; each is written to `out` immediately."""
    verdicts: dict[str, list[Verdict]] = {}
    with Judge() as judge:
        for task in tasks:
            found = _evaluate(lm, task, out, judge, batch_size, show=show)
            verdicts[task.benchmark.name] = [found[index] for index in sorted(found)]
    return verdicts


def _evaluate(
    lm: Any, task: Task, out: Path, judge: Judge, batch_size: int, *, show: bool
) -> Mapping[int, Verdict]:
    name = task.benchmark.name
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(out / f"{name}.jsonl"))
        before = {one.item.index: journal.verdict(one) for one in task.asked}
        found = {index: verdict for index, verdict in before.items() if verdict is not None}
        left = [one for one in task.asked if one.item.index not in found]
        progress = stack.enter_context(
            Progress(name, len(task.asked), unit="items", show=show, start=len(found))
        )
        for batch in answered(lm, left, batch_size):
            for one, completion in batch:
                verdict = judge.verdict(task.benchmark, one.item, completion)
                journal.add(one, completion, verdict)
                found[one.item.index] = verdict
            right = sum(verdict.harness_match for verdict in found.values())
            progress.at(len(found), f"{100 * right / len(found):.1f} % correct")
    return found


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
