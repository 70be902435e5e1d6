"""The version stands in one place, and a tag that differs stops a release."""

import re
import runpy
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import vocagno

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / ".ci" / "version.py"))
VERSION = SCRIPT["version"](ROOT)
NAMED = re.compile(r"\bvocagno[\s\"'=:@(-]+v?(\d+\.\d+(?:\.\d+)?)\b")
RECORDS = "docs/figures/", "benches/results/"  # they say which version made them


@pytest.fixture
def sources(tmp_path):
    """A copy of the files that have to do with the version, as of a release."""
    files = "Cargo.toml", "pyproject.toml", "CITATION.cff", "CHANGELOG.md", "README.md"
    for name in (*files, *SCRIPT["MANIFESTS"], *SCRIPT["LOCKS"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    log = tmp_path / "CHANGELOG.md"
    change(log, rf"^## {re.escape(VERSION)}.*$", f"## {VERSION} - 2027-02-03")
    change(log, r"^## Unreleased\n(?s:.*?)^## ", "## Unreleased\n\n## ")
    change(tmp_path / "README.md", r"(?i:not on pypi)|\Z", "on PyPI")
    return tmp_path


def change(path, pattern, replacement):
    """Replaces what must be there."""
    text, count = re.subn(pattern, replacement, path.read_text("utf-8"), flags=re.MULTILINE)
    assert count, f"{path}: {pattern}"
    path.write_text(text, "utf-8")


def test_every_file_has_one_version():
    assert list(SCRIPT["differences"](ROOT)) == []


def test_the_installed_package_has_it():
    expected = VERSION.replace("-alpha.", "a").replace("-rc.", "rc")
    assert vocagno.__version__ == metadata.version("vocagno") == expected


def test_no_text_names_another_version():
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout: asks git for the files")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().splitlines():
        if name.startswith(RECORDS) or name == "CHANGELOG.md" or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_text("utf-8", errors="replace")  # some are pictures
        for version in NAMED.findall(text):
            assert f"{VERSION}.".startswith(f"{version}."), f"{name}: vocagno {version}"


@pytest.mark.parametrize(
    ("name", "pattern", "replacement"),
    [
        ("Cargo.toml", f'"{re.escape(VERSION)}"', '"7.8.9"'),
        ("Cargo.lock", '"vocagno-py"\nversion = .*', '"vocagno-py"\nversion = "7.8.9"'),
        ("rust/fuzz/Cargo.lock", '"vocagno"\nversion = .*', '"vocagno"\nversion = "7.8.9"'),
        ("examples/rust/Cargo.lock", '"vocagno"', '"other"'),
        ("rust/core/Cargo.toml", "^version.workspace = true", f'version = "{VERSION}"'),
        ("pyproject.toml", r"^dynamic = .*", f'version = "{VERSION}"'),
        ("CITATION.cff", "^title:", "version: 7.8.9\ntitle:"),
        ("CHANGELOG.md", rf"^## {re.escape(VERSION)}", "## 7.8.9"),
        ("CHANGELOG.md", "^## Unreleased\n", ""),
    ],
)
def test_a_copy_that_differs_is_found(sources, capsys, name, pattern, replacement):
    change(sources / name, pattern, replacement)
    assert SCRIPT["main"](sources, []) == 1
    shown = capsys.readouterr().out
    assert ("Cargo.lock: " if name == "Cargo.toml" else f"{name}: ") in shown


@pytest.mark.parametrize(
    ("name", "pattern", "replacement"),
    [
        ("CHANGELOG.md", " - 2027-02-03$", ""),
        ("CHANGELOG.md", "^## Unreleased$", "## Unreleased\n\n- Something."),
        ("README.md", r"\Z", "Not on PyPI yet.\n"),
    ],
)
def test_sources_of_no_release_and_other_tags_are_refused(
    sources, capsys, name, pattern, replacement
):
    assert SCRIPT["main"](sources, [f"v{VERSION}"]) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"
    for tag in ("v7.8.9", VERSION, f"v{VERSION}.0"):
        assert SCRIPT["main"](sources, [tag]) == 1
        assert f"tag {tag}: " in capsys.readouterr().out
    change(sources / name, pattern, replacement)
    assert SCRIPT["main"](sources, []) == 0
    assert SCRIPT["main"](sources, [f"v{VERSION}"]) == 1
    assert f"{name}: " in capsys.readouterr().out
