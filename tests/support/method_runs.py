"""What the tests of the methods share: runs whose spans are proved, rows of a few documents."""

import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import HARD_TEXTS, TEXTS
from live_documents import DOCUMENTS, SEQ_LEN
from runs import final_weights, write_config
from vocagno import TokenSpans
from vocagno.config.options import Config, DataConfig, StudentConfig, TrainConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import scan
from vocagno.data.prepare import kept_texts, prepared_rows
from vocagno.tokens.student_tokenizer import student_tokenizer

CPU = torch.device("cpu")


def config_writer(tmp_path, tokenizer_files, tokenizers, same_vocabulary_model):
    """Writes the configuration of a run on a small corpus whose spans are proved from the ids, so
    that no two tokens have the same (else Algorithm 1 maps each to both)."""
    tokens = TokenSpans(tokenizers["llama"])
    proved = [text for text in HARD_TEXTS if tokens.encode([text]).proved.all()]
    assert len(proved) > 20
    corpus = write_corpus(tmp_path / "c.jsonl", [*TEXTS, *proved])

    def write(name, model=same_vocabulary_model, /, **sections):
        return write_config(
            tmp_path,
            corpus,
            tokenizer_files,
            model,
            output=str(tmp_path / name),
            **{"train": {"log_every": 1}, **sections},
        )

    return write


def same_weights(first, second):
    return distance(first, second) == 0


def distance(first, second):
    """The largest difference of two weights."""
    one, other = final_weights(first), final_weights(second)
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def prepared(tmp_path, tokenizer_files):
    corpus = scan(write_corpus(tmp_path / "rows.jsonl", DOCUMENTS))
    student = student_tokenizer(str(tokenizer_files / "student.json"), "</s>")
    store, _ = prepared_rows(corpus, student, SEQ_LEN, tmp_path, show_progress=False)
    texts = kept_texts(corpus, tmp_path, show_progress=False)
    return store, texts


def run_config(tmp_path, model, guidance, **data):
    return Config(
        student=StudentConfig(model="unused"),
        train=TrainConfig(steps=1),
        output=tmp_path / "run",
        data=DataConfig(train="unused", seq_len=SEQ_LEN, **data),
        guidance=guidance,
        teacher=TeacherConfig(model=str(model), mode="live"),
    )
