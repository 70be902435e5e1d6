"""`benches/scoring.py`: losses that are wrong cost no other line."""

import argparse

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import scoring
from tiny_models import tiny_llama
from vocagno import TokenSpans


def test_a_difference_is_reported_and_all_lines_come_first():
    lines = [{"what": "a"}, {"outcome": "5 nats", "of_wrong_losses": {}}, {"what": "b"}]
    reported = scoring.to_the_end(lines)
    assert [next(reported) for _ in lines] == lines
    with pytest.raises(SystemExit, match="5 nats"):
        next(reported)
    assert list(scoring.to_the_end(lines[:1])) == lines[:1]


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_wrong_losses_are_no_figures_of_the_table(shift, corpus, tokenizer_files, monkeypatch):
    plain = scoring._plain

    def shifted(*arguments):
        run = plain(*arguments)
        return lambda: ((number, nll + shift) for number, nll in run())

    monkeypatch.setattr(scoring, "_plain", shifted)
    spans = TokenSpans(tokenizer_files / "teacher.json")
    options = argparse.Namespace(
        corpus=corpus,
        documents=3,
        characters=None,
        batch_tokens=128,
        batching="buckets",
        repeats=1,
    )
    line = scoring.measured(options, tiny_llama(spans.vocabulary_size), spans, "tiny")
    if not shift:
        assert line["ratio"] > 0
        return
    assert "losses differ" in line["outcome"]
    assert "ratio" not in line
    assert line["of_wrong_losses"]["largest_difference"] == pytest.approx(shift, abs=0.1)
