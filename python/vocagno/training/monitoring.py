"""The log of a run: sums over a window of steps, anomalies and trackers."""

import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.data.rows import MixedRows
from vocagno.errors import ConfigError, GuidanceError
from vocagno.guidance.batch import REASONS, TokenCounts
from vocagno.guidance.loss import LossSums
from vocagno.guidance.methods.base import Method
from vocagno.system.collectives import HostSum
from vocagno.training.run_log import Entry
from vocagno.training.sampler import MicroBatches

_SETTLED = 0.25
"""The share of a run after which the threshold of its quota is judged."""
_LEAST_KEPT = 0.5
"""A run that drops noise warns if it keeps a smaller share of the tokens of a window."""
_LEAST_PAIRED = 0.05
"""A run warns if a smaller share of the tokens has the teacher's distribution."""
_LEVEL = 0.05
"""A teacher is level with the student if it loses more by at most this share of its own loss.

Such a teacher gains a little; one that loses a quarter more does harm.
"""
_USUAL_DEVIATION = 0.1
"""A run warns if the share of kept tokens differs from `top_fraction` by more than this."""


class DeviceTime:
    """The time that the device spends on some work, added up without making the host wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[tuple[Any, Any]] = []
        self._seconds = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Adds the time that the device spends on the work of a block."""
        if self._device.type == "cpu":
            began = time.monotonic()
            yield
            self._seconds += time.monotonic() - began
            return
        # Events are taken by the device when it reaches them. A clock on the host would see
        # launches only.
        begin, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._events.append((begin, end))

    def seconds(self) -> float:
        """The seconds that were added up so far; waits for the device."""
        for begin, end in self._events:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1e3
        self._events.clear()
        return self._seconds


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The results of one step. The tensors stay on the device until the window ends."""

    step: int
    """The number of steps before this one."""
    counts: TokenCounts
    """The counts of tokens, over all processes."""
    norm: Tensor
    """The norm of the gradient, before clipping."""
    sums: Tensor
    """The `LossSums.tensor` of this process."""
    row_sums: list[Tensor]
    """For each micro-batch, (B,): the sum of the losses of each row."""


class Window:
    """The steps since the last line of the log, which become its next line."""

    def __init__(self, device: torch.device, method: Method) -> None:
        self.method = method
        self.records: list[StepRecord] = []
        self.teacher_time: DeviceTime = DeviceTime(device)
        """The time of a live teacher."""
        self.started: float = time.monotonic()
        """The start of the window, moved later by the time that went into other work than steps."""
        self.waited: float = 0.0
        """Seconds for which the steps waited for their rows: loading, aligning, collating."""

    def sums(self) -> Tensor:
        """The sums of each step of this process, (steps, 10) on the host; waits for the device.

        The columns are those of `LossSums.tensor`.
        """
        return torch.stack([record.sums for record in self.records]).cpu()

    @property
    def counts(self) -> TokenCounts:
        """The counts of the tokens of all steps, over all processes."""
        return reduce(TokenCounts.plus, (record.counts for record in self.records), TokenCounts())

    def entry(self, step: int, sums: Tensor) -> dict[str, Any]:
        """The line for `metrics.jsonl`. Args: sums: `sums()`, added up over all processes."""
        total = LossSums.of(sums.sum(0))
        tokens = token_entry(f"step {step}", self.method, total, self.counts)
        elapsed = time.monotonic() - self.started
        entry: dict[str, Any] = {
            "step": step,
            **tokens,
            "tokens_per_s": round(tokens["tokens"] / elapsed, 1),
            "data_share": round(self.waited / elapsed, 4),
            "grad_norm": float(self.records[-1].norm),
        }
        if teacher := self.teacher_time.seconds():
            entry["teacher_share"] = round(teacher / elapsed, 4)
        return entry


def token_entry(where: str, method: Method, sums: LossSums, counts: TokenCounts) -> dict[str, Any]:
    """The part of a line of the log that describes the tokens of some steps.

    Args:
        where: the beginning of an error message.
        sums, counts: the totals of all processes.
    Raises: GuidanceError if the device kept another number of tokens than the alignment says.
    """
    # The host counted the kept tokens from the alignment, and the device ranked them: if the
    # numbers differ, columns and tokens do not belong together.
    kept = counts.kept if method.counts_kept_exactly else sums.kept
    # A loss that is not finite has its own error, which names the rows (`Watch`).
    if kept != sums.kept and math.isfinite(sums.nll):
        raise GuidanceError(
            f"{where}: {sums.kept:,.0f} tokens were kept where the alignment says "
            f"{kept:,}: what the device ranked is not what the host aligned"
        )
    predicted = max(1, counts.predicted)
    entry: dict[str, Any] = {
        "loss": sums.nll / predicted,
        "kept_loss": sums.kept_nll / (kept or 1),
        "kept_fraction": kept / predicted,
        "tokens": counts.predicted,
        **counts.shares,
    }
    if counts.with_text:  # aligned to a teacher
        entry["unmapped"] = {reason: getattr(counts, reason) for reason in REASONS}
    return entry | method.log(sums, counts)


class Warnings:
    """The warnings of a run about its guidance; each kind comes at most once.

    The selection is unusual; the paper's rule flattens the student (docs/guidance.md); a teacher
    whose distribution is learnt knows less than the student (docs/distributions.md).
    """

    def __init__(self, guidance: GuidanceConfig, steps: int) -> None:
        self._guidance = guidance
        self._first_step = steps * _SETTLED
        self._is_unusual = False
        self._is_behind = False
        # Judged once: the warning is for the paper's quota, whose threshold is an excess loss only
        # if nothing else ranks.
        self._is_judged = not (guidance.keeps_quota and guidance.criterion == "excess")

    def look(self, entry: Entry) -> list[str]:
        """The new warnings after a window; the threshold is judged after a quarter of the run."""
        warnings, threshold = [], entry.threshold
        if not self._is_unusual and (unusual := unusual_selection(entry, self._guidance)):
            self._is_unusual = True
            warnings.append(unusual)
        if not self._is_behind and (weak_teacher := teacher_behind(entry, self._guidance)):
            self._is_behind = True
            warnings.append(weak_teacher)
        if not self._is_judged and threshold is not None and entry.step >= self._first_step:
            self._is_judged = True  # once, whatever it is
            if threshold > 0:
                warnings.append(
                    f"step {entry.step}: the threshold of guidance.top_fraction "
                    f"{self._guidance.top_fraction} is {threshold:+.2f} nats: tokens on which the "
                    "student is behind the teacher by less are not trained, which raises the "
                    "held-out loss of clean text; a run without guidance.top_fraction drops lines "
                    "of noise instead (docs/guidance.md)"
                )
        return warnings


def teacher_behind(entry: Entry, guidance: GuidanceConfig) -> str | None:
    """A warning if the teacher loses more than the student where both are compared; else None.

    Only methods that train towards the teacher's distribution need one.
    """
    excess, teacher_loss = entry.mean_excess_loss, entry.mean_teacher_loss
    if not guidance.is_matching or excess is None or teacher_loss is None:
        return None
    if excess >= -_LEVEL * teacher_loss:
        return None
    return (
        f"step {entry.step}: the teacher is behind: it loses {teacher_loss:.2f} nats a token of "
        f"the student's, the student {teacher_loss + excess:.2f}, and guidance.method: "
        f"{guidance.method} moves the student towards it, which raised the held-out loss wherever "
        "it was tried (docs/distributions.md). Choose a teacher that is ahead (`vocagno scores "
        "compare`), or guidance.method: vocagno, which only drops what is noise"
    )


def unusual_selection(entry: Entry, guidance: GuidanceConfig) -> str | None:
    """A warning if a window trains on an unusual share of the tokens; else None.

    In this order: more tokens have no scores than `guidance.min_coverage` allows for a corpus; few
    have the teacher's distribution; most are dropped as noise; the share of kept tokens differs
    from `guidance.top_fraction`.
    """
    if entry.loss is None:  # a line about held-out text
        return None
    reasons, kept, tokens = entry.unmapped or {}, entry.kept_fraction, max(1, entry.tokens)
    missing = reasons.get("missing", 0) / tokens
    if missing > 1 - guidance.min_coverage:
        return (
            f"step {entry.step}: {missing:.0%} of the tokens are in text without scores, which "
            "the teacher's tokenizer cannot read or which was not scored, and guidance.unmapped is "
            f"{guidance.unmapped}"
        )
    if entry.paired is not None and entry.paired < _LEAST_PAIRED:
        return (
            f"step {entry.step}: only {entry.paired:.1%} of the tokens have a distribution of the "
            "teacher to learn from; see guidance.distill_where, and `vocagno overlap`"
        )
    if guidance.ignores_excess and kept < _LEAST_KEPT:
        return (
            f"step {entry.step}: only {kept:.0%} of the tokens are kept; the "
            "others are noise by guidance.window_max_loss. If the text is clean, that is too low "
            "for this teacher; `vocagno limit` finds one"
        )
    if not guidance.keeps_quota or guidance.top_fraction is None or not reasons:
        return None
    quota = guidance.top_fraction
    if abs(kept - quota) <= _USUAL_DEVIATION:
        return None
    worst = max(reasons, key=lambda reason: reasons[reason])
    without = sum(reasons.values()) / tokens
    return (
        f"step {entry.step}: {kept:.0%} of the tokens are kept, not {quota:.0%}: "
        f"{without:.0%} have no teacher loss (most of them: {worst}), and guidance.unmapped is "
        f"{guidance.unmapped}"
    )


SPIKE_RATIO = 1.5
"""A step whose loss is so many times that of the window before is logged with its documents."""
_MOST_ROWS = 4
"""The number of rows of a step that are named, those with the largest losses."""


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """Finds the steps and rows whose loss is unusual. All processes call it at the same steps."""

    batches: MicroBatches
    rows: MixedRows
    seq_len: int
    host_sum: HostSum

    def look(self, window: Window, sums: Tensor, usual_loss: float | None) -> list[dict[str, Any]]:
        """Finds the steps whose loss is a spike, each with the rows that have the largest losses.

        Args:
            sums: `window.sums()` added up over all processes.
            usual_loss: the mean of the window before, if there was one.
        Returns: a dict for each spike: `step`, `loss`, `rows`.
        Raises: GuidanceError for a step with a NaN or infinite loss or gradient.
        """
        spikes = []
        for record, step_sums in zip(window.records, sums, strict=True):
            loss = LossSums.of(step_sums).nll / max(1, record.counts.predicted)
            norm = float(record.norm)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._refuse(record, loss, norm)
            if usual_loss is not None and loss > SPIKE_RATIO * usual_loss:
                spikes.append({"step": record.step + 1, "loss": loss, "rows": self.largest(record)})
        return spikes

    def largest(self, record: StepRecord) -> list[dict[str, Any]]:
        """The rows of a step with the largest losses, over all processes, worst first."""
        # The rows of the step are computed again from its number; nothing is kept for the case of a
        # spike.
        numbers = [row for rows in self.batches.rows_of(record.step) for row in rows]
        losses = (torch.cat(record.row_sums) / self.seq_len).tolist()
        rows = [
            self._row_facts(number) | {"loss": loss}
            for number, loss in zip(numbers, losses, strict=True)
        ]
        # Each process sends only its worst rows: the worst of all are among these.
        return _worst([row for part in self.host_sum.gather(_worst(rows)) for row in part])

    def _row_facts(self, row: int) -> dict[str, Any]:
        """The number of a row in its corpus and its documents; the corpus, if there are several."""
        corpus, number = self.rows.place(row)
        stores = self.rows.stores
        documents = stores[corpus][number].documents.tolist()
        name = {"corpus": corpus} if len(stores) > 1 else {}
        return name | {"row": number, "documents": documents}

    def _refuse(self, record: StepRecord, loss: float, norm: float) -> None:
        """Raises: GuidanceError for a step whose loss or gradient is not finite."""
        rows = self.largest(record)
        bad = [row for row in rows if _sortable_loss(row) == math.inf] or rows
        fault = f"loss is {loss}" if not math.isfinite(loss) else f"grad_norm is {norm}"
        raise GuidanceError(
            f"step {record.step + 1}: {fault}; {describe_rows(bad)}. Look at these documents, or "
            "lower optimizer.lr (in another `output`). The last checkpoint is as it was."
        )


def describe_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Text that names rows by number, corpus, loss and documents."""
    return "; ".join(
        f"row {row['row']}{' of ' + row['corpus'] if row.get('corpus') else ''} ("
        f"loss {row['loss']:.3g}, documents {', '.join(map(str, row['documents']))})"
        for row in rows
    )


def _worst(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=_sortable_loss, reverse=True)[:_MOST_ROWS]


def _sortable_loss(row: dict[str, Any]) -> float:
    """The loss of a row; NaN counts as infinite, because sorting by NaN has no order."""
    loss = float(row["loss"])
    return loss if math.isfinite(loss) else math.inf


Log = Callable[[Mapping[str, Any]], None]
"""A function that takes a line of `metrics.jsonl`."""


def check_trackers(names: Sequence[str]) -> None:
    """Checks that trackers are installed: Accelerate omits others silently. Raises: ConfigError."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"train.log_with: {name} is not installed; `pip install {name}`, or omit it"
            )


@contextmanager
def tracking(
    accelerator: Accelerator, project: str, run: str, options: Mapping[str, Any]
) -> Iterator[Log]:
    """Starts the trackers of a run on its first process, and ends them even after an error."""
    names = {"wandb": {"name": run}, "trackio": {"name": run}}
    plain = {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in options.items()
    }
    accelerator.init_trackers(project, plain, names)
    try:
        yield lambda entry: accelerator.log(_numbers(entry), step=entry["step"])
    finally:
        # Accelerate's `end_training` would also end the process group, which the processes still
        # need.
        for tracker in accelerator.trackers:
            tracker.finish()
        accelerator.trackers.clear()


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line for trackers, which take no nested values.

    A mapping becomes a number for each key (`unmapped/REASON`), a list (spikes) its length.
    """
    numbers: dict[str, float] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            numbers |= {f"{name}/{key}": number for key, number in value.items()}
        elif isinstance(value, list):
            numbers[name] = len(value)
        elif name != "step":
            numbers[name] = value
    return numbers
