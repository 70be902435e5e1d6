"""The whole quickstart with few documents and steps: everything but the figures."""

import sys

import pytest
import yaml

from small_quickstart import cut_down
from warm_python import executable

pytest.importorskip("torch")

from vocagno.cli.app import main
from vocagno.quickstart import students

pytestmark = pytest.mark.slow

CONFIGS = students.CONFIGS


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The project's own configurations, cut down, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", executable())
    names = "teacher", *students.STUDENTS, "distilled"
    sizes = {"TRAIN_DOCUMENTS": 120, "TEACHER_DOCUMENTS": 60, "VALID_DOCUMENTS": 10, "QUESTIONS": 5}
    cut_down(monkeypatch, tmp_path / "configs", names, **sizes)
    return tmp_path


def test_the_quickstart_ends_in_a_table_and_a_page(small, capsys):
    assert main(["quickstart"]) == 0
    output = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in output.splitlines() if line.strip()}
    assert lines["naive"][-1] == "100.0%"
    assert 40 < float(lines["paper"][-1].rstrip("%")) < 50
    assert 0 < float(lines["guided"][-1].rstrip("%")) < 100  # to a teacher of 4 steps all is noise
    scores = small / "runs" / "quickstart" / "cache" / "scores"
    assert len([*scores.iterdir()]) == 1  # one store serves all students
    # A fourth student, as docs/distributions.md trains it; its candidates are a store of their own.
    assert main(["train", "--config", str(small / "configs" / "distilled.yaml")]) == 0
    assert (small / "runs" / "quickstart" / "distilled" / "final").is_dir()
    assert len([*scores.iterdir()]) == 2
    page = (small / "runs" / "quickstart" / "quickstart.html").read_text(encoding="utf-8")
    assert "<html" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    for row in ("teacher", *students.STUDENTS):
        assert row in page
    for rule, name in {"lines": "guided", "the paper": "paper"}.items():
        title = f", kept and dropped by the rule of {rule}; losses of {name}/final</h2>"
        assert title in page  # documents of the run, as the teacher chose of them


def test_train_without_a_configuration_makes_what_it_needs(small):
    """What `accelerate launch train.py` does on a machine where nothing was made before."""
    from vocagno.quickstart.students import make_assets
    from vocagno.training.main import main

    config = small / "configs" / "guided.yaml"
    assert main([], default_config=config, prepare=make_assets) == 0
    assert (small / "runs" / "quickstart" / "guided" / "final" / "model.safetensors").is_file()


def test_the_students_differ_in_guidance_only():
    """Same start, same tokens: nothing else in the files may differ."""
    names = *students.STUDENTS, "distilled"
    naive, *guided = (yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()) for name in names)
    candidates = {"candidates": 8, "sampled": True}
    assert guided[0]["teacher"] == guided[1]["teacher"]
    assert guided[0]["teacher"] | candidates == guided[2]["teacher"]
    for config in (naive, *guided):
        for key in ("guidance", "teacher", "output"):
            config.pop(key, None)
    assert all(config == naive for config in guided)


@pytest.mark.parametrize("seeds", [0, -3])
def test_a_number_of_seeds_below_one_is_refused_at_once(small, capsys, monkeypatch, seeds):
    monkeypatch.setattr(students, "make_assets", lambda: pytest.fail("made something"))
    assert main(["quickstart", "--seeds", str(seeds)]) == 2
    assert f"--seeds: expected at least 1, got {seeds}" in capsys.readouterr().err
