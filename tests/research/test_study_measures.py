"""What a study measures of a trained model: how sure it is, and when it had learnt."""

import json
import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import yaml

from corpora import write_corpus
from families import TEXTS
from research.study import answers, carrying_out, confidence
from research.study.answers import answers_at_checkpoints, discard_checkpoints
from research.study.carrying_out import carry_out
from research.study.comparison import Spread, compared, markdown
from research.study.confidence import COLDEST, HOTTEST, confidence_of_run, confidence_of_states
from research.study.measured import Confidence, Measured, read_measured, write_runs
from research.study.plan import Plan, read_plan
from runs import train_here, write_config
from vocagno.config.options import DataConfig
from vocagno.errors import InputError
from vocagno.models.head import LanguageHead
from vocagno.training.run_log import read_run

OLD = {
    "variant": "cpt",
    "seed": 0,
    "held_out_loss": 4.5,
    "exact_answers": None,
    "trained_on": 1.0,
    "tokens": 100,
    "cpu_seconds": None,
    "peak_memory_mib": 80.5,
}
"""`measured.json` as it was before."""


@pytest.fixture(scope="module")
def run_of_six_steps(tmp_path_factory, tokenizer_files, teacher_model):
    """A finished run of naive training with a checkpoint of every second step."""
    folder = tmp_path_factory.mktemp("run")
    corpus = write_corpus(folder / "c.jsonl", TEXTS)
    config = write_config(
        folder,
        corpus,
        tokenizer_files,
        teacher_model,
        guidance={"method": "cpt"},
        data={"validation": str(corpus)},
        train={"keep_checkpoints": 9},
    )
    assert train_here(config) == 0
    return folder / "run"


def drawn(scale, rows=3000, seed=0):
    """States, a head, and labels drawn from the softmax of `scale` times the logits."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, 8, generator=generator)
    head = LanguageHead(
        torch.randn(50, 8, generator=generator), 0.1 * torch.randn(50, generator=generator)
    )
    p = (scale * head.logits(states).double()).softmax(1)
    return states, head, torch.multinomial(p, 1, generator=generator)[:, 0]


@pytest.mark.parametrize("scale", [0.2, 0.8, 1.0, 1.3, 4.0])
def test_the_temperature_is_that_of_the_smallest_loss(scale, monkeypatch):
    states, head, labels = drawn(scale)
    monkeypatch.setattr("vocagno.models.head.CHUNK_ELEMENTS", 50 * 700)  # the last chunk is short
    monkeypatch.setattr("vocagno.models.head.LEAST_ROWS", 1)
    found = confidence_of_states(states, head, labels, wanted=9_999)
    logits = head.logits(states).double()
    p = logits.softmax(1)
    assert found.wanted == 9_999
    assert found.tokens == 3000
    assert found.loss == pytest.approx(float(-p.gather(1, labels[:, None]).log().mean()), abs=1e-5)
    assert found.entropy == pytest.approx(float(-(p * p.log()).sum(1).mean()), abs=1e-5)
    assert found.best_guess_right == pytest.approx(
        float((p.argmax(1) == labels).float().mean()), abs=1e-6
    )
    assert found.best_guess_probability == pytest.approx(float(p.amax(1).mean()), abs=1e-5)
    # Within a seed's chance of the one that the labels were drawn with.
    assert 1 / found.temperature == pytest.approx(scale, rel=0.1)
    around = found.temperature * torch.linspace(0.8, 1.25, 61, dtype=torch.float64)
    losses = [
        float(torch.nn.functional.cross_entropy(logits / temperature, labels))
        for temperature in around
    ]
    assert found.tempered_loss <= min(losses) + 1e-5
    at_it = torch.nn.functional.cross_entropy(logits / found.temperature, labels)
    assert found.tempered_loss == pytest.approx(float(at_it), abs=1e-5)


def test_temperatures_at_the_ends():
    states, head, labels = drawn(1.0)
    logits = head.logits(states)
    always = confidence_of_states(states, head, logits.argmax(1), 1)
    assert always.temperature == pytest.approx(COLDEST, rel=1e-3)
    assert always.tempered_loss < 0.02 < always.loss
    never = confidence_of_states(states, head, logits.argmin(1), 1)
    assert never.temperature == pytest.approx(HOTTEST, rel=1e-3)
    assert math.log(50) < never.tempered_loss < never.loss
    uniform = confidence_of_states(0 * states, LanguageHead(head.weight_VH), labels, 1)
    assert uniform.temperature == 1
    assert uniform.entropy == pytest.approx(math.log(50), abs=1e-5)


def test_confidence_of_a_run_is_of_its_held_out_text(run_of_six_steps):
    """All of it gives the loss that training logged; a part is the first tokens."""
    logged = read_run(run_of_six_steps).curve("validation_loss")[1][-1]
    whole = confidence_of_run(run_of_six_steps, 10**6)
    assert whole.loss == pytest.approx(logged, abs=1e-5)
    assert 300 < whole.tokens < 10**6
    assert whole.tempered_loss <= whole.loss
    part = confidence_of_run(run_of_six_steps, 50)
    assert part.tokens == 50
    assert part.loss != whole.loss


def test_confidence_is_added_to_what_was_measured_before(tmp_path, monkeypatch):
    """A study whose plan asks for it now; nothing is trained again."""
    path = tmp_path / "plan.yaml"
    plan = {"config": "x", "seeds": [0], "baseline": "cpt", "variants": {"cpt": {}}, "tables": {}}
    path.write_text(yaml.safe_dump(plan | {"confidence": 40}))
    folder = tmp_path / "study" / "runs" / "cpt-0"
    folder.mkdir(parents=True)
    (folder / "measured.json").write_text(json.dumps(OLD))
    assert read_measured(folder) == Measured(**OLD)
    asked = []

    def of_run(run, wanted):
        asked.append((run.name, wanted))
        return Confidence(wanted, 30, 4.0, 4.25, 0.25, 0.125, 0.75, 3.5)

    class Configured:
        data = DataConfig(train="unused")

    monkeypatch.setattr(confidence, "confidence_of_run", of_run)
    monkeypatch.setattr(carrying_out, "_checked", lambda run: Configured)
    (run,) = carry_out(read_plan(path), tmp_path / "study", {}, show=False)
    assert run == replace(Measured(**OLD), confidence=of_run(folder, 40))
    assert carry_out(read_plan(path), tmp_path / "study", {}, show=False) == [run]
    assert len(asked) == 2  # once by the study, once above
    path.write_text(yaml.safe_dump(plan | {"confidence": 60}))
    (run,) = carry_out(read_plan(path), tmp_path / "study", {}, show=False)
    assert run.confidence.wanted == 60
    path.write_text(yaml.safe_dump(plan))
    assert carry_out(read_plan(path), tmp_path / "study", {}, show=False) == [run]


def test_answers_at_checkpoints(run_of_six_steps, monkeypatch):
    """Each checkpoint's own weights are asked."""
    seen = []

    def share(model, tokenizer, problems):
        seen.append(model.get_output_embeddings().weight.detach().clone())
        return len(seen) / 10

    monkeypatch.setattr(answers, "exact_answer_accuracy", share)
    questions = run_of_six_steps.parent / "q.jsonl"
    questions.write_text('{"question": "1 + 1", "answer": "2"}\n')
    found = answers_at_checkpoints(run_of_six_steps, questions, [2, 6])
    assert found == {2: 0.1, 6: 0.2}
    from safetensors.torch import load_file

    final = load_file(run_of_six_steps / "final" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(seen[1], final)
    assert not torch.equal(seen[0], final)
    with pytest.raises(InputError, match=r"questions_every: .*step_3.* does not exist"):
        answers_at_checkpoints(run_of_six_steps, questions, [3])


def test_only_the_last_checkpoints_stay(tmp_path):
    for step in (2, 4, 10, 12):
        (tmp_path / "checkpoints" / f"step_{step}").mkdir(parents=True)
    discard_checkpoints(tmp_path)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["step_10", "step_12"]


def test_a_study_that_asks_at_steps(tmp_path, study_config, monkeypatch):
    config = study_config(steps=5, checkpoint_every=5, keep_checkpoints=1)
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "1 + 1", "answer": "2"}\n')
    path = tmp_path / "plan.yaml"
    plan = {
        "config": str(config),
        "seeds": [1],
        "baseline": "cpt",
        "questions": str(questions),
        "questions_every": 1,
        "variants": {"cpt": {"guidance.method": "cpt"}},
        "tables": {"methods": ["cpt"]},
        "confidence": 10**6,
    }
    path.write_text(yaml.safe_dump(plan))

    def train(run):  # in this process
        _, config, *options = run.arguments
        assert train_here(config, *options, "--output", run.folder) == 0
        return {"cpu_seconds": None, "peak_memory_mib": None}

    monkeypatch.setattr(carrying_out, "train", train)
    shares = iter([0.0, 0.9, 0.7, 0.85])
    monkeypatch.setattr(answers, "exact_answer_accuracy", lambda *_: next(shares))
    (run,) = carry_out(read_plan(path), tmp_path / "study", {}, show=False)
    assert run.answers_at == ((1, 0.0), (2, 0.9), (3, 0.7), (4, 0.85), (5, 0.0))
    assert run.exact_answers == 0.0
    assert run.steps_to_80 == 2
    assert run.confidence.loss == pytest.approx(run.held_out_loss, abs=1e-5)
    assert read_measured(tmp_path / "study" / "runs" / "cpt-1") == run
    kept = (tmp_path / "study" / "runs" / "cpt-1" / "checkpoints").iterdir()
    assert sorted(path.name for path in kept) == ["step_4", "step_5"]


def measured(variant, seed, answers_at=None, steps_to_80=None, entropy=None):
    sure = entropy and Confidence(9, 9, 2.0, entropy, 0.25, 0.125, 0.75, 1.0 + seed + entropy)
    one = Measured(variant, seed, 2.0, answers_at and 0.5, 1.0, 100, None, None)
    return replace(one, answers_at=answers_at, steps_to_80=steps_to_80, confidence=sure or None)


def test_columns_of_what_was_measured(tmp_path):
    plan = Plan(
        config="unused",
        baseline="a",
        variants={"a": {}, "b": {}, "c": {}},
        seeds=[0, 1],
        tables={"t": ["a", "b", "c"]},
    )
    some = ((1, 0.5),)
    runs = [
        measured("a", 0, some, 200, entropy=1.0),
        measured("a", 1, some, 300, entropy=1.5),
        measured("b", 0, some, 400),
        measured("b", 1, some, entropy=2.0),
        measured("c", 0, some),
        measured("c", 1),
    ]
    rows = compared(plan, runs, ["a", "b", "c"])
    assert rows[1].confidence.difference == Spread((0.5,))  # of seed 1
    header, _, *lines = markdown("t", rows).splitlines()
    assert "entropy | best guess right (%) | temperature | loss with it | difference" in header
    assert "1.250 ± 0.354 | 25.0 ± 0.0 | 0.750 ± 0.000 | 2.7500 ± 1.0607 | - |" in lines[0]
    assert "2.000 | 25.0 | 0.750 | 4.0000 | a: +0.5000 |" in lines[1]
    assert "a: +0.0000 ± 0.0000 | - | - | - | - | a: - |" in lines[2]
    steps = [line.split(" | ")[10] for line in (header, *lines)]
    assert steps == ["steps to 80 %", "250 ± 71", "400 (1 of 2)", "never"]
    assert "-" in markdown("t", compared(plan, [measured("a", 0)], ["a"]))
    write_runs(tmp_path / "runs.csv", runs)
    header, first, *_, last = (tmp_path / "runs.csv").read_text().splitlines()
    assert header.endswith(
        ",steps_to_80,confidence_wanted,confidence_tokens,confidence_loss,confidence_entropy,"
        "confidence_best_guess_right,confidence_best_guess_probability,confidence_temperature,"
        "confidence_tempered_loss"
    )
    assert first == "a,0,2.0,0.5,1.0,100,,,200,9,9,2.0,1.0,0.25,0.125,0.75,2.0"
    assert last == "c,1,2.0,,1.0,100,,,,,,,,,,,"
