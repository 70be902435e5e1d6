"""The Dockerfile names what exists. Nothing here builds it."""

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
IGNORED = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
BUILD, FINAL = TEXT.split("\nFROM ")[1:]


def argument(name):
    """A version that is given on top, as numbers."""
    (found,) = re.findall(rf"^ARG {name}=(.*)$", TEXT, re.MULTILINE)
    return tuple(map(int, found.split(".")))


def at_least(pattern, file):
    (found,) = re.findall(pattern, (ROOT / file).read_text("utf-8"), re.MULTILINE)
    return tuple(map(int, found.split(".")))


def test_what_it_copies_exists_and_is_not_ignored():
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (.*)$", BUILD, re.MULTILINE)]
    names = [name for line in copied for name in line]
    assert set(names) >= {"Cargo.toml", "Cargo.lock", "pyproject.toml", "rust", "python"}
    for name in names:
        assert (ROOT / name).exists(), name
    assert IGNORED[1] == "*"
    assert sorted(line[1:] for line in IGNORED if line.startswith("!")) == sorted(names)
    assert not re.findall(r"^COPY ", FINAL, re.MULTILINE)


def test_files_that_the_package_names_are_copied():
    copied = " ".join(re.findall(r"^COPY (.*)$", BUILD, re.MULTILINE)).split()
    for name in re.findall(r'^(?:readme|manifest-path|python-source) = "(.*)"$', PROJECT, re.M):
        assert name.split("/")[0] in copied, name
    (licenses,) = re.findall(r"^license-files = \[(.*)\]$", PROJECT, re.MULTILINE)
    assert set(re.findall(r'"(.*?)"', licenses)) <= set(copied)


def test_what_was_built_here_stays_out():
    out = [line.removeprefix("**/") for line in IGNORED if line.startswith("**/")]
    for name in ("_vocagno.abi3.so", "__pycache__", "target"):
        assert any(fnmatch(name, pattern) for pattern in out), name


def test_versions_and_extras_are_those_of_the_project():
    assert argument("RUST") >= at_least(r'^rust-version = "(.*)"$', "Cargo.toml")
    assert argument("PYTHON") >= at_least(r'^requires-python = ">=(.*)"$', "pyproject.toml")
    (requirement,) = re.findall(r'^requires = \["(.*)"\]$', PROJECT, re.MULTILINE)
    assert f"'{requirement}'" in BUILD
    (extras,) = re.findall(r"\}\[(.*)\]\"", FINAL)
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", PROJECT, re.MULTILINE), extra


def test_it_runs_the_command_and_not_as_root():
    (entry,) = re.findall(r'^ENTRYPOINT \["(.*)"\]$', FINAL, re.MULTILINE)
    assert re.search(rf'^{entry} = "vocagno\.cli', PROJECT, re.MULTILINE)
    (user,) = re.findall(r"^USER (.*)$", FINAL, re.MULTILINE)
    assert re.search(rf"useradd .*--uid {user} ", FINAL)  # Kubernetes' runAsNonRoot reads numbers
    assert FINAL.index("USER") < FINAL.index("ENTRYPOINT")
