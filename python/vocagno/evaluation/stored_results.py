"""The results in a folder, `results.json`, to which later evaluations of the same model add."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import BENCHMARKS
from vocagno.evaluation.journal import check_same
from vocagno.evaluation.summary import METRICS, ByMetric, Share, share_of, title

RESULTS = "results.json"
"""In the folder of an evaluation."""


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
        found = {
            metric: {name: _share(stored[metric][title(name)]) for name in examples}
            for metric in METRICS
        }
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: damaged, or not of `vocagno eval` ({type(error).__name__}: {error}); move it "
            "away, or use another --out"
        ) from error
    check_same(path, {name: stored.get(name) for name in about}, about)
    return Measured(found, examples)


def _share(entry: Mapping[str, Any]) -> Share:
    """A share from its entry; four decimals of a percentage give the exact number of right items
    of less than a million."""
    return share_of(round(entry["percent"] * entry["count"] / 100), entry["count"])


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
