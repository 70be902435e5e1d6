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
"""Name of the file of results in the folder of an evaluation."""
_NOT_AVERAGED = "GSM-Hard"
"""Column of the benchmark that the paper's text names, but not its tables."""
_OMITTED = {"AVG": [], "AVG (w/o *)": ["TAB", "MMLU-STEM", "SAT"], "AVG (w/o SAT)": ["SAT"]}
"""For each average, the columns that are no part of it (arXiv 2503.19123, Table 1)."""


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
    """Returns the share of right items, `right` of `count`, with its standard error.

    Raises: ValueError if `count` is 0, or `right` is not one of 0 to `count`.
    """
    if not 0 <= right <= count or count == 0:
        raise ValueError(
            f"right: expected 0 to {count:,} right answers of {count:,} items, at least one item, "
            f"got {right:,}; omit a benchmark without items"
        )
    value = right / count
    # The variance of a sample has count - 1 in its denominator, which is 0 for a single item.
    return Share(value, math.sqrt(value * (1 - value) / max(1, count - 1)), count)


def averages(shares: Mapping[str, Share]) -> dict[str, Share]:
    """Returns the paper's averages by name, with equal weights of the benchmarks. An average is
    omitted if the share of one of its benchmarks is missing."""
    means = {}
    for average, omitted in _OMITTED.items():
        names = [n for n in PAPER if BENCHMARKS[n].column not in (*omitted, _NOT_AVERAGED)]
        if all(name in shares for name in names):
            averaged = [shares[name] for name in names]
            # The errors are independent, so their variances add up.
            error = math.sqrt(sum(share.error**2 for share in averaged)) / len(averaged)
            value = sum(share.value for share in averaged) / len(averaged)
            means[average] = Share(value, error, sum(share.count for share in averaged))
    return means


def by_metric(verdicts: Mapping[str, Sequence[Verdict]]) -> ByMetric:
    """Returns the share of right answers by metric and benchmark, of verdicts by benchmark."""
    return {
        metric: {
            name: share_of(sum(getattr(verdict, metric) for verdict in graded), len(graded))
            for name, graded in verdicts.items()
        }
        for metric in METRICS
    }


def lines(shares: ByMetric) -> list[list[str]]:
    """Returns a table with a line for each benchmark and average: percentages, with standard
    errors."""
    columns = [{**shares[metric], **averages(shares[metric])} for metric in METRICS]
    table = [["", "items", *METRICS]]
    for name, share in columns[0].items():
        cells = [f"{100 * c[name].value:.1f} ± {100 * c[name].error:.1f}" for c in columns]
        table.append([title(name), f"{share.count:,}", *cells])
    return table


def results(model: str, shares: ByMetric, about: Any) -> dict[str, Any]:
    """Returns the content of `results.json`. Its `scores` are percentages by the paper's columns
    and by the rules of its harness; errors, counts and the other metric are under `about`."""
    details = {
        metric: {
            title(name): {
                "percent": round(100 * share.value, 4),
                "standard_error": round(100 * share.error, 4),
                "count": share.count,
            }
            for name, share in {**of_metric, **averages(of_metric)}.items()
        }
        for metric, of_metric in shares.items()
    }
    percentages = {
        title(name): round(100 * share.value, 4) for name, share in shares["harness_match"].items()
    }
    return {"model": model, "scores": percentages, "about": {**about, **details}}


def title(name: str) -> str:
    """Returns the paper's name of a benchmark, or the name of an average as it is."""
    return (BENCHMARKS[name].column or name) if name in BENCHMARKS else name


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of a model on the benchmarks that it was asked."""

    shares: ByMetric
    examples: Mapping[str, str]
    """Source of the worked examples, by benchmark."""

    def count(self, name: str) -> int:
        """Returns the number of items of a benchmark; 0 if it was not measured."""
        share = self.shares[METRICS[0]].get(name)
        return share.count if share else 0


def read_stored(out: Path, about: Mapping[str, Any]) -> Measured:
    """Reads the results in a folder. They are empty if it has no `results.json`.

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
        shares: dict[str, dict[str, Share]] = {metric: {} for metric in METRICS}
        for metric, name in product(METRICS, examples):
            entry = stored[metric][title(name)]
            # Four decimals of a percentage determine the number of right answers exactly, up to a
            # million items.
            right = round(entry["percent"] * entry["count"] / 100)
            shares[metric][name] = share_of(right, entry["count"])
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: damaged, or not of `vocagno eval` ({type(error).__name__}: {error}); move it "
            "away, or use another --out"
        ) from error
    check_same(path, {name: stored.get(name) for name in about}, about)
    return Measured(shares, examples)


def merge_results(before: Measured, now: Measured) -> Measured:
    """Returns the results of two evaluations. For a benchmark that both have, it takes the result
    of more items, or the later one if the numbers are equal."""
    latest = {
        name: now if now.count(name) >= before.count(name) else before
        for name in BENCHMARKS
        if now.count(name) or before.count(name)
    }
    return Measured(
        {
            metric: {name: measured.shares[metric][name] for name, measured in latest.items()}
            for metric in METRICS
        },
        {name: measured.examples[name] for name, measured in latest.items()},
    )
