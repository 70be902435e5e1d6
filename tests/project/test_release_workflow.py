"""What the release workflow does before it builds and before it publishes."""

import re
import runpy
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
FILE = Path(__file__).parents[2] / ".github" / "workflows" / "release.yml"
TEXT = FILE.read_text("utf-8")
JOBS = yaml.safe_load(TEXT)["jobs"]
PAGES, NOTICES = ".ci/registry_pages.py", ".ci/notices.py"


def before(job):
    """The jobs that must have passed before one starts."""
    needed = JOBS[job].get("needs", [])
    needed = [needed] if isinstance(needed, str) else needed
    return {*needed, *(earlier for name in needed for earlier in before(name))}


def test_a_wrong_version_or_tag_stops_it_before_anything_is_built():
    commands = [step.get("run", "") for step in JOBS["check"]["steps"]]
    assert all("check" in before(job) for job in JOBS if job != "check")
    assert any(command.endswith(".ci/version.py") for command in commands)
    assert any('.ci/version.py "$GITHUB_REF_NAME"' in command for command in commands)


def test_pages_and_notices_are_made_before_a_package():
    packages = 0
    for job in JOBS.values():
        steps = [f"{step.get('uses', step.get('run'))} {step.get('with')}" for step in job["steps"]]
        for number, step in enumerate(steps):
            if "maturin-action" in step or "cargo publish" in step:
                packages += 1
                made = " ".join(steps[:number])
                assert PAGES in made
                assert NOTICES in made or "cargo publish" in step or "'sdist'" in step
    assert packages >= 4


def test_notices_have_each_text_once_and_stop_at_a_crate_without_one(tmp_path):
    notices = runpy.run_path(str(FILE.parents[2] / NOTICES))["notices"]
    crate = {"version": "1", "license": "MIT", "manifest_path": str(tmp_path / "Cargo.toml")}
    (tmp_path / "LICENSE-MIT").write_text("Text\n")
    text = notices([{"name": name, **crate} for name in "ab"])
    assert text.endswith("\na 1: LICENSE-MIT\nb 1: LICENSE-MIT\n\nText\n")
    (tmp_path / "LICENSE-MIT").unlink()
    with pytest.raises(SystemExit, match="a 1: no licence text"):
        notices([{"name": "a", **crate}])


def test_nothing_is_published_that_was_not_tried():
    assert before("pypi") >= {"wheels", "free-threaded", "sources"}
    assert before("crates-io") >= {"wheels", "free-threaded", "sources"}
    for job in ("wheels", "free-threaded", "sources"):
        assert "tests/smoke.py" in str(JOBS[job]["steps"])


def test_an_action_is_a_commit_with_the_name_of_its_release():
    used = re.findall(r"uses: (\S+)(.*)", TEXT)
    assert len(used) > 10
    for action, comment in used:
        if not action.startswith("pypa/gh-action-pypi-publish@"):  # see the top of the file
            assert re.fullmatch(r"\S+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
