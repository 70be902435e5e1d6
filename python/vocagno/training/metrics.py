"""What is logged of a run: sums over a window of steps, and the guard on coverage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vocagno.config import GuidanceConfig
from vocagno.errors import InputError
from vocagno.training.data import COUNTS
from vocagno.training.student import SUMS

_REASONS = ("special", "truncated", "hole", "unscored", "missing")


class GuidanceError(InputError):
    """A run that would not be what it says: a teacher that covers too little, a loss of NaN."""


class DeviceTime:
    """Time that the device spends on something, added up without the host waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[tuple[Any, Any]] = []
        self._seconds = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Adds what is done inside."""
        if self._device.type == "cpu":
            began = time.monotonic()
            yield
            self._seconds += time.monotonic() - began
            return
        begin, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._events.append((begin, end))

    def seconds(self) -> float:
        """All so far; waits for the device."""
        for begin, end in self._events:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1e3
        self._events.clear()
        return self._seconds


class Window:
    """Sums over the steps since the last entry; those of the device stay there until logged."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self._norm = torch.zeros((), device=device)
        self._counts = dict.fromkeys(COUNTS, 0)
        self._started = time.monotonic()
        self._waited = 0.0
        self.teacher_time = DeviceTime(device)
        """Of a live teacher."""

    def add_wait(self, seconds: float) -> None:
        """Adds time in which the step stood still for its rows: loading, aligning, collating."""
        self._waited += seconds

    def add_sums(self, sums: Tensor) -> None:
        self.sums += sums

    def add_step(self, counts: dict[str, int], norm: Tensor) -> None:
        """Adds the counts of a step, over all processes, and its gradient norm."""
        self._counts = {name: self._counts[name] + counts[name] for name in COUNTS}
        self._norm = norm

    def entry(self, step: int, sums: dict[str, float]) -> dict[str, Any]:
        """The line for `metrics.jsonl`, given the sums over all processes."""
        counts = self._counts
        predicted, scored = max(1, counts["predicted"]), max(1, counts["scored"])
        elapsed = time.monotonic() - self._started
        entry: dict[str, Any] = {
            "step": step,
            "loss": sums["nll"] / predicted,
            "kept_loss": sums["kept_nll"] / max(1, counts["kept"]),
            "kept_fraction": counts["kept"] / predicted,
            "tokens": counts["predicted"],
            "tokens_per_s": round(counts["predicted"] / elapsed, 1),
            "data_share": round(self._waited / elapsed, 4),
            "grad_norm": float(self._norm),
        }
        if counts["with_text"]:  # aligned to a teacher
            entry |= {
                "coverage": counts["mapped"] / counts["with_text"],
                "mean_excess_loss": sums["excess"] / scored,
                "mean_teacher_loss": sums["teacher"] / scored,
                "unmapped": {reason: counts[reason] for reason in _REASONS},
            }
        if teacher := self.teacher_time.seconds():
            entry["teacher_share"] = round(teacher / elapsed, 4)
        if counts["scorable"]:
            entry["scored"] = counts["scored"] / counts["scorable"]
        return entry


def check_window(entry: dict[str, Any], guidance: GuidanceConfig) -> None:
    """Stops a run that has silently become something else.

    Raises: GuidanceError below `guidance.min_coverage` (says which reason dominates), and for a
        loss that is not finite.
    """
    for name in ("loss", "grad_norm"):
        if not abs(entry[name]) < float("inf"):
            raise GuidanceError(
                f"step {entry['step']}: {name} is {entry[name]}; lower optimizer.lr, or look at "
                "the rows of the last steps. The last checkpoint is as it was."
            )
    if guidance.method == "cpt":
        return
    for name, possible in (
        ("coverage", ("truncated", "hole")),
        ("scored", ("truncated", "hole", "unscored")),
    ):
        share = entry.get(name, 1.0)  # absent: no token that could be mapped, or scored
        if share < guidance.min_coverage:
            reasons = {reason: entry["unmapped"][reason] for reason in possible}
            worst = max(reasons, key=lambda reason: reasons[reason])
            raise GuidanceError(
                f"step {entry['step']}: {name} is {share:.2%}, below guidance.min_coverage "
                f"{guidance.min_coverage:.2%}; most of the others are {worst} "
                f"({reasons[worst]} tokens). Without a teacher loss these tokens train as "
                "in naive pretraining: look at both tokenizers' spans, or lower the limit."
            )
