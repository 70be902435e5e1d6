"""The runs of a study compared: means over the seeds, and differences seed by seed."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from research.study.measured import Measured
from research.study.plan import Plan


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """NaN with an infinite or NaN value."""
        return statistics.fmean(self.values) if self._is_finite else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation of a seed (n - 1); NaN with one, or if the mean is NaN."""
        is_known = len(self.values) > 1 and self._is_finite
        return statistics.stdev(self.values) if is_known else math.nan

    @property
    def _is_finite(self) -> bool:
        return all(map(math.isfinite, self.values))

    def worded(self, form: str) -> str:
        if len(self.values) == 1:
            return f"{self.mean:{form}}"
        return f"{self.mean:{form}} ± {self.deviation:{form.lstrip('+')}}"


@dataclass(frozen=True, slots=True)
class Row:
    """A variant in a table."""

    variant: str
    against: str | None
    """What it is compared with, if not with itself."""
    held_out_loss: Spread
    start_loss: float | None
    """Mean of the held-out loss before the first step."""
    difference: Spread | None
    """Of the held-out loss from that of `against` with the same seed: below 0 is better."""
    exact_answers: Spread | None
    trained_on: Spread
    cpu_ratio: float | None
    """Median over the seeds, of processor time, to `against`."""
    peak_memory_mib: float | None
    """Median."""
    steps_to_80: Spread | None = None
    """Of the seeds that came so far."""
    asked_at_steps: int = 0
    """Seeds that were asked at several steps."""
    confidence: "ConfidenceRow | None" = None


@dataclass(frozen=True, slots=True)
class ConfidenceRow:
    """Of the seeds of a variant, how sure they are; fields as those of `Confidence`."""

    entropy: Spread
    best_guess_right: Spread
    """In %."""
    temperature: Spread
    tempered_loss: Spread
    difference: Spread | None
    """Of the tempered loss, as `Row.difference`."""


def compared(plan: Plan, measured: Sequence[Measured], names: Sequence[str]) -> list[Row]:
    """The rows of a table; variants without a measured run are skipped."""
    by_variant = {name: _by_seed(measured, name) for name in plan.variants}
    return [
        _row(name, plan.against(name), by_variant[name], by_variant[plan.against(name)])
        for name in names
        if by_variant[name]
    ]


def markdown(title: str, rows: Sequence[Row]) -> str:
    """A table, with columns for what was measured of any row."""
    columns = [
        (title, [row.variant for row in rows]),
        ("seeds", [str(len(row.held_out_loss.values)) for row in rows]),
    ]
    if any(row.start_loss for row in rows):
        losses = [row.start_loss for row in rows]
        columns.append(("start", ["-" if loss is None else f"{loss:.4f}" for loss in losses]))
    columns += [
        ("held-out loss", [row.held_out_loss.worded(".4f") for row in rows]),
        ("difference from", [_difference(row, row.difference) for row in rows]),
    ]
    if any(row.confidence for row in rows):
        columns += _confidence_columns(rows)
    if any(row.exact_answers for row in rows):
        columns.append(("exact answers (%)", [_worded(row.exact_answers, ".1f") for row in rows]))
    if any(row.asked_at_steps for row in rows):
        columns.append(("steps to 80 %", [_steps(row) for row in rows]))
    ratios, memory = [row.cpu_ratio for row in rows], [row.peak_memory_mib for row in rows]
    columns += [
        ("trained on", [f"{row.trained_on.mean:.1%}" for row in rows]),
        ("processor time", ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]),
        ("memory (MiB)", ["-" if size is None else f"{size:,.0f}" for size in memory]),
    ]
    header = [name for name, _ in columns]
    lines = [header, ["---", *["--:"] * (len(header) - 1)]]
    lines += map(list, zip(*(cells for _, cells in columns), strict=True))
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    """Text that neither ends its cell nor its line."""
    return " ".join(text.splitlines()).replace("|", r"\|")


def _confidence_columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    names = {
        "entropy": ("entropy", ".3f"),
        "best_guess_right": ("best guess right (%)", ".1f"),
        "temperature": ("temperature", ".3f"),
        "tempered_loss": ("loss with it", ".4f"),
    }
    columns = [
        (title, [_worded(getattr(row.confidence, name, None), form) for row in rows])
        for name, (title, form) in names.items()
    ]
    differences = [getattr(row.confidence, "difference", None) for row in rows]
    cells = [_difference(row, found) for row, found in zip(rows, differences, strict=True)]
    return [*columns, ("difference with it", cells)]


def _difference(row: Row, difference: Spread | None) -> str:
    worded = _worded(difference, "+.4f")
    return worded if row.against is None else f"{row.against}: {worded}"


def _worded(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else spread.worded(form)


def _steps(row: Row) -> str:
    if row.steps_to_80 is None:
        return "never" if row.asked_at_steps else "-"
    reached = len(row.steps_to_80.values)
    of_all = "" if reached == row.asked_at_steps else f" ({reached} of {row.asked_at_steps})"
    return row.steps_to_80.worded(".0f") + of_all


def _by_seed(measured: Sequence[Measured], name: str) -> dict[int | None, Measured]:
    return {run.seed: run for run in measured if run.variant == name}


def _row(
    name: str, against: str, runs: dict[int | None, Measured], others: dict[int | None, Measured]
) -> Row:
    shared = [seed for seed in runs if seed in others] if against != name else []
    differences = [runs[seed].held_out_loss - others[seed].held_out_loss for seed in shared]
    ratios = [
        mine / theirs
        for seed in shared
        if (mine := runs[seed].cpu_seconds) and (theirs := others[seed].cpu_seconds)
    ]
    starts = [run.start_loss for run in runs.values() if run.start_loss is not None]
    memory = [run.peak_memory_mib for run in runs.values() if run.peak_memory_mib is not None]
    asked = [run for run in runs.values() if run.answers_at is not None]
    answers = (run.exact_answers for run in runs.values() if run.exact_answers is not None)
    return Row(
        variant=name,
        against=against if against != name else None,
        held_out_loss=Spread(tuple(run.held_out_loss for run in runs.values())),
        start_loss=statistics.fmean(starts) if starts else None,
        difference=_spread(differences),
        exact_answers=_spread(100 * share for share in answers),
        trained_on=Spread(tuple(run.trained_on for run in runs.values())),
        cpu_ratio=statistics.median(ratios) if ratios else None,
        peak_memory_mib=statistics.median(memory) if memory else None,
        steps_to_80=_spread(run.steps_to_80 for run in asked if run.steps_to_80 is not None),
        asked_at_steps=len(asked),
        confidence=_confidence(runs, others, shared),
    )


def _confidence(
    runs: dict[int | None, Measured],
    others: dict[int | None, Measured],
    shared: Sequence[int | None],
) -> ConfidenceRow | None:
    known = [run.confidence for run in runs.values() if run.confidence is not None]
    if not known:
        return None
    differences = [
        mine.tempered_loss - theirs.tempered_loss
        for seed in shared
        if (mine := runs[seed].confidence) and (theirs := others[seed].confidence)
    ]
    return ConfidenceRow(
        Spread(tuple(found.entropy for found in known)),
        Spread(tuple(100 * found.best_guess_right for found in known)),
        Spread(tuple(found.temperature for found in known)),
        Spread(tuple(found.tempered_loss for found in known)),
        _spread(differences),
    )


def _spread(values: Iterable[float]) -> Spread | None:
    """None without values."""
    found = tuple(values)
    return Spread(found) if found else None
