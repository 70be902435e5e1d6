"""A method of guidance is an object: nothing else asks which method a run has."""

import re
from pathlib import Path

from vocagno.config.guidance import Method as Name
from vocagno.guidance.methods import METHODS

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "vocagno"
ASKS = re.compile(
    r"(guidance|config)\.method\s*(==|!=|in\b|not in\b)|\.(selects|distils|is_random)\b"
)


def test_no_name_of_a_method_is_compared_elsewhere():
    found = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.parts[0] == "config" or place.parts[:2] == ("guidance", "methods"):
            continue
        found += [f"{place}: {line}" for line in path.read_text().splitlines() if ASKS.search(line)]
    assert found == []


def test_every_name_has_a_class_of_its_own():
    assert set(METHODS) == set(Name.__args__)
    assert len(set(METHODS.values())) == len(METHODS)
