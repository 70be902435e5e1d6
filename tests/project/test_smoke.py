"""Which Pythons `make smoke` tries a wheel on."""

import runpy
from pathlib import Path

import pytest

SMOKE = runpy.run_path(str(Path(__file__).parents[1] / "smoke.py"))


@pytest.mark.parametrize(
    ("package", "taken"),
    [
        ("v-1-cp310-abi3-linux_x86_64.whl", {(10, False), (14, False)}),
        ("v-1-cp314-cp314t-linux_x86_64.whl", {(14, True)}),
        ("v-1.tar.gz", {(10, False), (14, False), (15, False), (14, True), (15, True)}),
    ],
)
def test_a_wheel_is_for_some_pythons(package, taken):
    pythons = [(9, False), (10, False), (14, False), (14, True), (15, True)]
    fitting = {python for python in pythons if SMOKE["Python"]("/usr", *python).takes(package)}
    assert fitting == taken & {*pythons}
