"""A study whose plan asks for more later, or for something else: nothing is mixed."""

import json
import math

import pytest

torch = pytest.importorskip("torch")

from research.study import answers, carrying_out
from research.study.__main__ import main
from research.study.carrying_out import carry_out, measured_so_far
from research.study.plan import read_plan
from run_folders import training
from vocagno.errors import InputError
from vocagno.quickstart import accuracy

pytestmark = pytest.mark.slow


def questions(path, *numbers):
    rows = [{"question": f"{number} + 1", "answer": number + 1} for number in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"questions": str(path)}


@pytest.fixture
def asked(monkeypatch):
    """Stands for asking; the names of the models and how many questions each got. The shares count
    up in tenths."""
    found = []

    def share(run, path):
        found.append((run.name, len(accuracy.read_questions(path))))
        return len(found) / 10

    monkeypatch.setattr(accuracy, "accuracy_of_run", share)
    return found


@pytest.fixture
def study(tmp_path, plan_file, trained, asked):
    """Carries out one run of a plan with such parts; what was measured."""

    def carry(report=False, **parts):
        only = {"variants": {"cpt": {"guidance.method": "cpt"}}, "tables": {"m": ["cpt"]}}
        plan = read_plan(plan_file(seeds=[0], **only, **parts))
        out = tmp_path / "study"
        (run,) = measured_so_far(plan, out, {}) if report else carry_out(plan, out, {}, show=False)
        return run

    return carry


def test_questions_are_asked_when_the_plan_has_them(tmp_path, study, trained, asked):
    assert study().exact_answers is None
    first = study(**questions(tmp_path / "q.jsonl", 1))
    assert first.exact_answers == 0.1
    assert study(**questions(tmp_path / "q.jsonl", 1)) == first
    same = tmp_path / "same.jsonl"
    same.write_text('\n{"idx": 0, "answer": "2", "question": "1 + 1"}\n')
    assert study(questions=str(same)) == first  # the file is another one, the question is not
    assert asked == [("cpt-0", 1)]
    assert study() == first  # what is not asked for is kept
    other = study(**questions(tmp_path / "q.jsonl", 1, 2))
    assert other.exact_answers == 0.2
    assert asked == [("cpt-0", 1), ("cpt-0", 2)]
    assert trained == ["cpt-0"]
    assert other.cpu_seconds == first.cpu_seconds == 10.0


def test_a_report_has_no_answers_to_other_questions(tmp_path, study, capsys):
    before = study(**questions(tmp_path / "q.jsonl", 1))
    assert study(report=True, **questions(tmp_path / "q.jsonl", 1)) == before
    assert study(report=True) == before
    assert capsys.readouterr().err == ""
    assert study(report=True, **questions(tmp_path / "q.jsonl", 2)) == before.without_answers()
    assert "cpt-0: was asked other questions" in capsys.readouterr().err


def test_answers_of_an_earlier_version_are_kept(tmp_path, study, asked):
    """It did not keep which questions it asked."""
    study(**questions(tmp_path / "q.jsonl", 1))
    path = tmp_path / "study" / "runs" / "cpt-0" / "measured.json"
    values = json.loads(path.read_text())
    del values["question_digest"]
    path.write_text(json.dumps(values))
    assert study(**questions(tmp_path / "q.jsonl", 2)).exact_answers == 0.1
    assert len(asked) == 1


def test_answers_during_training_need_their_checkpoints(tmp_path, study, monkeypatch, asked):
    """`trained` ends at step 2 and stands for a run with a checkpoint of every step."""
    plan = questions(tmp_path / "q.jsonl", 1)
    study(**plan)
    gone = r"cpt-0: questions_every: 1: .*step_1.* does not exist\. The answers after this step can"
    with pytest.raises(InputError, match=gone):
        study(**plan, questions_every=1)
    weights = tmp_path / "study/runs/cpt-0/checkpoints/step_1/model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.touch()
    monkeypatch.setattr(
        answers, "answers_at_checkpoints", lambda run, path, steps: dict.fromkeys(steps, 0.9)
    )
    found = study(**plan, questions_every=1)
    assert found.answers_at == ((1, 0.9), (2, 0.1))
    assert found.steps_to_80 == 1
    assert len(asked) == 1
    weights.unlink()
    assert study(**plan, questions_every=1) == found
    other = questions(tmp_path / "other.jsonl", 2)
    with pytest.raises(InputError, match=gone):
        study(**other, questions_every=1)
    assert study(report=True, **other, questions_every=1) == found.without_answers()
    again = study(**other)  # the final model only
    assert again.exact_answers == 0.2
    assert again.answers_at is None
    assert again.steps_to_80 is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no questions in it; expected an object as"),
        ('{"question": "a", "answer": "1"}\n{"question": "a"', "line 2: not JSON"),
        ('{"question": "a"}', r"line 1: no field `answer` \(its fields: question\); expected an"),
        (
            '\n{"question": "a", "answer": ["1"]}',
            r"line 2: `answer` is \['1'\]; expected an object",
        ),
        ('["a"]', r'line 1: \["a"\]; expected an object as'),
    ],
)
def test_wrong_questions_are_found_before_the_first_run(tmp_path, study, trained, text, message):
    path = tmp_path / "q.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=f"q.jsonl.*{message}"):
        study(questions=str(path))
    assert trained == []


def test_a_failed_question_costs_no_training(tmp_path, study, monkeypatch, trained):
    """Nor the processor time that was measured."""

    def fails(run, path):
        raise InputError("asking failed")

    with monkeypatch.context() as context:
        context.setattr(accuracy, "accuracy_of_run", fails)
        with pytest.raises(InputError, match="asking failed"):
            study(**questions(tmp_path / "q.jsonl", 1))
    found = study(**questions(tmp_path / "q.jsonl", 1))
    assert found.cpu_seconds == 10.0
    assert found.exact_answers == 0.1
    assert trained == ["cpt-0"]


def test_a_run_that_failed_before_its_first_step_is_measured_whole(study, monkeypatch):
    def fails(run):
        raise InputError("training failed")

    with monkeypatch.context() as context:
        context.setattr(carrying_out, "train", fails)
        with pytest.raises(InputError, match="training failed"):
            study()
    assert study().cpu_seconds == 10.0


@pytest.mark.parametrize("text", ["", '{"variant": "cpt"', '{"variant": "cpt"}', "[]", "3"])
def test_damaged_measurements_name_their_file(tmp_path, study, text):
    study()
    path = tmp_path / "study" / "runs" / "cpt-0" / "measured.json"
    later = json.dumps(json.loads(path.read_text()) | {"later": 5})
    for damaged in (text, later):
        path.write_text(damaged)
        for report in (True, False):
            with pytest.raises(
                InputError, match=r"cpt-0/measured\.json: not what a study mea.*del"
            ):
                study(report=report)


def test_numbers_that_json_lacks_are_null(tmp_path, plan_file, trained, capsys):
    out = tmp_path / "study"
    command = [str(plan_file()), "--out", str(out)]
    assert main(command) == 0
    path = out / "runs" / "cpt-0" / "measured.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"held_out_loss": math.nan}))
    capsys.readouterr()
    assert main([*command, "--report", "--json"]) == 0

    def refused(constant):
        raise AssertionError(constant)

    found = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert found["runs"][0]["held_out_loss"] is None
    assert found["runs"][1]["held_out_loss"] == 1.1
    assert main([*command, "--report"]) == 0
    assert "| cpt | 2 | nan ± nan | - |" in capsys.readouterr().out


def test_empty_held_out_text_is_refused_before_training(tmp_path, plan_file, trained, capsys):
    command = [str(plan_file()), "--out", str(tmp_path / "s"), "--set", "data.validation="]
    assert main(command) == 2
    assert "cpt-0: data.validation: needed" in capsys.readouterr().err
    assert trained == []


def test_a_run_without_a_held_out_loss_says_so(plan_file, tmp_path, monkeypatch):
    def train(run):
        (run.folder / "metrics.jsonl").write_text(json.dumps(training(2, 1.0)) + "\n")
        return {"cpu_seconds": None, "peak_memory_mib": None}

    monkeypatch.setattr(carrying_out, "train", train)
    with pytest.raises(InputError, match="cpt-0: no held-out loss in"):
        carry_out(read_plan(plan_file()), tmp_path / "study", {}, show=False)
