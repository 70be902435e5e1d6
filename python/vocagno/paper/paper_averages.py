"""Tables of results with the averages of the paper, as `vocagno.evaluation.summary` has them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vocagno.evaluation.results import (
    AVERAGES,
    BENCHMARKS,
    NOT_AVERAGED,
    STARRED,
    Result,
    ResultError,
    ResultTable,
    read_results,
)

AVERAGED = tuple(name for name in BENCHMARKS if name not in NOT_AVERAGED)
"""The paper's nine columns."""


@dataclass(frozen=True, slots=True)
class PaperTable(ResultTable):
    """Results of which only the paper's columns are averaged: not `math`, say, which is none."""

    def averaged(self, average: str) -> tuple[str, ...]:
        """The paper's columns in an average; without one of them a result has no such average.

        Raises: ResultError for a name that is not in `AVERAGES`.
        """
        whole = ResultTable(self.labels, AVERAGED, self.starred | STARRED, ())
        return ResultTable.averaged(whole, average)

    @property
    def averages(self) -> tuple[str, ...]:
        """Those of `AVERAGES` that lack no benchmark."""
        return tuple(name for name in AVERAGES if {*self.averaged(name)} <= {*self.benchmarks})


def read_paper_results(paths: Sequence[Path]) -> PaperTable:
    """As `read_results`, with the averages of the paper. Those in a file are compared only, also in
    JSON. TAB, MMLU-STEM and SAT are starred, whether their file stars them or not.

    Raises: ResultError as `read_results`, and for a result that has averages only.
    """
    table = read_results(paths)
    benchmarks = tuple(name for name in table.benchmarks if not name.startswith("AVG"))
    starred = table.starred | (STARRED & {*benchmarks})
    return PaperTable(table.labels, benchmarks, starred, tuple(map(_apart, table.results)))


def _apart(result: Result) -> Result:
    """The same with averages among the results, as JSON may have them, as published ones."""
    found = {name: value for name, value in result.percentages.items() if name.startswith("AVG")}
    for name in found:
        if name not in AVERAGES:
            raise ResultError(
                f"{result.where}, {name}: not an average; expected {', '.join(AVERAGES)}"
            )
    percentages = {name: value for name, value in result.percentages.items() if name not in found}
    if not percentages and found:
        raise ResultError(f"{result.where}: has averages only; expected results by benchmark")
    published = {name: f"{value:.12g}" for name, value in found.items()}
    return replace(result, percentages=percentages, published={**result.published, **published})
