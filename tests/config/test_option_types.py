"""Options that are made in Python are checked like those of files and of the command line."""

import importlib
import math
import pkgutil
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import vocagno.config
from vocagno.config.options import Config, DataConfig, OptimizerConfig, StudentConfig, TrainConfig
from vocagno.errors import ConfigError

NEEDED = {DataConfig: {"train": "c"}, StudentConfig: {"model": "S"}, TrainConfig: {"steps": 1}}
"""The options without a default."""
NEEDED[Config] = {"output": Path("o")} | {
    name: kind(**NEEDED[kind])
    for name, kind in get_type_hints(Config).items()
    if kind in NEEDED  # student, data, train
}
SECTIONS = {kind: f"{name}." for name, kind in get_type_hints(Config).items() if is_dataclass(kind)}


def classes():
    """Every dataclass of options."""
    for module in pkgutil.iter_modules(vocagno.config.__path__, "vocagno.config."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if is_dataclass(kind) and name.endswith("Config") and kind.__module__ == module.name:
                yield kind


CASES = [
    pytest.param(kind, field.name, id=f"{SECTIONS.get(kind, '')}{field.name}")
    for kind in classes()
    for field in fields(kind)
]


def types_in(hint):
    """The types that a hint is made of."""
    return {get_origin(hint) or hint}.union(*map(types_in, get_args(hint)))


def words_in(hint):
    """The words that a hint allows."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for argument in get_args(hint) for word in words_in(argument)]


def test_the_cases_cover_every_section_of_options():
    """Sees a section of options that no case tests."""
    assert {case.values[0] for case in CASES} == {Config, *SECTIONS}


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_value_of_another_type_is_refused(kind, name):
    hint = get_type_hints(kind)[name]
    types = types_in(hint)
    wrong = [object(), 1 if bool in types else True]
    wrong += [math.nan, -math.inf] if float in types else [1.5]
    wrong += [] if types & {str, Path} else ["no such word", ["no such word"]]
    for value in wrong:
        with pytest.raises(ConfigError) as error:
            kind(**NEEDED.get(kind, {}) | {name: value})
        message = str(error.value)
        assert message.startswith(f"{SECTIONS.get(kind, '')}{name}: expected ")
        assert message.endswith(f", got {value!r}")
        assert all(re.search(rf"\b{word}\b", message) for word in words_in(hint))


def test_numbers_of_numpy_whole_ones_and_lists_of_yaml_are_taken():
    assert TrainConfig(steps=np.int64(3)).steps == 3
    assert OptimizerConfig(lr=np.float32(0.5), weight_decay=0, betas=[0.5, 0.75]).lr == 0.5


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(ConfigError, match=r"got 'x{79}$"):
        TrainConfig(steps="x" * 1000)


def test_a_limit_of_no_time_is_refused():
    with pytest.raises(ConfigError, match=r"train.collective_timeout must be at least 1, got 0"):
        TrainConfig(steps=1, collective_timeout=0.0)
