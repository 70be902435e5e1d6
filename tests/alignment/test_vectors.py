"""The test vectors for other aligners: what we answer, and that they notice wrong answers."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

import vocagno

VECTORS = Path(__file__).parents[2] / "vectors"
FILE = VECTORS / "alignment.json"


@pytest.fixture(scope="module")
def check():
    return runpy.run_path(str(VECTORS / "check.py"))


def test_every_answer_is_the_expected_one(check):
    assert list(check["differences"](FILE)) == []


def test_the_file_is_what_its_script_writes():
    text = FILE.read_text(encoding="utf-8")
    assert text == runpy.run_path(str(VECTORS / "generate.py"))["document"]()
    assert len(text) < 200_000
    cases = json.loads(text)["cases"]
    assert f"\n{len(cases)} texts" in (VECTORS / "README.md").read_text(encoding="utf-8")
    assert len({(case["kind"], case["name"], case.get("text")) for case in cases}) == len(cases)


def searched(student, teacher):
    """Two binary searches, as published: wrong where spans are empty."""
    first = np.searchsorted(teacher[:, 1], student[:, 0], side="right")
    return np.stack([first, np.searchsorted(teacher[:, 0], student[:, 1], side="left")], 1)


WRONG = {
    "binary searches": lambda student, teacher: {"ranges": searched(student, teacher)},
    "ranges without their last token": lambda student, teacher: {
        "ranges": vocagno.align(student, teacher) - [0, 1]
    },
    "groups of 32 bits": lambda student, teacher: {
        "student_groups": vocagno.groups(student.astype(np.int32), teacher).student
    },
    "starts of ranges": lambda student, teacher: {"starts": vocagno.align(student, teacher)[:, 0]},
}


@pytest.mark.parametrize("name", WRONG)
def test_the_check_reports_each_wrong_aligner(check, name):
    lines = list(check["differences"](FILE, WRONG[name]))
    assert lines
    if name == "binary searches":
        assert any(line.startswith("special tokens") for line in lines)
        assert "refused, a start decreases: not refused" in lines
