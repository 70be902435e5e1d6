"""Errors of options name the file, its line, and the option that was probably meant."""

import pytest

pytest.importorskip("jsonargparse")

from vocagno.errors import ConfigError
from vocagno.training.configuration import parse


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
