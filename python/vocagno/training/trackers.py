"""Sends the log of a run to experiment trackers through Accelerate."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator

from vocagno.errors import ConfigError

Log = Callable[[Mapping[str, Any]], None]
"""Takes a line of `metrics.jsonl`."""


def check_trackers(names: Sequence[str]) -> None:
    """Raises: ConfigError for a tracker whose package is not installed (Accelerate would
    silently continue without it)."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"train.log_with: {name} is not installed; `pip install {name}`, or omit it"
            )


@contextmanager
def tracking(
    accelerator: Accelerator, project: str, run: str, options: Mapping[str, Any]
) -> Iterator[Log]:
    """Starts the trackers of a run on its first process, and ends them whatever happens."""
    names = {"wandb": {"name": run}, "trackio": {"name": run}}
    accelerator.init_trackers(project, _plain(options), names)
    try:
        yield lambda entry: accelerator.log(_numbers(entry), step=entry["step"])
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()
        accelerator.trackers.clear()


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in options.items()
    }


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line, those of `unmapped` as unmapped/REASON; spikes by their number."""
    found: dict[str, float] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{key}": number for key, number in value.items()}
        elif isinstance(value, list):
            found[name] = len(value)
        elif name != "step":
            found[name] = value
    return found
