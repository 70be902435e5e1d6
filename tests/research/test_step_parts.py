"""What research/step_parts.py times is a training step of the run, which stays as it is."""

import json

import pytest

pytest.importorskip("torch", reason="vocagno[train] is not installed")

import torch
import yaml
from torch.nn import functional

from research import step_parts
from runs import train_here
from vocagno.errors import ConfigError


@pytest.fixture
def runs(config, tmp_path):
    """Folders of two finished runs of one step, which differ in their rule."""
    folders = []
    for name, guidance in {"naive": {"method": "cpt"}, "paper": {"top_fraction": 0.4}}.items():
        path = config(train={"steps": 1}, guidance=guidance, output=str(tmp_path / name))
        assert train_here(path) == 0
        folders.append(tmp_path / name)
    return folders


def test_timed_steps_train_on_the_losses_of_the_runs(runs):
    """A step whose gradient is not applied, or not cleared, would be timed as something else."""
    naive, paper = step_parts.load(runs)
    model = naive.training.student.model
    batch = naive.training.collator([naive.training.inputs.rows[number] for number in range(8)])
    with torch.no_grad():
        logits = model(batch.inputs()["input_ids"]).logits
        first = functional.cross_entropy(logits.flatten(0, 1), batch.labels.long().flatten())
    for _ in range(4):
        naive.step(range(8))
        paper.step(range(8))
    assert naive.losses[0] == pytest.approx(float(first), rel=1e-4)
    assert naive.losses == sorted(naive.losses, reverse=True)
    assert len(set(naive.losses)) == 4
    assert paper.losses[0] > naive.losses[0]  # of the tokens that it ranks first
    assert all(parameter.grad is None for parameter in model.parameters())
    for run in (naive, paper):
        for part, seconds in run.seconds.items():
            assert len(seconds) == 4, part
            assert min(seconds) > 0, part


def test_the_command_compares_with_the_first_run_and_writes_nothing(runs, monkeypatch, capsys):
    before = [sorted(folder.rglob("*")) for folder in runs]
    monkeypatch.setattr("sys.argv", ["", *map(str, runs), "--rounds", "2"])
    step_parts.main()
    assert [sorted(folder.rglob("*")) for folder in runs] == before
    header, _, naive, paper, *lines = capsys.readouterr().out.splitlines()
    assert header.endswith("| step | of naive |")
    assert naive.startswith("| naive |")
    assert naive.endswith(" 1.000 |")
    *parts, step, _ = [cell.strip().replace(",", "") for cell in paper.strip("| ").split("|")][1:]
    assert sum(map(int, parts)) == pytest.approx(int(step), rel=0.5, abs=5)
    assert [len(json.loads(line)["losses"]) for line in lines] == [3, 3]


def test_a_live_teacher_is_refused(config):
    """Its own time would be counted as the student's."""
    path = config(train={"steps": 1}, teacher={"mode": "live"})
    assert train_here(path) == 0
    with pytest.raises(ConfigError, match=r"run: teacher\.mode: live"):
        next(step_parts.load([path.parent / "run"]))


@pytest.mark.parametrize(("option", "value"), [("precision", "bf16"), ("micro_batch", 2)])
def test_runs_that_cannot_be_compared_are_refused(runs, option, value):
    """The first run's precision was that of all, without a word."""
    path = runs[1] / "config.yaml"
    options = yaml.safe_load(path.read_text())
    options["train"][option] = value
    path.write_text(yaml.safe_dump(options))
    with pytest.raises(ConfigError, match=rf"paper: train\.{option}: is {value}, and "):
        list(step_parts.load(runs))
