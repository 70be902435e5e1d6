"""Studies: what is run and measured once, whatever the plan asks for later."""

import json
import math
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import yaml

from research.study import carrying_out, confidence
from research.study.__main__ import main
from research.study.carrying_out import carry_out, measured_so_far
from research.study.measured import Confidence, read_measured
from research.study.plan import read_plan
from run_folders import training
from runs import train_here
from vocagno.errors import ConfigError, InputError
from vocagno.quickstart import problems
from warm_python import executable

pytestmark = pytest.mark.slow
NAIVE = {"cpt": {"guidance.method": "cpt"}}


def questions(path, *numbers):
    rows = [{"question": f"{number} + 1", "answer": number + 1} for number in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"questions": str(path)}


@pytest.fixture
def asked(monkeypatch):
    """Stands for asking; the names of the models and how many questions each got. The shares count
    up in tenths."""
    counts = []

    def share(run, path):
        counts.append((run.name, len(problems.read_questions(path))))
        return len(counts) / 10

    monkeypatch.setattr(problems, "accuracy_of_run", share)
    return counts


@pytest.fixture
def real_study(tmp_path, plan_file):
    """Carries out one run of a plan with such parts; what was measured."""

    def carry(report=False, seed=0, **parts):
        only = {"variants": NAIVE, "tables": {"m": ["cpt"]}}
        plan = read_plan(plan_file(seeds=[seed], **only, **parts))
        out = tmp_path / "study"
        (run,) = measured_so_far(plan, out, {}) if report else carry_out(plan, out, {}, show=False)
        return run

    return carry


@pytest.fixture
def study(real_study, trained, asked):
    """A `real_study` without training and asking."""
    return real_study


def second_corpus(folder):
    """Held-out text of other letters."""
    path = folder / "second.jsonl"
    path.write_text(json.dumps({"text": "zzz zzz qqq. " * 30}) + "\n")
    return str(path)


def test_a_study_of_real_runs(tmp_path, plan_file, real_study, capsys):
    out = tmp_path / "study"
    again = {"teacher.model": "{out}/before/reference/final"}
    again["teacher.tokenizer"] = str(tmp_path / "none.json")
    path = plan_file(
        seeds=[3],
        before={"reference": {"config": str(tmp_path / "run.yaml"), "guidance.method": "cpt"}},
        variants=NAIVE | {"again": again},
        tables={"methods": ["cpt"]},
    )
    # The reference is trained before what needs it, whose tokenizer is missing.
    assert main([str(path), "--out", str(out)]) == 2
    message = capsys.readouterr().err
    assert "again-3: training ended with status 2: error: " in message
    assert "none.json: " in message
    assert "log.txt)" in message
    assert (out / "before" / "reference" / "final").is_dir()
    run = real_study(report=True, seed=3)
    assert run.variant == "cpt"
    assert run.seed == 3
    assert run.confidence is None
    assert run.trained_on == 1.0
    assert 400 < run.tokens <= 2 * 8 * 32
    assert 1 < run.cpu_seconds < 300
    assert 100 < run.peak_memory_mib < 10_000
    assert 3 < run.held_out_loss < 8
    assert json.loads((out / "runs" / "cpt-3" / "measured.json").read_text())["seed"] == 3


def test_the_first_of_several_held_out_corpora_is_compared(tmp_path, real_study, corpus):
    """The log's `validation_loss` is the mean over the tokens of both; the run is a real one."""
    both = {"first": str(corpus), "second": second_corpus(tmp_path)}
    run = real_study(common={"data.validation": both})
    log = (tmp_path / "study" / "runs" / "cpt-0" / "metrics.jsonl").read_text().splitlines()
    last = [json.loads(line) for line in log if "validation_losses" in line][-1]
    assert run.held_out_loss == pytest.approx(last["validation_losses"]["first"], abs=1e-6)
    second = pytest.approx(last["validation_losses"]["second"], abs=1e-6)
    assert run.other_losses == {"second": second}
    assert abs(run.held_out_loss - last["validation_loss"]) > 1e-3
    assert run.other_start_losses is None  # new weights


def test_other_held_out_corpora_than_those_measured_are_refused(tmp_path, real_study, corpus):
    """Their order decides which loss is compared; an earlier version pooled them."""
    both = {"first": str(corpus), "second": second_corpus(tmp_path)}
    common = {"data.validation": both}
    real_study(common=common)
    with pytest.raises(ConfigError, match=r"data\.validation is .* holds a run with"):
        real_study(common={"data.validation": dict(reversed(both.items()))})
    path = tmp_path / "study" / "runs" / "cpt-0" / "measured.json"
    pooled = json.loads(path.read_text()) | {"other_losses": None}
    path.write_text(json.dumps(pooled))
    with pytest.raises(InputError, match=r"has the losses of \[\] .* expected \['second'\]"):
        real_study(common=common)
    path.unlink()
    assert real_study(common=common).other_losses.keys() == {"second"}


def test_what_is_measured_is_not_done_again(tmp_path, plan_file, trained):
    plan, out = read_plan(plan_file()), tmp_path / "study"
    first = carry_out(plan, out, {}, show=False)
    assert trained == ["cpt-0", "cpt-1", "top-20-0", "top-20-1"]
    (out / "runs" / "cpt-1" / "measured.json").unlink()
    again = carry_out(plan, out, {}, show=False)
    assert trained[4:] == ["cpt-1"]
    # It had been begun before: what it cost in all is not known.
    assert [run.cpu_seconds for run in first] == [10.0, 11.0, 11.0, 12.0]
    assert [run.cpu_seconds for run in again] == [10.0, None, 11.0, 12.0]
    assert [run.peak_memory_mib for run in again] == [100.0, None, 100.0, 100.0]
    assert [run.held_out_loss for run in again] == [1.0, 1.1, 0.5, 0.6]


def test_a_study_writes_its_table_its_runs_and_its_figure(tmp_path, plan_file, trained, capsys):
    out = tmp_path / "study"
    command = [str(plan_file()), "--out", str(out)]
    assert main([*command, "--report"]) == 2
    assert "no run of" in capsys.readouterr().err
    assert main(command) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].startswith("| methods | seeds | held-out loss | difference from |")
    # Losses 1.0, 1.1 and 0.5, 0.6; processor times 11 / 10 and 12 / 11.
    assert "| cpt | 2 | 1.0500 ± 0.0707 | - | 40.0% | - | 100 |" in table
    top = "| top 20 % | 2 | 0.5500 ± 0.0707 | cpt: -0.5000 ± 0.0000 | 40.0% | 1.10 | 100 |"
    assert top in table
    assert (out / "methods.svg").read_text().count("<svg") == 1
    lines = (out / "runs.csv").read_text().splitlines()
    assert lines[0] == (
        "variant,seed,held_out_loss,exact_answers,trained_on,tokens,cpu_seconds,peak_memory_mib"
    )
    assert lines[4].startswith("top 20 %,1,0.6,,0.4,100,12.0,100.0")
    assert main([*command, "--report", "--json", "--to", str(tmp_path / "docs")]) == 0
    for name in ("tables.md", "runs.csv", "methods.svg"):
        assert (tmp_path / "docs" / name).read_bytes() == (out / name).read_bytes()
    report = json.loads(capsys.readouterr().out)
    assert [run["variant"] for run in report["runs"]] == ["cpt", "cpt", "top 20 %", "top 20 %"]
    assert len(trained) == 4


def test_only_named_variants_and_their_baselines_are_trained(tmp_path, plan_file, trained, capsys):
    """Named variants, and those that they are compared with; the rest may follow later."""
    added_variants = {"top 10 %": {}, "top 30 %": {"against": "top 10 %"}, "top 40 %": {}}
    variants = yaml.safe_load(plan_file().read_text())["variants"] | added_variants
    tables = {"methods": list(variants), "others": ["top 40 %"]}
    path, out = plan_file(variants=variants, tables=tables), tmp_path / "study"
    command = [str(path), "--out", str(out), "--seeds", "1"]
    assert main([*command, "--only", "top 30 %"]) == 0
    assert set(trained) == {"cpt-1", "top-10-1", "top-30-1"}
    assert "others" not in capsys.readouterr().out
    assert main(command) == 0
    assert len(trained) == 5
    assert "| top 40 % | 1 |" in capsys.readouterr().out
    assert main([*command, "--only", "top 50 %"]) == 2
    assert "--only: top 50 % is none of the variants" in capsys.readouterr().err


def test_options_are_checked_before_the_first_run(tmp_path, plan_file, trained, capsys):
    wrong = {"cpt": {"guidance.method": "cpt"}, "top 20 %": {"guidance.top_fractoin": 0.2}}
    command = [str(plan_file(variants=wrong)), "--out", str(tmp_path / "study")]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "top-20-0: " in message
    assert "top_fractoin" in message
    assert trained == []
    assert main([str(plan_file()), "--out", str(tmp_path), "--set", "steps"]) == 2
    assert "--set: expected NAME=VALUE" in capsys.readouterr().err
    assert main([str(tmp_path / "none.yaml"), "--out", str(tmp_path)]) == 2
    assert "no such file; expected the plan of a study" in capsys.readouterr().err


@pytest.mark.parametrize("held_out", [None, ""])
def test_a_run_without_held_out_text_is_refused(tmp_path, plan_file, trained, held_out):
    plan = read_plan(plan_file(common={"data.validation": held_out}))
    with pytest.raises(ConfigError, match=r"cpt-0: data\.validation: needed"):
        carry_out(plan, tmp_path / "study", {}, show=False)
    missing = read_plan(plan_file(questions=str(tmp_path / "none.jsonl")))
    with pytest.raises(InputError, match=r"questions: .*none\.jsonl: no such file"):
        carry_out(missing, tmp_path / "study", {}, show=False)
    assert trained == []


def test_runs_of_another_plan_are_refused(tmp_path, plan_file, monkeypatch):
    """By real configurations, of one step."""
    monkeypatch.setattr(sys, "executable", executable())
    out = tmp_path / "study"
    few = {"seeds": [0], "common": {"train.steps": 1}}
    assert main([str(plan_file(**few)), "--out", str(out)]) == 0
    other = NAIVE | {"top 20 %": {"guidance.top_fraction": 0.3}}
    for changed in ({**few, "common": {"train.steps": 2}}, {**few, "variants": other}):
        for arguments in ([], ["--report"]):
            command = [str(plan_file(**changed)), "--out", str(out), *arguments]
            assert main(command) == 2
    plan = read_plan(plan_file(**few))
    assert len(measured_so_far(plan, out, {})) == 2
    with pytest.raises(ConfigError, match=r"cpt-0: train\.steps is 3, but .* holds a run with 1"):
        measured_so_far(read_plan(plan_file(seeds=[0])), out, {"train.steps": "3"})


def test_questions_are_asked_when_the_plan_has_them(tmp_path, study, trained, asked, capsys):
    assert study().exact_answers is None
    first = study(**questions(tmp_path / "q.jsonl", 1))
    assert first.exact_answers == 0.1
    assert study(**questions(tmp_path / "q.jsonl", 1)) == first
    same = tmp_path / "same.jsonl"
    same.write_text('\n{"idx": 0, "answer": "2", "question": "1 + 1"}\n')
    assert study(questions=str(same)) == first  # the file is another one, the question is not
    assert asked == [("cpt-0", 1)]
    assert study() == first  # what is not asked for is kept
    both = questions(tmp_path / "q.jsonl", 1, 2)
    other = study(**both)
    assert other.exact_answers == 0.2
    assert study(report=True) == study(report=True, **both) == other
    assert capsys.readouterr().err == ""
    without = other.without_answers()
    assert study(report=True, **questions(tmp_path / "q.jsonl", 2)) == without
    assert "cpt-0: was asked other questions" in capsys.readouterr().err
    assert asked == [("cpt-0", 1), ("cpt-0", 2)]
    assert trained == ["cpt-0"]
    assert other.cpu_seconds == first.cpu_seconds == 10.0


def test_answers_of_an_earlier_version_are_kept(tmp_path, study, asked):
    """It did not keep which questions it asked, and measured less."""
    study(**questions(tmp_path / "q.jsonl", 1))
    path = tmp_path / "study" / "runs" / "cpt-0" / "measured.json"
    values = json.loads(path.read_text())
    later = ("question_digest", "answers_at", "steps_to_80", "confidence")
    path.write_text(json.dumps({name: values[name] for name in values if name not in later}))
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
        confidence, "answers_at_checkpoints", lambda run, path, steps: dict.fromkeys(steps, 0.9)
    )
    measured = study(**plan, questions_every=1)
    assert measured.answers_at == ((1, 0.9), (2, 0.1))
    assert measured.steps_to_80 == 1
    assert len(asked) == 1
    weights.unlink()
    assert study(**plan, questions_every=1) == measured
    other = questions(tmp_path / "other.jsonl", 2)
    with pytest.raises(InputError, match=gone):
        study(**other, questions_every=1)
    assert study(report=True, **other, questions_every=1) == measured.without_answers()
    again = study(**other)  # the final model only
    assert again.exact_answers == 0.2
    assert again.answers_at is None
    assert again.steps_to_80 is None


@pytest.mark.parametrize("failing", ["training", "asking"])
def test_a_failure_costs_neither_training_nor_what_was_measured(
    tmp_path, study, monkeypatch, trained, failing
):
    def fails(*_):
        raise InputError(f"{failing} failed")

    asks = questions(tmp_path / "q.jsonl", 1)
    with monkeypatch.context() as context:
        place = (carrying_out, "train") if failing == "training" else (problems, "accuracy_of_run")
        context.setattr(*place, fails)
        with pytest.raises(InputError, match=f"{failing} failed"):
            study(**asks)
    measured = study(**asks)
    assert (measured.cpu_seconds, measured.exact_answers) == (10.0, 0.1)
    assert trained == ["cpt-0"]


def test_damaged_measurements_name_their_file(tmp_path, study):
    study()
    path = tmp_path / "study" / "runs" / "cpt-0" / "measured.json"
    later = json.dumps(json.loads(path.read_text()) | {"later": 5})
    words = r"cpt-0/measured\.json: not what a study mea.*del"
    for damaged in ("", '{"variant": "cpt"', '{"variant": "cpt"}', "[]", "3", later):
        path.write_text(damaged)
        for report in (True, False):
            with pytest.raises(InputError, match=words):
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

    report = json.loads(capsys.readouterr().out, parse_constant=refused)
    assert report["runs"][0]["held_out_loss"] is None
    assert report["runs"][1]["held_out_loss"] == 1.1
    assert main([*command, "--report"]) == 0
    assert "| cpt | 2 | nan ± nan | - |" in capsys.readouterr().out


def test_a_run_without_a_held_out_loss_says_so(plan_file, tmp_path, monkeypatch):
    def train(run):
        (run.folder / "metrics.jsonl").write_text(json.dumps(training(2, 1.0)) + "\n")
        return {"cpu_seconds": None, "peak_memory_mib": None}

    monkeypatch.setattr(carrying_out, "train", train)
    with pytest.raises(InputError, match="cpt-0: no held-out loss in"):
        carry_out(read_plan(plan_file()), tmp_path / "study", {}, show=False)


def test_confidence_is_added_to_what_was_measured_before(study, trained, monkeypatch):
    asked = []

    def of_run(run, num_tokens):
        asked.append(num_tokens)
        return Confidence(num_tokens, 30, 4.0, 4.25, 0.25, 0.125, 0.75, 3.5)

    monkeypatch.setattr(confidence, "confidence_of_run", of_run)
    before = study()
    measured = study(confidence=40)
    assert measured == replace(before, confidence=of_run("", 40))
    assert study(confidence=40) == measured
    assert study(confidence=60).confidence.wanted == 60
    assert study().confidence.wanted == 60
    assert asked == [40, 40, 60]  # the second time above
    assert trained == ["cpt-0"]


def test_answers_during_training_give_the_steps_to_80_percent(tmp_path, study_config, monkeypatch):
    config = study_config(steps=5, checkpoint_every=5, keep_checkpoints=1)
    path = tmp_path / "plan.yaml"
    plan = {"config": str(config), "seeds": [1], "baseline": "cpt", "variants": NAIVE}
    plan |= {"tables": {"methods": ["cpt"]}, "questions_every": 1, "confidence": 10**6}
    path.write_text(yaml.safe_dump(plan | questions(tmp_path / "q.jsonl", 1)))

    def train(run):  # in this process
        _, config, *options = run.arguments
        assert train_here(config, *options, "--output", run.folder) == 0
        return {"cpu_seconds": None, "peak_memory_mib": None}

    monkeypatch.setattr(carrying_out, "train", train)
    shares = iter([0.0, 0.9, 0.7, 0.85])
    monkeypatch.setattr(confidence, "exact_answer_accuracy", lambda *_: next(shares))
    (run,) = carry_out(read_plan(path), tmp_path / "study", {}, show=False)
    assert run.answers_at == ((1, 0.0), (2, 0.9), (3, 0.7), (4, 0.85), (5, 0.0))
    assert run.exact_answers == 0.0
    assert run.steps_to_80 == 2
    assert run.confidence.loss == pytest.approx(run.held_out_loss, abs=1e-5)
    assert read_measured(tmp_path / "study" / "runs" / "cpt-1") == run
    kept = (tmp_path / "study" / "runs" / "cpt-1" / "checkpoints").iterdir()
    assert sorted(path.name for path in kept) == ["step_4", "step_5"]
