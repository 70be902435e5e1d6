"""Results of a model: shares with standard errors, the paper's averages of them, and the file
`results.json`, to which later evaluations of the same model add."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import BENCHMARKS, PAPER
from vocagno.evaluation.judge import Verdict
from vocagno.evaluation.running import check_same

METRICS = ("harness_match", "math_verify")
RESULTS = "results.json"
"""In the folder of an evaluation."""
_NOT_AVERAGED = "GSM-Hard"
"""Named in the paper's text, but not in its tables."""
_OMITTED = {"AVG": [], "AVG (w/o *)": ["TAB", "MMLU-STEM", "SAT"], "AVG (w/o SAT)": ["SAT"]}
"""Columns that are no part of an average (arXiv 2503.19123, Table 1)."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of right answers, or a mean of such shares."""

    value: float
    """In [0, 1]."""
    error: float
    """Standard error: the expected deviation for another sample of as many questions."""
    count: int
    """Number of items."""


ByMetric = Mapping[str, Mapping[str, Share]]
"""Results by metric, then by benchmark."""


def share_of(right: int, count: int) -> Share:
    """The share of `right` items of `count`. Raises: ValueError if there are more right ones."""
    value = right / count
    return Share(value, math.sqrt(value * (1 - value) / max(1, count - 1)), count)


def averages(found: Mapping[str, Share]) -> dict[str, Share]:
    """The paper's averages, with equal weights. An average that lacks a benchmark is omitted."""
    columns = {BENCHMARKS[one].column: one for one in PAPER}
    means = {}
    for name, omitted in _OMITTED.items():
        names = [one for column, one in columns.items() if column not in (*omitted, _NOT_AVERAGED)]
        if all(one in found for one in names):
            parts = [found[one] for one in names]
            error = math.sqrt(sum(part.error**2 for part in parts)) / len(parts)
            value = sum(part.value for part in parts) / len(parts)
            means[name] = Share(value, error, sum(part.count for part in parts))
    return means


def by_metric(verdicts: Mapping[str, Sequence[Verdict]]) -> ByMetric:
    return {
        metric: {
            name: share_of(sum(getattr(verdict, metric) for verdict in found), len(found))
            for name, found in verdicts.items()
        }
        for metric in METRICS
    }


def lines(found: ByMetric) -> list[list[str]]:
    """A table: a line for each benchmark and average, percentages with standard errors."""
    columns = [{**found[metric], **averages(found[metric])} for metric in METRICS]
    table = [["", "items", *METRICS]]
    for name, share in columns[0].items():
        cells = [f"{100 * one[name].value:.1f} ± {100 * one[name].error:.1f}" for one in columns]
        table.append([title(name), f"{share.count:,}", *cells])
    return table


def results(model: str, found: ByMetric, about: Any) -> dict[str, Any]:
    """The results as `results.json` has them. Percentages by the paper's columns follow its
    harness's rules; errors, counts and the other metric are under `about`."""
    details = {
        metric: {
            title(name): {
                "percent": round(100 * share.value, 4),
                "standard_error": round(100 * share.error, 4),
                "count": share.count,
            }
            for name, share in {**of_metric, **averages(of_metric)}.items()
        }
        for metric, of_metric in found.items()
    }
    percentages = {
        title(name): round(100 * share.value, 4) for name, share in found["harness_match"].items()
    }
    return {"model": model, "scores": percentages, "about": {**about, **details}}


def title(name: str) -> str:
    """The paper's name of a benchmark, or the name of an average."""
    return (BENCHMARKS[name].column or name) if name in BENCHMARKS else name


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of a model, and the source of the worked examples by benchmark."""

    found: ByMetric
    examples: Mapping[str, str]

    def count(self, name: str) -> int:
        """Number of items of a benchmark; 0 if it was not measured."""
        share = self.found[METRICS[0]].get(name)
        return share.count if share else 0


def read_stored(out: Path, about: Mapping[str, Any]) -> Measured:
    """The results in a folder; none if it has no file of them.

    Args:
        about: model and settings that the results must have.
    Raises: InputError for a file of something else, or of another model or settings.
    """
    path = out / RESULTS
    if not path.is_file():
        return Measured({metric: {} for metric in METRICS}, {})
    try:
        stored = json.loads(path.read_bytes())["about"]
        examples = dict(stored["examples"])
        found: dict[str, dict[str, Share]] = {metric: {} for metric in METRICS}
        for metric, name in product(METRICS, examples):
            entry = stored[metric][title(name)]
            # Four decimals of a percentage give the exact number of less than a million items.
            right = round(entry["percent"] * entry["count"] / 100)
            found[metric][name] = share_of(right, entry["count"])
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: damaged, or not of `vocagno eval` ({type(error).__name__}: {error}); move it "
            "away, or use another --out"
        ) from error
    check_same(path, {name: stored.get(name) for name in about}, about)
    return Measured(found, examples)


def merged(before: Measured, now: Measured) -> Measured:
    """The results of both. Of a benchmark that is in both, the one of more items, or the later."""
    latest = {
        name: now if now.count(name) >= before.count(name) else before
        for name in BENCHMARKS
        if now.count(name) or before.count(name)
    }
    return Measured(
        {
            metric: {name: one.found[metric][name] for name, one in latest.items()}
            for metric in METRICS
        },
        {name: one.examples[name] for name, one in latest.items()},
    )
