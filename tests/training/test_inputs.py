"""What a run needs before its first step is built once."""

from collections import Counter

import pytest

from runs import train_here, write_config
from vocagno.teacher import configured
from vocagno.tokens.token_spans import TokenSpans


@pytest.fixture
def built(monkeypatch):
    """How often each tokenizer was built, and each model's weights were hashed."""
    count = Counter()
    init, identity = TokenSpans.__init__, configured.weights_identity

    def counted_init(self, tokenizer, *arguments, **options):
        count[str(tokenizer)[:500]] += 1
        init(self, tokenizer, *arguments, **options)

    def counted_identity(*arguments):
        count["weights"] += 1
        return identity(*arguments)

    monkeypatch.setattr(TokenSpans, "__init__", counted_init)
    monkeypatch.setattr(configured, "weights_identity", counted_identity)
    return count


CASES = {
    "stored": {},
    "live": {"teacher": {"mode": "live"}},
    "pages": {"train": {"sample_every": 1}},
    "live pages": {"teacher": {"mode": "live"}, "train": {"sample_every": 1}},
    "rho1": {"guidance": {"method": "rho1"}},
    "kld": {"guidance": {"method": "kld"}, "teacher": {"mode": "live"}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_start_builds_each_tokenizer_once(
    tmp_path, corpus, tokenizer_files, teacher_model, same_vocabulary_model, built, case
):
    is_same = case in ("rho1", "kld")
    path = write_config(
        tmp_path,
        corpus,
        tokenizer_files,
        same_vocabulary_model if is_same else teacher_model,
        **{**CASES[case], "train": {"steps": 1, **CASES[case].get("train", {})}},
    )
    assert train_here(path) == 0
    assert built.pop("weights") == 1
    assert len(built) == 2  # that of the student, and that of the teacher
    assert set(built.values()) == {1}


def test_a_student_that_brings_its_tokenizer_builds_it_once(
    tmp_path, corpus, tokenizer_files, teacher_model, same_vocabulary_model, built
):
    path = write_config(
        tmp_path,
        corpus,
        tokenizer_files,
        teacher_model,
        student={"model": str(same_vocabulary_model), "architecture": None, "tokenizer": None},
        train={"steps": 1},
    )
    assert train_here(path) == 0
    assert len(built) == 3  # weights, and two tokenizers
    assert set(built.values()) == {1}
