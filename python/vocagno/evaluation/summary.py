"""Results of a model: shares with standard errors, and the paper's averages of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vocagno.evaluation.benchmarks import BENCHMARKS, PAPER
from vocagno.evaluation.judging import Verdict

METRICS = ("harness_match", "math_verify")
_NOT_AVERAGED = "GSM-Hard"
"""Named in the paper's text, but not in its tables."""
_LEFT_OUT = {"AVG": [], "AVG (w/o *)": ["TAB", "MMLU-STEM", "SAT"], "AVG (w/o SAT)": ["SAT"]}
"""Omitted columns, by average (arXiv 2503.19123, Table 1)."""


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


def share_right(right: Sequence[bool]) -> Share:
    """The share of verdicts that are right."""
    return share_of(sum(right), len(right))


def share_of(right: int, count: int) -> Share:
    """The share of `right` items of `count`. Raises: ValueError if there are more right ones."""
    value = right / count
    return Share(value, math.sqrt(value * (1 - value) / max(1, count - 1)), count)


def shares(verdicts: Mapping[str, Sequence[Verdict]], metric: str) -> dict[str, Share]:
    """Results by benchmark."""
    return {
        name: share_right([getattr(verdict, metric) for verdict in found])
        for name, found in verdicts.items()
    }


def averages(found: Mapping[str, Share]) -> dict[str, Share]:
    """The paper's averages, with equal weights. An average that lacks a benchmark is omitted."""
    return {
        title: _mean([found[name] for name in names])
        for title, names in _AVERAGED.items()
        if all(name in found for name in names)
    }


_AVERAGED = {
    title: [name for name in PAPER if BENCHMARKS[name].column not in {*left_out, _NOT_AVERAGED}]
    for title, left_out in _LEFT_OUT.items()
}
"""Benchmarks, by average."""


def _mean(parts: Sequence[Share]) -> Share:
    error = math.sqrt(sum(part.error**2 for part in parts)) / len(parts)
    value = sum(part.value for part in parts) / len(parts)
    return Share(value, error, sum(part.count for part in parts))


def by_metric(verdicts: Mapping[str, Sequence[Verdict]]) -> ByMetric:
    """Results by metric, then by benchmark."""
    return {metric: shares(verdicts, metric) for metric in METRICS}


def lines(found: ByMetric) -> list[list[str]]:
    """A table: a line for each benchmark and average, percentages with standard errors."""
    with_averages = [{**found[metric], **averages(found[metric])} for metric in METRICS]
    return [
        ["", "items", *METRICS],
        *(
            [
                title(name),
                f"{with_averages[0][name].count:,}",
                *(_percent(found[name]) for found in with_averages),
            ]
            for name in with_averages[0]
        ),
    ]


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


def _percent(share: Share) -> str:
    return f"{100 * share.value:.1f} ± {100 * share.error:.1f}"
