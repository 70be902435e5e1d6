"""Reads the logs of training runs: losses and kept share over the tokens trained on so far."""

import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, TypedDict, get_args, get_type_hints

from vocagno.errors import InputError
from vocagno.system.records import Count, Finite, check_type

METRICS = "metrics.jsonl"
_TOGETHER = {
    "loss": ("kept_fraction", "tokens", "tokens_per_s"),
    "coverage": ("loss", "unmapped"),
    "unmapped": ("loss", "coverage"),
    "validation_losses": ("validation_loss",),
}
"""The other values that a line must have if it has the value of the key."""


class RunError(InputError):
    """A folder that does not hold a training run, or a log that cannot be read."""


_NONE, _ZERO = Count(0), Finite(0.0)


class SpikeRow(TypedDict):
    """A row of a step whose loss is a spike."""

    row: Count
    documents: list[Count]
    loss: float
    corpus: str | None
    """The corpus of the row, if there are several."""


class Spike(TypedDict):
    """A step whose loss is a spike."""

    step: Count
    loss: float
    rows: list[SpikeRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The values of a line of the log that are read again.

    A line with `loss` is about some training steps, one with `validation_loss` about the held-out
    text.
    """

    step: Count
    loss: float | None = None
    kept_fraction: Finite = _ZERO
    tokens: Count = _NONE
    tokens_per_s: Finite = _ZERO
    data_share: Finite | None = None
    teacher_share: Finite | None = None
    mfu: Finite | None = None
    threshold: float | None = None
    paired: Finite | None = None
    mean_excess_loss: Finite | None = None
    mean_teacher_loss: Finite | None = None
    coverage: Finite | None = None
    scored: Finite | None = None
    unmapped: dict[str, Count] | None = None
    spikes: list[Spike] = field(default_factory=list)
    validation_loss: float | None = None
    validation_nats_per_byte: float | None = None
    validation_losses: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "Entry":
        """Makes an entry from a line whose values have the right types."""
        return cls(**{name: value for name, value in line.items() if name in _TYPES})

    @property
    def seconds(self) -> float:
        """Seconds of the training steps; 0 if their speed, which is rounded to tenths, is 0."""
        return self.tokens / self.tokens_per_s if self.tokens_per_s >= 0.1 else 0.0


def _without_none(kind: Any) -> Any:
    """The type without `| None`: a line omits a value that was not measured, it has no null."""
    members = [member for member in get_args(kind) if member is not NoneType]
    return members[0] if NoneType in get_args(kind) else kind


_TYPES = get_type_hints(Entry)
_NOT_NULL = {name: _without_none(kind) for name, kind in _TYPES.items()}
_LINE: Any = TypedDict("_LINE", _NOT_NULL, total=False)  # type: ignore[misc]  # fields of `Entry`


@dataclass(frozen=True, slots=True)
class Point:
    """The measurements of a run at a step. Losses are in nats a token; None: not measured."""

    step: int
    tokens: int
    """Predicted tokens from the start of the run to this step."""
    loss: float | None = None
    """The mean over the steps since the last point with a loss."""
    validation_loss: float | None = None
    kept_fraction: float | None = None
    """The share of the predicted tokens that were trained on, 0 to 1, over the steps of `loss`."""


@dataclass(frozen=True, slots=True)
class Run:
    """A training run as its log has it."""

    name: str
    folder: Path
    entries: list[Entry]
    """All lines of the log."""
    points: list[Point]
    """The measurements by ascending step; at least one of them has a loss."""
    tokens_per_s: float | None
    """The predicted tokens of all training lines, divided by the seconds of all."""

    def curve(self, quantity: str) -> tuple[list[int], list[float]]:
        """The tokens and values of the points that have a quantity (a field of `Point`)."""
        points = [point for point in self.points if getattr(point, quantity) is not None]
        return [point.tokens for point in points], [getattr(point, quantity) for point in points]

    @property
    def kept_share(self) -> float:
        """The share of all predicted tokens that were trained on."""
        windows = [point for point in self.points if point.kept_fraction is not None]
        begins = [0, *(point.tokens for point in windows)]
        kept = 0.0
        for point, begin in zip(windows, begins, strict=False):  # begins has one more
            kept += (point.tokens - begin) * (point.kept_fraction or 0.0)
        return kept / max(1, begins[-1])

    def as_dict(self) -> dict[str, Any]:
        """A summary: how far the run went, and its losses.

        A value is None if it was not measured, or was never finite.
        """
        validation = self.curve("validation_loss")[1]
        last = validation[-1] if validation else math.nan
        per_byte = [entry.validation_nats_per_byte or math.nan for entry in self.entries]
        return {
            "steps": self.points[-1].step,
            "tokens": self.points[-1].tokens,
            "last_validation_loss": last if math.isfinite(last) else None,
            "last_nats_per_byte": next(filter(math.isfinite, per_byte[::-1]), None),
            "best_validation_loss": min(filter(math.isfinite, validation), default=None),
            "mean_tokens_per_s": self.tokens_per_s and round(self.tokens_per_s, 1),
        }


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads runs. The name of each is the last part of its folder's path; more parts if two agree.

    Raises: RunError for a folder given twice, or for one that `read_run` cannot read.
    """
    return [read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def read_run(folder: Path, name: str | None = None) -> Run:
    """Reads the log in the output folder of a run, finished or not.

    The tokens of a validation between two training lines are interpolated by its step. A last line
    truncated by a kill is skipped, and so are lines with neither loss.

    Raises: RunError, which names the folder, or the file and the line.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; expected the `output` of a training run")
    path = folder / METRICS
    if not path.is_file():
        raise RunError(f"{folder}: no {METRICS} in it; expected the `output` of a training run")
    measured: dict[int, dict[str, float]] = {}
    last = {"loss": 0, "validation_loss": -1}  # steps of the last lines of both kinds
    steps, tokens = [0], [0]  # where the windows of the training lines end
    timed, seconds = 0, 0.0
    entries = []
    for where, entry in _entries(path):
        entries.append(entry)
        kinds = [kind for kind in last if getattr(entry, kind) is not None]
        for kind in kinds:
            # Two runs that wrote into one folder, or a log that was put together by hand, would
            # give a curve that goes back.
            if entry.step <= last[kind]:
                raise RunError(
                    f"{where}: step {entry.step} with `{kind}` after step {last[kind]}; expected "
                    "the log of one run, whose steps ascend"
                )
            last[kind] = entry.step
            measured.setdefault(entry.step, {})[kind] = getattr(entry, kind)
        if "loss" in kinds:
            measured[entry.step]["kept_fraction"] = entry.kept_fraction
            steps.append(entry.step)
            tokens.append(tokens[-1] + entry.tokens)
            if entry.tokens_per_s > 0:
                timed, seconds = timed + entry.tokens, seconds + entry.tokens / entry.tokens_per_s
    if len(steps) == 1:
        raise RunError(
            f"{path}: no training line (one with `loss`) yet; a run writes its first one after "
            "train.log_every steps"
        )
    return Run(
        name=name or _names([folder])[0],
        folder=folder,
        entries=entries,
        points=[
            Point(step, _tokens_at(step, steps, tokens), **measured[step])
            for step in sorted(measured)
        ],
        tokens_per_s=timed / seconds if seconds else None,
    )


def _entries(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yields the lines of a log, each with the words that say where it stands."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):  # the last one, truncated by a kill
                    return
                raise _fault(where, f"not JSON ({error})") from error
            values = check_type(_LINE, values, partial(_fault, where))
            if "step" not in values:
                raise _fault(where, "has no `step`")
            present = {name for name, value in values.items() if value is not None}
            for name, companions in _TOGETHER.items():
                missing = [other for other in companions if other not in present]
                if name in present and missing:
                    raise _fault(where, f"has `{name}`, but no `{missing[0]}`")
            yield where, Entry.of(values)


def _fault(where: str, words: str) -> RunError:
    return RunError(f"{where}: {words}; fix or remove the line")


def _tokens_at(step: int, steps: Sequence[int], tokens: Sequence[int]) -> int:
    """The predicted tokens up to a step, interpolated between the ends of windows.

    A step after the last window is extrapolated from it.
    """
    right = min(max(1, bisect_left(steps, step)), len(steps) - 1)
    tokens_per_step = (tokens[right] - tokens[right - 1]) / (steps[right] - steps[right - 1])
    return tokens[right] + round((step - steps[right]) * tokens_per_step)


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest distinct names: as few last parts of each path as make it unlike the others.

    Raises: RunError for a folder given twice, which no number of parts distinguishes.
    """
    paths = [folder.resolve() if ".." in folder.parts else folder.absolute() for folder in folders]
    lengths = [1] * len(paths)
    while True:
        names = [Path(*p.parts[-n:]).as_posix() for p, n in zip(paths, lengths, strict=True)]
        counts = Counter(names)
        alike = [counts[name] > 1 for name in names]
        if not any(alike):
            return names
        for folder, path in zip(folders, paths, strict=True):
            if paths.count(path) > 1:
                raise RunError(f"{folder}: given twice; name each run once")
        lengths = [length + is_alike for length, is_alike in zip(lengths, alike, strict=True)]
