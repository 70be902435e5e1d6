"""One store of scores guides students with different tokenizers, on real text."""

import pytest

pytest.importorskip("torch")

from corpora import write_corpus
from runs import metrics, train_here, write_config
from shared_data import shared, shared_texts
from tiny_models import tiny_llama
from vocagno import TokenSpans
from vocagno.cli.app import main
from vocagno.teacher.scores import ScoreStore

pytestmark = pytest.mark.slow


def test_one_store_two_students(tmp_path):
    """TinyLlama's and GPT-2's tokenizers under one teacher, whose scores nobody makes again."""
    definition = shared("tokenizers", "pythia.json.gz")
    teacher = tmp_path / "teacher"
    tiny_llama(TokenSpans(definition).vocabulary_size, seed=1).save_pretrained(teacher)
    corpus = write_corpus(tmp_path / "c.jsonl", shared_texts("math-train")[:8])
    store = tmp_path / "scores"
    score = [
        "score",
        str(corpus),
        "--out",
        str(store),
        "--cache",
        str(tmp_path / "cache"),
        "--teacher.model",
        str(teacher),
        "--teacher.tokenizer",
        str(definition),
    ]
    assert main(score) == 0
    assert ScoreStore(store).manifest.count("unscored_tokens") == 0
    for name, eos in (("tinyllama", "</s>"), ("gpt2", "<|endoftext|>")):
        tokenizer = str(shared("tokenizers", f"{name}.json.gz"))
        path = write_config(
            tmp_path,
            corpus,
            tmp_path,
            teacher,
            student={"tokenizer": tokenizer, "eos": eos},
            teacher={"model": None, "scores": str(store)},
            data={"seq_len": 128},
            train={"steps": 4, "log_every": 1},
            output=str(tmp_path / name),
        )
        assert train_here(path) == 0
        entries, _ = metrics(tmp_path / name)
        assert len(entries) == 4
        for entry in entries:
            assert entry["coverage"] == 1.0
            assert entry["scored"] == 1.0
            assert 0.4 < entry["kept_fraction"] < 0.45
    assert not (tmp_path / "cache" / "scores").exists()
