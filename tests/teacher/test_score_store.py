"""One store of scores guides students with different tokenizers, on real text."""

import pickle
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import numpy as np

from corpora import write_corpus
from families import FAMILIES, TEXTS
from runs import metrics, train_here, write_config
from score_stores import write_store
from shared_data import shared, shared_texts
from tiny_models import tiny_llama
from vocagno import TokenSpans
from vocagno.cli.app import main
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import scan
from vocagno.data.prepare import prepare_rows
from vocagno.data.rows import RowsShard
from vocagno.data.store.building import make_store
from vocagno.data.store.shards import StoreError
from vocagno.guidance.collator import Collator
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.score_store import (
    SCORES,
    DocumentScores,
    MatchedScores,
    ScoresOfTexts,
    ScoreStore,
)
from vocagno.teacher.scoring import write_scored
from vocagno.tokens.student_tokenizer import student_tokenizer


def test_a_document_that_the_teacher_could_not_read_costs_the_reading_of_its_shard(
    tmp_path, monkeypatch
):
    """Once every process of a run read all rows for one refused document."""
    FAMILIES["byte-level"]().save(str(tmp_path / "t.json"))
    student = student_tokenizer(str(tmp_path / "t.json"), "<|endoftext|>")
    corpus = scan(write_corpus(tmp_path / "c.jsonl", TEXTS), shard_bytes=100)
    rows, _ = prepare_rows(corpus, student, 16, tmp_path, show_progress=False)
    refused = corpus.shards[3].first_document

    def make(shard, path, advance):
        texts = corpus.read_shard(shard)
        scores = [
            DocumentScores(np.array([[0, len(text.encode())]], np.int32), np.ones(1, np.float16))
            for text in texts.texts
        ]
        if shard is corpus.shards[3]:
            scores[0] = DocumentScores.none("odd")
        write_scored(path, texts, scores, {})

    make_store(corpus, tmp_path / "scores", SCORES, {}, make, show_progress=False)
    read, check = [], RowsShard.check
    monkeypatch.setattr(
        RowsShard, "check", lambda self, unit: (read.append(self.path.stem), check(self, unit))
    )
    matched = MatchedScores(ScoreStore(tmp_path / "scores"), rows)
    assert read == [rows.manifest.shards[3].name]
    assert (matched.refused_documents, matched.missing_documents) == (1, 0)
    tokens = rows.documents()[1]
    assert matched.missing_share == tokens[refused] / tokens.sum()
    assert matched.piece(refused, 0, 5).missing


RULES = (
    {},
    {"unit": "token", "aggregation": "mean", "unmapped": "mean"},
    {"max_threshold": 2.0},
    {"window": "line", "window_max_loss": 2.0},
    {"method": "alm"},
    {"method": "chunk", "selection": "teacher"},
)


def test_a_store_with_candidates_serves_the_other_rules_with_the_same_rows(
    tmp_path, teacher_model, tokenizer_files
):
    student = student_tokenizer(str(tokenizer_files / "student.json"), "</s>")
    corpus = scan(write_corpus(tmp_path / "c.jsonl", TEXTS))
    rows, _ = prepare_rows(corpus, student, 64, tmp_path, show_progress=False)
    chosen, data = [rows[number] for number in range(len(rows))], DataConfig(train="", seq_len=64)
    matched = []
    for count in (0, 4):
        config = TeacherConfig(model=str(teacher_model), candidates=count)
        teacher = ConfiguredTeacher(config, tmp_path, torch.device("cpu"))
        store = teacher.scores(lambda: corpus, None, show_progress=False)
        assert store.candidates == count
        matched.append(MatchedScores(store, rows))
    for rule in RULES:
        guidance, line_ends = GuidanceConfig(**rule), student.spans.line_ends()
        batches = [Collator(scores, guidance, data, line_ends)(chosen) for scores in matched]
        without, with_some = (batch.inputs() for batch in batches)
        assert without.keys() == with_some.keys() >= {"teacher_loss"}
        for name, values in without.items():
            np.testing.assert_array_equal(values, with_some[name], err_msg=name)
        assert batches[0].counts == batches[1].counts


@pytest.mark.slow
def test_one_store_serves_students_of_two_tokenizers(tmp_path):
    """TinyLlama's and GPT-2's tokenizers under one teacher, whose scores nobody makes again."""
    definition = shared("tokenizers", "pythia.json.gz")
    teacher = tmp_path / "teacher"
    tiny_llama(TokenSpans(definition).vocabulary_size, seed=1).save_pretrained(teacher)
    corpus = write_corpus(tmp_path / "c.jsonl", shared_texts("math-train")[:8])
    store = tmp_path / "scores"
    model = ["--teacher.model", teacher, "--teacher.tokenizer", definition]
    score = ["score", corpus, "--out", store, "--cache", tmp_path / "cache", *model]
    assert main(list(map(str, score))) == 0
    assert ScoreStore(store).manifest.count("unscored_tokens") == 0
    for name, eos in (("tinyllama", "</s>"), ("gpt2", "<|endoftext|>")):
        tokenizer = str(shared("tokenizers", f"{name}.json.gz"))
        options = {
            "student": {"tokenizer": tokenizer, "eos": eos},
            "teacher": {"model": None, "scores": str(store)},
            "data": {"seq_len": 128},
            "train": {"steps": 4, "log_every": 1},
            "output": str(tmp_path / name),
        }
        path = write_config(tmp_path, corpus, tmp_path, teacher, **options)
        assert train_here(path) == 0
        entries, _ = metrics(tmp_path / name)
        assert len(entries) == 4
        for entry in entries:
            assert entry["coverage"] == 1.0
            assert entry["scored"] == 1.0
            assert 0.4 < entry["kept_fraction"] < 0.45
    assert not (tmp_path / "cache" / "scores").exists()


def test_a_text_is_found_by_its_whole_hash():
    hashes = np.frombuffer(bytes(range(32)), "V16")
    half = np.frombuffer(bytes(range(8)) + bytes(8), "V16")
    store = SimpleNamespace(shards=lambda: [SimpleNamespace(text_hashes=hashes)])
    places = ScoresOfTexts(store, check=False).places(np.concatenate([half, hashes[::-1]]))
    assert places.tolist() == [-1, 1, 0]


def test_scores_that_are_not_checked_are_not_after_a_pickle(tmp_path):
    texts = ["one", "two"]
    scores = [DocumentScores(np.array([[0, 3]], np.int32), np.ones(1))] * 2
    store = write_store(tmp_path, texts, scores, {}, 2)
    lazy = pickle.dumps(ScoresOfTexts(store, check=False))
    shard = tmp_path / "shard-00000.arrow"
    data = shard.read_bytes()
    assert data.count(np.float16([1, 1]).tobytes()) == 1
    shard.write_bytes(data.replace(np.float16([1, 1]).tobytes(), np.float16([1, 2]).tobytes()))
    assert pickle.loads(lazy).find(["one"])[0].nll.tolist() == [1]
    with pytest.raises(StoreError, match="damaged"):
        pickle.loads(lazy).find(["two"])
