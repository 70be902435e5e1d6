"""Runs of a study beside one another: means over the seeds, and differences seed by seed."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from vocagno.files import write_table
from vocagno.study.carrying_out import Measured
from vocagno.study.plan import Plan


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of all seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Standard deviation of a seed (n - 1); NaN with one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    def worded(self, form: str, unit: str = "") -> str:
        """Mean and deviation."""
        if len(self.values) == 1:
            return f"{self.mean:{form}}{unit}"
        return f"{self.mean:{form}} ± {self.deviation:{form.lstrip('+')}}{unit}"


@dataclass(frozen=True, slots=True)
class Row:
    """A variant in a table."""

    variant: str
    against: str | None
    """What it is compared with, if not with itself."""
    held_out_loss: Spread
    difference: Spread | None
    """Of the held-out loss from that of `against` with the same seed: below 0 is better."""
    exact_answers: Spread | None
    trained_on: Spread
    cpu_ratio: float | None
    """Median over the seeds, of processor time, to `against`."""
    peak_memory_mib: float | None
    """Median."""


def compared(plan: Plan, measured: Sequence[Measured], names: Sequence[str]) -> list[Row]:
    """The rows of a table; variants of which nothing is measured yet are left out."""
    by_variant = {name: _by_seed(measured, name) for name in plan.variants}
    return [
        _row(name, plan.against(name), by_variant[name], by_variant[plan.against(name)])
        for name in names
        if by_variant[name]
    ]


def markdown(title: str, rows: Sequence[Row]) -> str:
    """A table, with the number of seeds in its heading."""
    has_answers = any(row.exact_answers for row in rows)
    header = [title, "seeds", "held-out loss", "difference from"]
    header += ["exact answers (%)"] if has_answers else []
    header += ["trained on", "processor time", "memory (MiB)"]
    lines = [header, ["---", *["--:"] * (len(header) - 1)]]
    for row in rows:
        cells = [row.variant, str(len(row.held_out_loss.values)), row.held_out_loss.worded(".4f")]
        difference = "-" if row.difference is None else row.difference.worded("+.4f")
        cells.append(difference if row.against is None else f"{row.against}: {difference}")
        if has_answers:
            answers = row.exact_answers
            cells.append("-" if answers is None else answers.worded(".1f"))
        cells.append(f"{row.trained_on.mean:.1%}")
        cells.append("-" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}")
        cells.append("-" if row.peak_memory_mib is None else f"{row.peak_memory_mib:,.0f}")
        lines.append(cells)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_runs(path: Path, measured: Sequence[Measured]) -> None:
    """Every run, a line each."""
    header = [field.name for field in fields(Measured)]
    write_table(path, [header, *(astuple(run) for run in measured)])


def _by_seed(measured: Sequence[Measured], name: str) -> dict[int | None, Measured]:
    return {run.seed: run for run in measured if run.variant == name}


def _row(
    name: str, against: str, runs: dict[int | None, Measured], others: dict[int | None, Measured]
) -> Row:
    shared = [seed for seed in runs if seed in others] if against != name else []
    differences = [runs[seed].held_out_loss - others[seed].held_out_loss for seed in shared]
    answers = [run.exact_answers for run in runs.values() if run.exact_answers is not None]
    ratios = [
        mine / theirs
        for seed in shared
        if (mine := runs[seed].cpu_seconds) and (theirs := others[seed].cpu_seconds)
    ]
    memory = [run.peak_memory_mib for run in runs.values() if run.peak_memory_mib is not None]
    return Row(
        name, against if against != name else None,
        Spread(tuple(run.held_out_loss for run in runs.values())),
        Spread(tuple(differences)) if differences else None,
        Spread(tuple(100 * share for share in answers)) if answers else None,
        Spread(tuple(run.trained_on for run in runs.values())),
        statistics.median(ratios) if ratios else None,
        statistics.median(memory) if memory else None,
    )  # fmt: skip
