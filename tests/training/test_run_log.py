"""The log of a run: what it comes to, and what is refused."""

from pathlib import Path

import pytest

from imports import modules_after
from run_folders import training, validation, write_run
from vocagno.training.run_log import RunError, read_run, read_runs


@pytest.fixture
def naive(tmp_path):
    entries = (
        training(2, 4.0),
        validation(2, 3.5),
        training(4, 3.0, speed=300.0),
        validation(4, 3.6),
    )
    return write_run(tmp_path / "runs" / "naive", *entries)


@pytest.fixture
def guided(tmp_path):
    """With lines of another kind, and validations between and behind its training lines."""
    return write_run(
        tmp_path / "runs" / "guided",
        {"step": 1, "slow_rows": [3]},
        training(4, 5.0, tokens=400, kept=0.5),
        validation(6, 2.5),
        training(8, 2.0, tokens=600, kept=0.25),
        validation(9, 2.25),
    )


def test_reading_needs_numpy_alone():
    assert not modules_after("import vocagno.training.run_log") & {"torch", "matplotlib"}


def test_a_log_is_summed_to_tokens_losses_and_speed(naive, guided):
    assert read_run(naive).as_dict() == {
        "steps": 4,
        "tokens": 400,
        "last_validation_loss": 3.6,
        "last_nats_per_byte": 0.9,
        "best_validation_loss": 3.5,
        "mean_tokens_per_s": 150.0,  # 400 tokens in 2 + 2/3 s
    }
    run = read_run(guided)
    assert run.curve("loss") == ([400, 1000], [5.0, 2.0])
    assert run.curve("validation_loss") == ([700, 1150], [2.5, 2.25])
    assert run.curve("kept_fraction") == ([400, 1000], [0.5, 0.25])


def test_a_run_that_diverged_or_was_not_validated(tmp_path):
    nan = float("nan")
    for name, last in (("a", [training(4, nan)]), ("b", [training(4, nan), validation(4, nan)])):
        run = read_run(write_run(tmp_path / name, training(2, 4.0), *last))
        facts = run.as_dict()
        assert facts["last_validation_loss"] is facts["best_validation_loss"] is None
        assert len(run.curve("loss")[0]) == 2


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path):
    run = read_run(write_run(tmp_path / "r", training(2, 4.0), '{"step": 4, "lo', end=""))
    assert [point.step for point in run.points] == [2]
    whole = read_run(write_run(tmp_path / "w", training(2, 4.0), training(4, 3.0), end=""))
    assert [point.step for point in whole.points] == [2, 4]


def test_names_tell_the_runs_apart(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("x/one/run", "x/two/run", "y/two/run", "x/other")]
    for folder in folders:
        write_run(folder, training(1, 1.0))
    names = [run.name for run in read_runs(folders)]
    assert names == ["one/run", "x/two/run", "y/two/run", "other"]
    monkeypatch.chdir(folders[3])
    (here,) = read_runs([Path()])
    assert here.name == "other"
    with pytest.raises(RunError, match="one: given twice"):
        read_runs([tmp_path / "one", tmp_path / "two", tmp_path / "one"])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"step": 4, "lo'], "line 2: not JSON"),
        (["[" * 100_000], "line 2: not JSON"),
        (["[1]"], "line 2: expected an object, got a list"),
        ([{"loss": 1.0}], "line 2: has no `step`"),
        ([{"step": 4, "loss": "x"}], "line 2: loss: expected a number, got 'x'"),
        ([{"step": 4, "validation_loss": None}], "line 2: validation_loss: expected a number, got"),
        ([{"step": 4, "loss": 10**400}], r"line 2: loss: expected a number, got 10{39}\.\.\."),
        ([training(4, 1.0, tokens=-1)], "line 2: tokens: expected a whole number, 0 or more"),
        ([{"step": 4, "loss": 1.0}], "line 2: has `loss`, but no `kept_fraction`"),
        ([training(2, 3.0)], "line 2: step 2 with `loss` after step 2"),
        ([validation(4, 1.0), validation(3, 1.0)], "line 3: step 3 with `validation_loss` after"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused(tmp_path, lines, words):
    folder = write_run(tmp_path / "r", training(2, 4.0), *lines)
    with pytest.raises(RunError, match=rf"r.metrics\.jsonl, {words}"):
        read_run(folder)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="none: no such folder"):
        read_run(tmp_path / "none")
    with pytest.raises(RunError, match=r"no metrics\.jsonl in it; expected the `output`"):
        read_run(tmp_path)
    with pytest.raises(RunError, match=r"metrics\.jsonl: no training line"):
        read_run(write_run(tmp_path / "r", validation(2, 3.0), {"step": 3}))
