"""Which Pythons `make smoke` tries a wheel on."""

import os
import runpy
import sys
from pathlib import Path

import pytest

SMOKE = runpy.run_path(str(Path(__file__).parents[1] / "smoke.py"))
STABLE, FREE = "v-1-cp310-abi3-linux_x86_64.whl", "v-1-cp314-cp314t-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("package", "minor", "free_threaded", "taken"),
    [
        (STABLE, 9, False, False),
        (STABLE, 10, False, True),
        (STABLE, 14, False, True),
        (STABLE, 14, True, False),
        (FREE, 14, True, True),
        (FREE, 14, False, False),
        (FREE, 15, True, False),
        ("v-1.tar.gz", 9, False, False),
        ("v-1.tar.gz", 13, False, True),
    ],
)
def test_a_wheel_is_for_some_pythons(package, minor, free_threaded, taken):
    assert SMOKE["Python"]("/usr", minor, free_threaded).takes(package) == taken


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="writes shell scripts as programs")
def test_every_installation_is_found_once(tmp_path, monkeypatch):
    for name in ("python3", "python3.11", "python3-config", "python3.13t"):
        (tmp_path / name).symlink_to(sys.executable)
    for name, line in (("python", "exit 1"), ("python3.12", "echo shim")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{tmp_path / 'nowhere'}")
    programs = SMOKE["programs"]()
    assert str(tmp_path / "python3-config") not in programs
    mine = [one for one in programs if Path(one).parent == tmp_path]
    assert len(mine) == 5
    found = SMOKE["pythons"]([*mine, sys.executable])
    assert [(one.prefix, one.minor) for one in found] == [
        (str(Path(sys.base_prefix).resolve()), sys.version_info[1])
    ]
