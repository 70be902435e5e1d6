"""The Dockerfile names what exists. Nothing here builds it."""

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
IGNORED = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
BUILD, FINAL = TEXT.split("\nFROM ")[1:]


def version(pattern, text):
    """The only version of this form, as numbers."""
    (number,) = re.findall(pattern, text, re.MULTILINE)
    return tuple(map(int, number.split(".")))


def test_what_it_copies_is_what_the_package_names():
    copied = " ".join(re.findall(r"^COPY (.*) \S+$", BUILD, re.MULTILINE)).split()
    assert all((ROOT / name).exists() for name in copied)
    assert not re.findall(r"^COPY ", FINAL, re.MULTILINE)
    (licenses,) = re.findall(r"^license-files = \[(.*)\]$", PROJECT, re.MULTILINE)
    named = re.findall(r'^(?:readme|manifest-path|python-source) = "(.*)"$', PROJECT, re.MULTILINE)
    named += ["Cargo.toml", "Cargo.lock", "pyproject.toml", *re.findall(r'"(.*?)"', licenses)]
    assert {name.split("/")[0] for name in named} <= set(copied)
    assert IGNORED[1] == "*"
    assert sorted(line[1:] for line in IGNORED if line.startswith("!")) == sorted(copied)
    out = [line.removeprefix("**/") for line in IGNORED if line.startswith("**/")]
    for name in ("_vocagno.abi3.so", "__pycache__", "target"):
        assert any(fnmatch(name, pattern) for pattern in out), name


def test_versions_and_extras_are_those_of_the_project():
    rust = version(r'^rust-version = "(.*)"$', (ROOT / "Cargo.toml").read_text("utf-8"))
    assert version("^ARG RUST=(.*)$", TEXT) >= rust
    python = version(r'^requires-python = ">=(.*)"$', PROJECT)
    assert version("^ARG PYTHON=(.*)$", TEXT) >= python
    (requirement,) = re.findall(r'^requires = \["(.*)"\]$', PROJECT, re.MULTILINE)
    assert f"'{requirement}'" in BUILD
    (extras,) = re.findall(r"\}\[(.*)\]\"", FINAL)
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", PROJECT, re.MULTILINE), extra


def test_the_image_runs_the_command_and_not_as_root():
    (entry,) = re.findall(r'^ENTRYPOINT \["(.*)"\]$', FINAL, re.MULTILINE)
    assert re.search(rf'^{entry} = "vocagno\.cli', PROJECT, re.MULTILINE)
    (user,) = re.findall(r"^USER (.*)$", FINAL, re.MULTILINE)
    assert re.search(rf"useradd .*--uid {user} ", FINAL)  # Kubernetes' runAsNonRoot reads numbers
    assert FINAL.index("USER") < FINAL.index("ENTRYPOINT")
