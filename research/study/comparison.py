"""Compares the runs of a study: means over the seeds, and differences seed by seed."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from research.study.measured import Measured
from research.study.plan import Plan


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean; NaN if a value is infinite or NaN."""
        return statistics.fmean(self.values) if self._is_finite else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation of a seed (n - 1); NaN with one, or if the mean is NaN."""
        is_known = len(self.values) > 1 and self._is_finite
        return statistics.stdev(self.values) if is_known else math.nan

    @property
    def _is_finite(self) -> bool:
        return all(map(math.isfinite, self.values))

    def text(self, form: str) -> str:
        if len(self.values) == 1:
            return f"{self.mean:{form}}"
        return f"{self.mean:{form}} ± {self.deviation:{form.lstrip('+')}}"


@dataclass(frozen=True, slots=True)
class Row:
    """A variant in a table."""

    variant: str
    against: str | None
    """The variant it is compared with; None for the baseline."""
    held_out_loss: Spread
    start_loss: float | None
    """Mean of the held-out loss before the first step."""
    difference: Spread | None
    """The held-out loss less that of `against` with the same seed: below 0 is better."""
    exact_answers: Spread | None
    trained_on: Spread
    cpu_ratio: float | None
    """The ratio of processor times to `against`: the median over the seeds."""
    peak_memory_mib: float | None
    """The median over the seeds."""
    steps_to_80: Spread | None = None
    """The first step with 80 % of the answers right, of the seeds that reached it."""
    asked_at_steps: int = 0
    """The number of seeds that answered at several steps."""
    confidence: "ConfidenceRow | None" = None
    others: "dict[str, OtherText]" = field(default_factory=dict)
    """What became of the loss on the other held-out corpora, by their names."""


@dataclass(frozen=True, slots=True)
class OtherText:
    """The loss on a held-out corpus that is not the one compared first, over the seeds."""

    start_loss: float | None
    """Mean before the first step."""
    loss: Spread
    """After the last step."""
    difference: Spread | None
    """The loss less that of `against` with the same seed."""


@dataclass(frozen=True, slots=True)
class ConfidenceRow:
    """The fields of `Confidence`, over the seeds of a variant."""

    entropy: Spread
    best_guess_right: Spread
    """In percent."""
    temperature: Spread
    tempered_loss: Spread
    difference: Spread | None
    """The tempered loss less that of `against` with the same seed."""


def compare_variants(plan: Plan, measured: Sequence[Measured], names: Sequence[str]) -> list[Row]:
    """Makes the rows of a table. Variants without a measured run are skipped."""
    by_variant = {name: _by_seed(measured, name) for name in plan.variants}
    return [
        _row(name, plan.against(name), by_variant[name], by_variant[plan.against(name)])
        for name in names
        if by_variant[name]
    ]


def markdown(title: str, rows: Sequence[Row]) -> str:
    """Writes a table in Markdown, with a column for whatever was measured of any row."""
    columns = [
        (title, [row.variant for row in rows]),
        ("seeds", [str(len(row.held_out_loss.values)) for row in rows]),
    ]
    if any(row.start_loss for row in rows):
        losses = [row.start_loss for row in rows]
        columns.append(("start", ["-" if loss is None else f"{loss:.4f}" for loss in losses]))
    columns += [
        ("held-out loss", [row.held_out_loss.text(".4f") for row in rows]),
        ("difference from", [_difference(row, row.difference) for row in rows]),
    ]
    for name in dict.fromkeys(name for row in rows for name in row.others):
        columns += _other_columns(name, rows)
    if any(row.confidence for row in rows):
        columns += _confidence_columns(rows)
    if any(row.exact_answers for row in rows):
        columns.append(
            ("exact answers (%)", [_spread_or_dash(row.exact_answers, ".1f") for row in rows])
        )
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
    """Makes text safe for a cell: it ends neither the cell nor the line."""
    return " ".join(text.splitlines()).replace("|", r"\|")


def _other_columns(name: str, rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """The columns of another held-out corpus: its loss, with that of the start in the title, and
    the differences."""
    others = [row.others.get(name) for row in rows]
    starts = [other.start_loss for other in others if other and other.start_loss is not None]
    title = f"{name} (start {statistics.fmean(starts):.4f})" if starts else name
    losses = [_spread_or_dash(other.loss if other else None, ".4f") for other in others]
    differences = [
        _difference(row, other.difference if other else None)
        for row, other in zip(rows, others, strict=True)
    ]
    return [(title, losses), (f"{name}: difference from", differences)]


def _confidence_columns(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    names = {
        "entropy": ("entropy", ".3f"),
        "best_guess_right": ("best guess right (%)", ".1f"),
        "temperature": ("temperature", ".3f"),
        "tempered_loss": ("loss with it", ".4f"),
    }
    columns = [
        (title, [_spread_or_dash(getattr(row.confidence, name, None), form) for row in rows])
        for name, (title, form) in names.items()
    ]
    differences = [getattr(row.confidence, "difference", None) for row in rows]
    cells = [
        _difference(row, difference) for row, difference in zip(rows, differences, strict=True)
    ]
    return [*columns, ("difference with it", cells)]


def _difference(row: Row, difference: Spread | None) -> str:
    text = _spread_or_dash(difference, "+.4f")
    return text if row.against is None else f"{row.against}: {text}"


def _spread_or_dash(spread: Spread | None, form: str) -> str:
    return "-" if spread is None else spread.text(form)


def _steps(row: Row) -> str:
    if row.steps_to_80 is None:
        return "never" if row.asked_at_steps else "-"
    reached = len(row.steps_to_80.values)
    of_all = "" if reached == row.asked_at_steps else f" ({reached} of {row.asked_at_steps})"
    return row.steps_to_80.text(".0f") + of_all


def _by_seed(measured: Sequence[Measured], name: str) -> dict[int | None, Measured]:
    return {run.seed: run for run in measured if run.variant == name}


def _row(
    name: str,
    against: str,
    runs: dict[int | None, Measured],
    baseline_runs: dict[int | None, Measured],
) -> Row:
    shared = [seed for seed in runs if seed in baseline_runs] if against != name else []
    differences = [runs[seed].held_out_loss - baseline_runs[seed].held_out_loss for seed in shared]
    ratios = [
        seconds / baseline_seconds
        for seed in shared
        if (seconds := runs[seed].cpu_seconds)
        and (baseline_seconds := baseline_runs[seed].cpu_seconds)
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
        confidence=_confidence(runs, baseline_runs, shared),
        others={
            corpus: _other_text(corpus, runs, baseline_runs, shared)
            for corpus in dict.fromkeys(
                corpus for run in runs.values() for corpus in run.other_losses or {}
            )
        },
    )


def _other_text(
    corpus: str,
    runs: dict[int | None, Measured],
    baseline_runs: dict[int | None, Measured],
    shared: Sequence[int | None],
) -> OtherText:
    def loss_of(run: Measured) -> float:
        return (run.other_losses or {}).get(corpus, math.nan)

    starts = [run.other_start_losses[corpus] for run in runs.values() if run.other_start_losses]
    return OtherText(
        statistics.fmean(starts) if starts else None,
        Spread(tuple(map(loss_of, runs.values()))),
        _spread(loss_of(runs[seed]) - loss_of(baseline_runs[seed]) for seed in shared),
    )


def _confidence(
    runs: dict[int | None, Measured],
    baseline_runs: dict[int | None, Measured],
    shared: Sequence[int | None],
) -> ConfidenceRow | None:
    confidences = [run.confidence for run in runs.values() if run.confidence is not None]
    if not confidences:
        return None
    differences = [
        confidence.tempered_loss - baseline.tempered_loss
        for seed in shared
        if (confidence := runs[seed].confidence) and (baseline := baseline_runs[seed].confidence)
    ]
    return ConfidenceRow(
        Spread(tuple(confidence.entropy for confidence in confidences)),
        Spread(tuple(100 * confidence.best_guess_right for confidence in confidences)),
        Spread(tuple(confidence.temperature for confidence in confidences)),
        Spread(tuple(confidence.tempered_loss for confidence in confidences)),
        _spread(differences),
    )


def _spread(values: Iterable[float]) -> Spread | None:
    """Collects values; None if there are none."""
    collected = tuple(values)
    return Spread(collected) if collected else None
