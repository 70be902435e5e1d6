"""Runs that differ in one option: what it does under several teachers."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vocagno.config.guidance import GuidanceConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.paper.paper_averages import read_paper_results
from vocagno.paper.teacher_names import teacher_names
from vocagno.training.configuration import may_change
from vocagno.training.run_log import RunError, read_run

CONFIG = "config.yaml"
RESULTS = "results.json"
"""A run's results, next to its configuration: one object in the form of `evaluation.results`."""

VALIDATION_LOSS = "validation_loss"
"""What is compared by default: the last one of the run, in nats a token."""

_SAME = ("student.", "guidance.", "optimizer.", "train.")
_ALSO_SAME = ("data.train", "data.validation", "data.seq_len", "data.isolate")


@dataclass(frozen=True, slots=True)
class SweptRun:
    """What one run says about an option."""

    folder: str
    teacher: str
    """Name of the teacher, with as many of its folders and options as tell it from the others;
    `none` where there is none."""
    seed: int
    x: float
    """The option."""
    y: float
    """Nats a token, or percent."""


@dataclass(frozen=True, slots=True)
class SweptPoint:
    """Runs of one teacher and one value of the option: their mean, and where they lie."""

    teacher: str
    x: float
    mean: float
    lowest: float
    highest: float
    runs: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs that differ in one option, their seeds and their teachers."""

    option: str
    quantity: str
    runs: tuple[SweptRun, ...]

    @property
    def points(self) -> list[SweptPoint]:
        """Teacher by teacher as they were given, the option ascending."""
        values: dict[tuple[str, float], list[float]] = {}
        for run in self.runs:
            values.setdefault((run.teacher, run.x), []).append(run.y)
        teachers = list(dict.fromkeys(run.teacher for run in self.runs))
        ordered = sorted(values.items(), key=lambda item: (teachers.index(item[0][0]), item[0][1]))
        return [
            SweptPoint(teacher, x, sum(found) / len(found), min(found), max(found), len(found))
            for (teacher, x), found in ordered
        ]


def read_sweep(folders: Sequence[Path], option: str, *, quantity: str = VALIDATION_LOSS) -> Sweep:
    """Reads runs that differ only in one option, their seeds and their teachers.

    Args:
        option: by its full name, as `guidance.top_fraction`; its values must be numbers.
        quantity: `validation_loss`, or a benchmark or average in the `results.json` of each run.
    Raises: RunError naming the run that has no such number, or what else differs.
    """
    configs = {folder: _options(folder) for folder in folders}
    if len(configs) < len(folders):
        raise RunError("a run is given twice; name each run once")
    found, names = [], teacher_names(configs, option)
    for folder, options in configs.items():
        x = _swept(folder, options, option)
        y = _measured(folder, quantity)
        found.append(SweptRun(str(folder), names[folder], options["train.seed"], x, y))
    _check_alike(configs, option)
    return Sweep(option, quantity, tuple(found))


def _options(folder: Path) -> dict[str, Any]:
    """The resolved configuration, by full names."""
    import yaml

    path = folder / CONFIG
    if not path.is_file():
        raise RunError(f"{folder}: no {CONFIG} in it; expected the `output` of a training run")
    try:
        sections = yaml.safe_load(path.read_text(encoding="utf-8"))
        guidance = GuidanceConfig(**sections["guidance"])
        sections["teacher"] = asdict(TeacherConfig(**(sections.get("teacher") or {})))
        flat = {
            f"{section}.{name}": value
            for section, options in sections.items()
            if isinstance(options, dict)
            for name, value in options.items()
        }
        flat["train.seed"] = int(flat["train.seed"])
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path}: not the configuration of a run ({error})") from error
    flat["guidance.distillation_weight"] = guidance.weight_of_distance  # null: the usual one
    return flat


def _swept(folder: Path, options: dict[str, Any], option: str) -> float:
    value = options.get(option)
    if option not in options:
        raise RunError(f"{folder}: has no option {option}; expected one as guidance.top_fraction")
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RunError(f"{folder}: {option} is {value!r}; expected a number")
    return value


def _measured(folder: Path, quantity: str) -> float:
    if quantity == VALIDATION_LOSS:
        loss = read_run(folder).as_dict()["last_validation_loss"]
        if loss is None:
            raise RunError(
                f"{folder}: no validation loss; give the run data.validation, or compare by a score"
            )
        return float(loss)
    path = folder / RESULTS
    if not path.is_file():
        raise RunError(f"{folder}: no {RESULTS} in it, from which {quantity} would come")
    table = read_paper_results([path])
    if len(table.results) != 1:
        raise RunError(f"{path}: {len(table.results)} results; expected the one of this run")
    value = table.value(table.results[0], quantity)
    if value is None:
        raise RunError(f"{path}: no {quantity}")
    return value


def _check_alike(configs: dict[Path, dict[str, Any]], option: str) -> None:
    (first, model), *others = configs.items()
    names = [
        name
        for name in model
        if (name.startswith(_SAME) or name in _ALSO_SAME)
        and name not in ("train.seed", "train.micro_batch", option)
        and not may_change(name)
    ]
    for folder, options in others:
        for name in names:
            if json.dumps(options.get(name)) != json.dumps(model[name]):
                raise RunError(
                    f"{folder}: {name} is {options.get(name)!r}, but {model[name]!r} in {first}; "
                    f"the runs of a sweep differ only in {option}, the teacher and the seed"
                )
