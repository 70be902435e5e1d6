"""What the tests of methods share: rows of a few documents, live teachers, weights of runs."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from live_documents import DOCUMENTS, SEQ_LEN
from runs import final_weights
from vocagno.config.options import DataConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import scan
from vocagno.data.prepare import prepare_rows, prepare_texts
from vocagno.guidance.collator import Collator
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.live import LivePieces, TextTeacher
from vocagno.tokens.student_tokenizer import student_tokenizer

CPU = torch.device("cpu")


def distance(first, second):
    """The largest difference of two weights."""
    weights, other = final_weights(first), final_weights(second)
    assert weights.keys() == other.keys()
    return max(float((weights[name] - other[name]).abs().max()) for name in weights)


def prepared(tmp_path, tokenizer_files, documents=DOCUMENTS):
    """The store of the student's rows of these documents, and their texts."""
    corpus = scan(write_corpus(tmp_path / "rows.jsonl", documents))
    student = student_tokenizer(str(tokenizer_files / "student.json"), "</s>")
    store, _ = prepare_rows(corpus, student, SEQ_LEN, tmp_path, show_progress=False)
    return store, prepare_texts(corpus, tmp_path, show_progress=False)


def live_teacher(texts, model, guidance, *, limit=None, line_ends=None, **options):
    """A live teacher from a folder, and a collator for it. Args: texts: of the rows' documents."""
    config = TeacherConfig(model=str(model), mode="live", **options)
    teacher = ConfiguredTeacher(config, Path("unused"), CPU)
    pieces = LivePieces(texts, teacher.reader, limit)
    live = TextTeacher(teacher.engine.load(), guidance, CPU)
    return live, Collator(pieces, guidance, DataConfig(train="", seq_len=SEQ_LEN), line_ends)
