"""`benches/scoring.py`: losses that are wrong are no figures, and cost no other line."""

import argparse

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import scoring
from tiny_models import tiny_llama
from vocagno import TokenSpans


def test_wrong_losses_are_reported_after_all_lines(corpus, tokenizer_files, monkeypatch):
    spans, plain = TokenSpans(tokenizer_files / "teacher.json"), scoring._plain
    options = argparse.Namespace(
        corpus=corpus, documents=3, characters=None, batch_tokens=128, batching="buckets", repeats=1
    )
    inputs = options, tiny_llama(spans.vocabulary_size), spans, "tiny"
    assert scoring.measure(*inputs)["ratio"] > 0

    def shifted(*arguments):
        run = plain(*arguments)
        return lambda: ((number, nll + 5.0) for number, nll in run())

    monkeypatch.setattr(scoring, "_plain", shifted)
    line = scoring.measure(*inputs)
    assert "losses differ" in line["outcome"]
    assert "ratio" not in line
    assert line["of_wrong_losses"]["largest_difference"] == pytest.approx(5.0, abs=0.1)
    lines = [{"what": "a"}, line, {"what": "b"}]
    reported = scoring.to_the_end(lines)
    assert [next(reported) for _ in lines] == lines
    with pytest.raises(SystemExit, match="losses differ"):
        next(reported)
    assert list(scoring.to_the_end(lines[:1])) == lines[:1]
