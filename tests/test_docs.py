"""What the documentation shows is what comes out."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import shared
from runs import environment

pytest.importorskip("rich")
PAGE = Path(__file__).parents[1] / "docs" / "hard-strings.md"
COMMANDS = re.findall(r"^    \$ (.*)\n((?:    .*\n)+)", PAGE.read_text(encoding="utf-8"), re.M)


def test_there_are_ten():
    assert len(COMMANDS) == 10


@pytest.mark.skipif(not shutil.which("bash"), reason="the commands are for bash")
@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[c[8:20] for c, _ in COMMANDS])
def test_the_hard_strings_come_out_as_shown(command, shown):
    run = command.replace("vocagno ", f"{sys.executable} -m vocagno ")
    found = subprocess.run(
        ["bash", "-c", run], cwd=shared("tokenizers"), check=True, capture_output=True, text=True,
        encoding="utf-8", env=environment() | {"LC_ALL": "C.UTF-8", "COLUMNS": "80"},
    ).stdout  # fmt: skip
    lines = [line for line in found.splitlines() if line.strip() and "└┬┘ N:1" not in line]
    assert [line.rstrip() for line in lines] == [line[4:] for line in shown.splitlines()]


def test_options_and_files_that_the_training_page_names_exist():
    pytest.importorskip("jsonargparse")
    from vocagno.config import (
        DataConfig,
        OptimizerConfig,
        StudentConfig,
        TeacherConfig,
        TrainConfig,
    )
    from vocagno.guidance_config import GuidanceConfig

    sections = {
        "data": DataConfig, "guidance": GuidanceConfig, "optimizer": OptimizerConfig,
        "student": StudentConfig, "teacher": TeacherConfig, "train": TrainConfig,
    }  # fmt: skip
    root = PAGE.parents[1]
    text = (PAGE.parent / "training.md").read_text(encoding="utf-8")
    options = set(
        re.findall(r"(?:--|`)(data|guidance|optimizer|student|teacher|train)\.(\w+)", text)
    )
    assert len(options) > 15
    for section, name in options:
        assert name in sections[section].__dataclass_fields__, f"{section}.{name}"
    for name in re.findall(r"\]\(([^)]+)\)", text):
        assert (PAGE.parent / name).exists(), name
    files = re.findall(r"(?:configs|tests|benches|examples)/[\w/-]+\.(?:py|yaml)", text)
    assert len(files) > 8
    for name in files:
        assert (root / name).is_file(), name
