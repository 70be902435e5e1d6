"""What the release workflow does before it builds and before it publishes."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
FILE = Path(__file__).parents[2] / ".github" / "workflows" / "release.yml"
TEXT = FILE.read_text("utf-8")
JOBS = yaml.safe_load(TEXT)["jobs"]
PAGES = ".ci/registry_pages.py"


def before(job):
    """The jobs that must have passed before one starts."""
    needed = JOBS[job].get("needs", [])
    needed = [needed] if isinstance(needed, str) else needed
    return {*needed, *(earlier for one in needed for earlier in before(one))}


@pytest.mark.parametrize("job", [job for job in JOBS if job != "check"])
def test_a_wrong_version_or_tag_stops_it_before_anything_is_built(job):
    commands = [step.get("run", "") for step in JOBS["check"]["steps"]]
    assert "check" in before(job)
    assert any(one.endswith(".ci/version.py") for one in commands)
    assert any('.ci/version.py "$GITHUB_REF_NAME"' in one for one in commands)


def test_pages_are_made_before_a_package():
    packages = 0
    for job in JOBS.values():
        steps = [step.get("uses", step.get("run", "")) for step in job["steps"]]
        made = [number for number, step in enumerate(steps) if PAGES in step]
        for number, step in enumerate(steps):
            if "maturin-action" in step or "cargo publish" in step:
                packages += 1
                assert min(made, default=number) < number
    assert packages >= 4


def test_nothing_is_published_that_was_not_tried():
    assert before("pypi") >= {"wheels", "free-threaded", "sources"}
    assert before("crates-io") >= {"wheels"}
    for job in ("wheels", "free-threaded"):
        assert "tests/smoke.py" in str(JOBS[job]["steps"])


def test_an_action_is_a_commit_with_the_name_of_its_release():
    used = re.findall(r"uses: (\S+)(.*)", TEXT)
    assert len(used) > 10
    for action, comment in used:
        if not action.startswith("pypa/gh-action-pypi-publish@"):  # see the top of the file
            assert re.fullmatch(r"\S+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
