"""How sure a trained student is, and its answers at its checkpoints."""

import math

import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from research.study import confidence
from research.study.confidence import (
    COLDEST,
    HOTTEST,
    answers_at_checkpoints,
    confidence_of_run,
    confidence_of_states,
    discard_checkpoints,
)
from runs import train_here, write_config
from vocagno.errors import InputError
from vocagno.models.head import LanguageHead
from vocagno.training.run_log import read_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run_of_six_steps(tmp_path_factory, tokenizer_files, teacher_model):
    """A finished run of naive training with a checkpoint of every second step."""
    folder = tmp_path_factory.mktemp("run")
    corpus = write_corpus(folder / "c.jsonl", TEXTS)
    sections = {"guidance": {"method": "cpt"}, "data": {"validation": str(corpus)}}
    sections["train"] = {"keep_checkpoints": 9}
    config = write_config(folder, corpus, tokenizer_files, teacher_model, **sections)
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


@pytest.mark.parametrize("scale", [0.2, 1.0, 4.0])
def test_the_temperature_is_that_of_the_smallest_loss(scale, monkeypatch):
    states, head, labels = drawn(scale)
    monkeypatch.setattr("vocagno.models.head.CHUNK_ELEMENTS", 50 * 700)  # the last chunk is short
    monkeypatch.setattr("vocagno.models.head.LEAST_ROWS", 1)
    stats = confidence_of_states(states, head, labels, num_tokens=9_999)
    logits = head.logits(states).double()
    p = logits.softmax(1)
    assert stats.wanted == 9_999
    assert stats.tokens == 3000
    assert stats.loss == pytest.approx(float(-p.gather(1, labels[:, None]).log().mean()), abs=1e-5)
    assert stats.entropy == pytest.approx(float(-(p * p.log()).sum(1).mean()), abs=1e-5)
    share_right = float((p.argmax(1) == labels).float().mean())
    assert stats.best_guess_right == pytest.approx(share_right, abs=1e-6)
    assert stats.best_guess_probability == pytest.approx(float(p.amax(1).mean()), abs=1e-5)
    # Within a seed's chance of the one that the labels were drawn with.
    assert 1 / stats.temperature == pytest.approx(scale, rel=0.1)
    around = stats.temperature * torch.linspace(0.8, 1.25, 61, dtype=torch.float64)
    losses = [
        float(torch.nn.functional.cross_entropy(logits / temperature, labels))
        for temperature in around
    ]
    assert stats.tempered_loss <= min(losses) + 1e-5
    at_it = torch.nn.functional.cross_entropy(logits / stats.temperature, labels)
    assert stats.tempered_loss == pytest.approx(float(at_it), abs=1e-5)


def test_temperatures_stay_within_their_bounds():
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


def test_answers_at_checkpoints(run_of_six_steps, monkeypatch):
    """Each checkpoint's own weights are asked."""
    seen = []

    def share(model, tokenizer, problems):
        seen.append(model.get_output_embeddings().weight.detach().clone())
        return len(seen) / 10

    monkeypatch.setattr(confidence, "exact_answer_accuracy", share)
    questions = run_of_six_steps.parent / "q.jsonl"
    questions.write_text('{"question": "1 + 1", "answer": "2"}\n')
    assert answers_at_checkpoints(run_of_six_steps, questions, [2, 6]) == {2: 0.1, 6: 0.2}
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
