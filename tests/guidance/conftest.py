"""Runs of methods on a small corpus, and rows of a few documents."""

import pytest

from corpora import write_corpus
from families import HARD_TEXTS, TEXTS
from vocagno import TokenSpans


@pytest.fixture
def config(tmp_path, tokenizer_files, tokenizers, same_vocabulary_model):
    """Writes the configuration of a run on a small corpus whose spans are proved from the ids, so
    that no two tokens have the same (else Algorithm 1 maps each to both)."""
    from runs import write_config

    tokens = TokenSpans(tokenizers["llama"])
    proved = [text for text in HARD_TEXTS if tokens.encode([text]).proved.all()]
    assert len(proved) > 20
    corpus = write_corpus(tmp_path / "c.jsonl", [*TEXTS, *proved])

    def write(name, model=same_vocabulary_model, /, **sections):
        options = {"output": str(tmp_path / name), "train": {"log_every": 1}, **sections}
        return write_config(tmp_path, corpus, tokenizer_files, model, **options)

    return write


@pytest.fixture
def rows(tmp_path, tokenizer_files):
    from method_runs import prepared

    return prepared(tmp_path, tokenizer_files)
