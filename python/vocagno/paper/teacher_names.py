"""Short names that tell the teachers of several runs apart."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vocagno.training.configuration import may_change

_SECTION = "teacher."
_ELSEWHERE = ("teacher.requests", "teacher.server", "teacher.tensor_parallel")
"""Change no loss, as what `may_change` names."""
_PATHS = ("teacher.model", "teacher.scores", "teacher.tokenizer")
_NAMED = ("teacher.model", "teacher.scores")
"""What a teacher is called by: the first of them that it has."""


def teacher_names(
    configs: Mapping[Path, Mapping[str, Any]], swept: str | None = None
) -> dict[Path, str]:
    """A name for the teacher of each run; runs have one name only if all options of the teacher
    that change its losses agree.

    Usually the last part of a path; of our own runs, whose models are in `final`, that of the run.
    Where several paths end alike, as many folders before it as tell them apart; and the options in
    which teachers of one path differ.

    Args:
        configs: resolved configurations by the folders of the runs, by full names.
        swept: an option that does not count.
    """
    of_run = {folder: _teacher(options, swept) for folder, options in configs.items()}
    teachers = list({json.dumps(one, default=str): one for one in of_run.values()}.values())
    sources = list(dict.fromkeys(map(_source, teachers)))
    short = dict(zip(sources, _short_paths(sources), strict=True))
    names = [short[_source(one)] + _differences(one, teachers) for one in teachers]
    return {folder: names[teachers.index(one)] for folder, one in of_run.items()}


def _teacher(options: Mapping[str, Any], swept: str | None) -> dict[str, Any]:
    """What decides a teacher's losses."""
    return {
        name: _normalized(value) if name in _PATHS else value
        for name, value in options.items()
        if name.startswith(_SECTION) and name not in (*_ELSEWHERE, swept) and not may_change(name)
    }


def _normalized(value: Any) -> Any:
    """Paths as `os.path.normpath` writes them."""
    if isinstance(value, list):
        return [_normalized(one) for one in value]
    return os.path.normpath(value) if isinstance(value, str) and value else value


def _source(teacher: Mapping[str, Any]) -> str:
    """The path or hub name of a model or a store of scores; several are joined."""
    found = next((teacher[name] for name in _NAMED if teacher.get(name)), "none")
    return ", ".join(map(str, found)) if isinstance(found, list) else str(found)


def _differences(teacher: Mapping[str, Any], teachers: Sequence[Mapping[str, Any]]) -> str:
    """The options in which teachers of the same path differ from this one, with its values."""
    alike = [one for one in teachers if _source(one) == _source(teacher)]
    return "".join(
        f", {name.removeprefix(_SECTION)} {value}"
        for name, value in teacher.items()
        if any(one[name] != value for one in alike)
    )


def _short_paths(paths: Sequence[str]) -> list[str]:
    """Each path by its last parts, as many as tell it from the others, which are different."""
    forms = [_forms(path) for path in paths]
    longest = max(map(len, forms), default=0)
    padded = [[*form, *[form[-1]] * (longest - len(form))] for form in forms]
    return [
        next(
            short
            for place, short in enumerate(mine)
            if all(short != other[place] for other in padded if other is not mine)
        )
        for mine in padded
    ]


def _forms(path: str) -> list[str]:
    """The last part of a path, the last two and so on, then the path as it is."""
    parts = Path(path).parts
    if len(parts) > 1 and parts[-1] == "final":
        parts = parts[:-1]
    return [str(Path(*parts[-count:])) for count in range(1, len(parts) + 1)] + [path]
