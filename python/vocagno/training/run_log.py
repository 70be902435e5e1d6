"""Logs of training runs over the predicted tokens seen so far: losses, selected share."""

import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

from vocagno.errors import InputError
from vocagno.system.records import Count, Finite, checked

METRICS = "metrics.jsonl"
_QUANTITIES = ("loss", "validation_loss", "kept_fraction")
_TOGETHER = {
    "loss": ("kept_fraction", "tokens", "tokens_per_s"),
    "coverage": ("loss", "unmapped"),
    "unmapped": ("loss", "coverage"),
    "validation_losses": ("validation_loss",),
}
"""What a line with a value has, too."""


class RunError(InputError):
    """A folder that does not hold a training run, or a log that cannot be read."""


class SpikeRow(TypedDict):
    """A row of a step whose loss is a spike."""

    row: Count
    documents: list[Count]
    loss: float | None
    corpus: str | None
    """If there are several."""


class Spike(TypedDict):
    """A step whose loss is a spike."""

    step: Count
    loss: float
    rows: list[SpikeRow]


class _Line(TypedDict):
    step: Count


class Entry(_Line, total=False):
    """A line of the log, as far as it is read. With `loss` it is of some training steps, with
    `validation_loss` of the held-out text."""

    loss: float
    kept_fraction: Finite
    tokens: Count
    tokens_per_s: Finite
    data_share: Finite
    teacher_share: Finite
    mfu: Finite
    threshold: float
    coverage: Finite
    scored: Finite
    unmapped: dict[str, Count]
    skipped: Count
    spikes: list[Spike]
    validation_loss: float
    validation_losses: dict[str, float]


@dataclass(frozen=True, slots=True)
class Point:
    """Measurements of a run at a step; losses in nats a token, None where not measured."""

    step: int
    tokens: int
    """Predicted tokens from the start of the run to this step."""
    loss: float | None = None
    """Mean over the steps since the last one that has a loss, as is `kept_fraction`."""
    validation_loss: float | None = None
    kept_fraction: float | None = None
    """Selected share of the predicted tokens, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Run:
    """A training run: its points, by ascending step, at least one of them with a loss."""

    name: str
    folder: Path
    entries: list[Entry]
    """All lines of its log."""
    points: list[Point]
    tokens_per_s: float | None
    """Predicted tokens over seconds, both of all training lines."""

    def curve(self, quantity: str) -> tuple[list[int], list[float]]:
        """Tokens and values of a quantity (a field of `Point`), where it was measured."""
        points = [point for point in self.points if getattr(point, quantity) is not None]
        return [point.tokens for point in points], [getattr(point, quantity) for point in points]

    @property
    def kept_share(self) -> float:
        """Selected share of all predicted tokens."""
        windows = [point for point in self.points if point.kept_fraction is not None]
        begins = [0, *(point.tokens for point in windows)]
        kept = sum(
            (point.tokens - begin) * (point.kept_fraction or 0.0)
            for point, begin in zip(windows, begins, strict=False)
        )
        return kept / max(1, begins[-1])

    def as_dict(self) -> dict[str, Any]:
        """How far it went and its losses; None where nothing was measured, or nothing finite."""
        validation = self.curve("validation_loss")[1]
        return {
            "steps": self.points[-1].step,
            "tokens": self.points[-1].tokens,
            "last_validation_loss": _last(validation),
            "best_validation_loss": min(filter(math.isfinite, validation), default=None),
            "mean_tokens_per_s": self.tokens_per_s and round(self.tokens_per_s, 1),
        }


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads runs, each named by the last part of its folder's path, by more where two are alike.

    Raises: RunError for a folder given twice, and as `read_run`.
    """
    return [read_run(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def read_run(folder: Path, name: str | None = None) -> Run:
    """Reads the log in the output folder of a run, finished or not.

    A validation between two training lines lies between their tokens in proportion to its step. A
    last line truncated by a kill is skipped, as are lines with neither loss.

    Raises: RunError, which names the folder, or the file and the line.
    """
    path = _log(folder)
    measured: dict[int, dict[str, float]] = {}
    last = {"loss": 0, "validation_loss": -1}  # steps of the last lines of both kinds
    steps, tokens = [0], [0]  # where the windows of the training lines end
    timed, seconds = 0, 0.0
    entries = []
    for where, entry in _entries(path):
        entries.append(entry)
        kinds = [kind for kind in last if kind in entry]
        if not kinds:
            continue
        step = entry["step"]
        for kind in kinds:
            if step <= last[kind]:
                raise RunError(
                    f"{where}: step {step} with `{kind}` after step {last[kind]}; expected the log "
                    "of one run, whose steps ascend"
                )
            last[kind] = step
        values = {name: cast("float", entry.get(name)) for name in _QUANTITIES if name in entry}
        measured[step] = measured.get(step, {}) | values
        if "loss" in kinds:
            steps.append(step)
            tokens.append(tokens[-1] + entry["tokens"])
            if (speed := entry["tokens_per_s"]) > 0:
                timed, seconds = timed + entry["tokens"], seconds + entry["tokens"] / speed
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


def _log(folder: Path) -> Path:
    path = folder / METRICS
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; expected the `output` of a training run")
    if not path.is_file():
        raise RunError(f"{folder}: no {METRICS} in it; expected the `output` of a training run")
    return path


def _entries(path: Path) -> Iterator[tuple[str, Entry]]:
    """The lines of a log, and where each stands."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):  # the last one, truncated by a kill
                    return
                raise _fault(where, f"not JSON ({error})") from error
            entry = checked(Entry, found, partial(_fault, where))
            for name, others in _TOGETHER.items():
                if name in entry and (lacking := [one for one in others if one not in entry]):
                    raise _fault(where, f"has `{name}`, but no `{lacking[0]}`")
            yield where, entry


def _fault(where: str, words: str) -> RunError:
    return RunError(f"{where}: {words}; fix or remove the line")


def _tokens_at(step: int, steps: Sequence[int], tokens: Sequence[int]) -> int:
    """Predicted tokens up to a step, if those of a window are spread evenly over its steps.

    After the last window they continue as in it.
    """
    right = min(max(1, bisect_left(steps, step)), len(steps) - 1)
    of_step = (tokens[right] - tokens[right - 1]) / (steps[right] - steps[right - 1])
    return tokens[right] + round((step - steps[right]) * of_step)


def _names(folders: Sequence[Path]) -> list[str]:
    """As few last parts of each path as tell it from the others."""
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
        lengths = [length + more for length, more in zip(lengths, alike, strict=True)]


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values and math.isfinite(values[-1]) else None
