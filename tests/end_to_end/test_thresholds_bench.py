"""`benches/thresholds.py` at a tiny shape: what it compares is what it says."""

import argparse
from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import guided_steps
import head_losses
import thresholds
import training
import training_page
from corpora import write_corpus
from families import TEXTS
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.selective import selective_cross_entropy
from vocagno.models.head import LanguageHead

ROWS, LENGTH, VOCABULARY = 2, 32, 512
TINY = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture
def options(tmp_path, tokenizer_files, monkeypatch):
    """As the command line gives them, of a shape that only this test knows."""
    monkeypatch.setitem(guided_steps.SHAPES, "tiny", TINY)
    return argparse.Namespace(
        corpus=write_corpus(tmp_path / "texts.jsonl", TEXTS),
        shape="tiny",
        precision="fp32",
        student=str(tokenizer_files / "student.json"),
        eos="</s>",
        teacher=str(tokenizer_files / "teacher.json"),
        rows=ROWS,
        seq_len=LENGTH,
        repeats=2,
    )


@pytest.mark.slow
def test_lines_and_table_of_a_tiny_shape(options, monkeypatch):
    peaks = {"dense": 200.0, "torch": 200.0, "cpt": 170.0}
    monkeypatch.setattr(
        training, "peak_of_a_process", lambda script, options, kind, *_: peaks.get(kind, 150.0)
    )
    lines = list(thresholds.step(options))
    assert [line["share"] for line in lines] == [0.70, 0.98]
    for line in lines:
        for way in thresholds.WAYS:
            assert line["kept"][way] == pytest.approx(line["share"], abs=0.12)
            assert line["gradient_difference"][way] < 1e-4
            assert line["ratio"][way] > 0
            assert line["memory_ratio"][way] == 0.75
        assert set(line["seconds"]) == {*thresholds.WAYS, "cpt", line["rival"]}
    assert lines[0]["kept"]["one pass"] < lines[1]["kept"]["one pass"]
    table = list(training_page.thresholds(lines))
    assert len(table) == 2 + len(lines) + 2
    assert f"{lines[0]['ratio']['one pass']:.3f} ({lines[0]['rival']})" in table[2]
    assert "0.75, 0.75, 0.75" in table[2]


@pytest.mark.slow
def test_each_way_computes_the_logits_that_it_should(options, tmp_path, monkeypatch):
    steps = thresholds.ThresholdSteps(options, tmp_path)
    seen = []
    logits = LanguageHead.logits

    def watched(self, hidden, room=None):
        seen.append(len(hidden))
        return logits(self, hidden, room)

    kinds = steps.ways(steps.rules())
    for loss in kinds.values():
        loss()  # heads are proved once
    monkeypatch.setattr(LanguageHead, "logits", watched)
    for way, expected in {"one pass": [64], "a row at a time": [32, 32]}.items():
        seen.clear()
        kinds[f"{way}, 70%"]()
        assert seen == expected
    seen.clear()
    kinds["two passes, 70%"]()
    of_all, of_kept = seen
    share = float(steps.kept["two passes, 70%"][-1])
    assert of_all == ROWS * LENGTH
    assert of_kept == round(share * of_all) < of_all


def test_steps_do_not_move_the_weights(options, tmp_path):
    """Else the share that a threshold keeps would change from step to step."""
    steps = thresholds.ThresholdSteps(options, tmp_path)
    before = [parameter.detach().clone() for parameter in steps.model.parameters()]
    steps.update(steps.naive()["cpt"])
    assert all(map(torch.equal, before, steps.model.parameters()))


def test_a_rule_drops_what_is_left_after_the_tokens_that_do_not_compete():
    excess = np.array([0, 1, 1, 2, 3, 4, 5, 6], np.float32)
    assert thresholds.rule(0.7, excess, included=2, predicted=10) == (0.7, 1.5, 1 - 3 / 8)
    tied = thresholds.rule(0.8, excess, included=2, predicted=10)
    assert tied.threshold == 0.5  # both tokens of a group are kept
    with pytest.raises(SystemExit, match="9 of 10 tokens are kept anyway"):
        thresholds.rule(0.7, excess[:1], included=9, predicted=10)


def test_memory_is_that_of_the_kind_that_is_named(options, monkeypatch):
    ran = []
    peak = training.peak
    monkeypatch.setattr(training, "peak", lambda *args: ran.append(args[1]) or peak(*args))
    options.kind, options.rule = "one pass, 70%", [[0.7, 1.0, 0.7], [0.98, -1.0, 0.98]]
    memory = thresholds.memory(options)
    assert ran == ["one pass, 70%"]
    assert memory["peak_mb"] > 0


@pytest.mark.parametrize("difference", [1e-3, float("nan")])
def test_steps_with_another_gradient_are_not_timed(difference):
    with pytest.raises(SystemExit, match="one pass: the gradient differs"):
        training.require_small("one pass", difference)


@pytest.mark.skipif(
    "torch" not in head_losses.installed(torch.device("cpu")), reason="torch < 2.13"
)
@pytest.mark.parametrize("options", [{"top_fraction": 0.4}, {"method": "cpt"}], ids=str)
def test_a_rival_of_our_loop_gives_the_same(options):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*of, 8, generator=generator) for of in ((2, 16), (50,)))
    labels, teacher = torch.randint(50, (2, 16), generator=generator), torch.zeros(2, 16)
    outputs = []
    for way in (nullcontext(), head_losses.in_place_of_ours("torch")):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with way:
            loss, _ = selective_cross_entropy(*leaves, labels, teacher, GuidanceConfig(**options))
        loss.backward()
        outputs.append([loss, *(leaf.grad for leaf in leaves)])
    for our_tensor, rival_tensor in zip(*outputs, strict=True):
        torch.testing.assert_close(our_tensor, rival_tensor, rtol=1e-5, atol=1e-6)
