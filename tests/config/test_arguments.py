"""Options that are gone: in a command, in a file, and in the folder of a run that had them."""

import re

import pytest
import yaml

pytest.importorskip("jsonargparse")

from vocagno.errors import ConfigError
from vocagno.training.configuration import kept_config, parse

RUN = {"student": {"model": "S"}, "data": {"train": "c"}, "train": {"steps": 1}, "output": "o"}
RUN |= {"teacher": {"model": "T"}}
BEFORE = {
    "guidance": {"method": "vocagno", "weight": "hard", "weight_scale": 1.0, "min_weight": 0.0}
    | {"window": "line", "window_max_loss": 2.0, "window_threshold": None, "unit": "group"}
    | {"distill_where": "ahead"},
    "train": {"steps": 1, "head_loss": "auto"},
}
"""As the folder of a run has it."""


def kept(folder, sections):
    (folder / "config.yaml").write_text(yaml.safe_dump(RUN | sections))
    return kept_config(folder)


def test_a_file_with_an_option_that_is_gone_is_read_if_it_says_what_holds(tmp_path):
    before = kept(tmp_path, BEFORE)
    assert parse(["--config", str(tmp_path / "config.yaml")]) == before == kept(tmp_path, {})
    with pytest.raises(ConfigError, match=r"distill_where.*ahead"):
        kept(tmp_path, {"guidance": {"method": "distill", "distill_where": "ahead"}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1\nb: 2\n", r"run\.yaml, line 2, column 2"),
        ("a:\n\tb: 2\n", r"run\.yaml, line 2, column 1 \(YAML is indented by spaces"),
    ],
)
def test_a_file_that_is_no_yaml_is_named_with_its_line(tmp_path, text, words):
    (tmp_path / "run.yaml").write_text(text)
    for arguments in (["--config", str(tmp_path / "run.yaml")], [f"--config={tmp_path}/run.yaml"]):
        with pytest.raises(ConfigError, match=words):
            parse(arguments)


@pytest.mark.parametrize(
    ("section", "option", "value", "instead"),
    [
        ("guidance", "weight", "sigmoid", "a token is trained on or not"),
        ("guidance", "window_threshold", -1.0, "guidance.window_max_loss says what is noise"),
        ("train", "head_loss", "liger", "one loop computes every head"),
    ],
)
def test_an_option_that_is_gone_names_what_replaced_it(tmp_path, section, option, value, instead):
    name = f"{section}.{option}"
    words = f"config.yaml: {name}: no such option; it is gone: {re.escape(instead)}"
    with pytest.raises(ConfigError, match=words):
        kept(tmp_path, {**BEFORE, section: BEFORE[section] | {option: value}})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(RUN))
    with pytest.raises(ConfigError, match=f"--{name}: no such option; it is gone: {instead}"):
        parse(["--config", str(tmp_path / "config.yaml"), f"--{name}={value}"])


@pytest.mark.parametrize(
    ("group", "hint"),
    [
        ("teacher", r"; did you mean --teacher.model NAME\?$"),
        ("student", r"; did you mean --student.model NAME\?$"),
        ("guidance", "$"),
    ],
)
def test_a_name_in_place_of_options_says_which_option_takes_it(tmp_path, group, hint):
    words = f"^{group}: expected a YAML file with its options, got NAME{hint}"
    with pytest.raises(ConfigError, match=words):
        parse([f"--{group}", "NAME"])
