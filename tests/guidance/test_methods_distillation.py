"""Distances to the teacher's distribution, `kld` and `uld`, against the plain formulas."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import oracle
from live_documents import pieces
from method_runs import CPU, config_writer, distance, prepared, run_config
from runs import metrics, train_here
from tiny_models import tiny_llama
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.batches import Collator
from vocagno.guidance.mappings import (
    positional_map,
)
from vocagno.guidance.tensors import LossSums
from vocagno.teacher.live import LivePieces, TextTeacher, first_asked
from vocagno.teacher.scoring import load_scorer, text_reader
from vocagno.training.student import GuidedStudent


@pytest.fixture
def config(tmp_path, tokenizer_files, tokenizers, same_vocabulary_model):
    return config_writer(tmp_path, tokenizer_files, tokenizers, same_vocabulary_model)


@pytest.fixture
def rows(tmp_path, tokenizer_files):
    return prepared(tmp_path, tokenizer_files)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["kld", "uld"])
def test_a_distance_of_no_weight_is_naive_training(tmp_path, config, method):
    teacher = {"mode": "live"}
    guidance = {"method": method, "distillation_weight": 0.0}
    assert train_here(config("none", guidance=guidance, teacher=teacher)) == 0
    assert train_here(config("some", guidance={"method": method}, teacher=teacher)) == 0
    assert train_here(config("cpt", guidance={"method": "cpt"})) == 0
    assert distance(tmp_path / "none", tmp_path / "cpt") < 1e-5
    assert distance(tmp_path / "some", tmp_path / "cpt") > 1e-3
    for entry in metrics(tmp_path / "some")[0]:
        assert entry["kept_fraction"] == 1.0
        assert entry["mean_distance"] > 0
        assert (entry["paired"] == 1.0) == (method == "kld")  # uld: not special tokens
        assert "mean_excess_loss" not in entry


def test_a_student_moves_away_from_itself(tmp_path, config, same_vocabulary_model, tokenizers):
    start = tmp_path / "start"
    tiny_llama(tokenizers["llama"].get_vocab_size(), seed=5).save_pretrained(start)
    tokenizers["llama"].save(str(start / "tokenizer.json"))
    student = {"model": str(start), "architecture": None, "eos": "</s>", "tokenizer": None}
    path = config(
        "run", start, student=student, guidance={"method": "kld"}, teacher={"mode": "live"}
    )
    assert train_here(path) == 0
    distances = [entry["mean_distance"] for entry in metrics(tmp_path / "run")[0]]
    assert distances[0] == pytest.approx(0, abs=1e-6)
    assert distances[-1] > 1e-4


def test_heads_may_be_larger_than_the_vocabulary(tmp_path, config):
    """Of both sides; what is compared are the ids that both tokenizers know."""
    from runs import ARCHITECTURE

    path = config(
        "run",
        guidance={"method": "kld"},
        teacher={"mode": "live"},
        student={"architecture": {**ARCHITECTURE, "vocab_size": 700}},
    )
    assert train_here(path) == 0
    assert all(entry["mean_distance"] > 0 for entry in metrics(tmp_path / "run")[0])


@pytest.mark.parametrize("pairing", ["positional", "aligned"])
def test_uld_compares_the_tokens_it_says(tmp_path, rows, teacher_model, tokenizers, pairing):
    """Piece by piece with plain models, sorted distributions and the oracle's mapping."""
    from transformers import AutoModelForCausalLM

    store, texts = rows
    guidance = GuidanceConfig(method="uld", pairing=pairing)
    config = run_config(tmp_path, teacher_model, guidance)
    spans = TokenSpans(teacher_model)
    reader = text_reader(config.teacher, spans)
    live = TextTeacher(load_scorer(config.teacher, spans, CPU), guidance, CPU)
    chosen = [store[index] for index in range(0, len(store), 3)]
    batch = Collator(LivePieces(texts, reader), guidance, config.data)(chosen)
    tensors = batch.to(CPU)
    given = live.guide(batch.live, tensors, live.plan(batch.live))
    model = tiny_llama(tokenizers["llama"].get_vocab_size())
    guided = GuidedStudent(model, guidance)
    output = guided(**tensors, **given)
    teacher = AutoModelForCausalLM.from_pretrained(teacher_model)
    total = pairs = 0
    with torch.no_grad():
        of_student = model(tensors["input_ids"]).logits.softmax(-1)
    for number, row in enumerate(chosen):
        before = 0
        for piece, text, begins in pieces(row):
            tokens = spans.encode([text])
            own = tokens.spans + begins
            before += len(piece)
            if not len(own):
                continue
            with torch.no_grad():
                of_teacher = teacher(torch.tensor(tokens.ids[None].astype(np.int64))).logits
            of_teacher = of_teacher[0].softmax(-1)
            mine = [i for i, (start, end) in enumerate(piece) if start < end]
            if pairing == "positional":
                partner = dict(zip(mine, range(len(own)), strict=False))
            else:
                mapping = oracle.align(piece, own)
                partner = {i: max(1, mapping[i, 0]) for i in mine if mapping[i, 1] > 1}
            for token, other in partner.items():
                place = before - len(piece) + token - 1
                if place < 0 or other == 0 or other >= len(own):
                    continue  # nothing predicts the first token of a row, or of a text without BOS
                p, q = of_student[number, place], of_teacher[other - 1]
                width = max(len(p), len(q))
                falling = [
                    torch.nn.functional.pad(
                        side.sort(descending=True).values, (0, width - len(side))
                    )
                    for side in (p, q)
                ]
                total += float((falling[0] - falling[1]).abs().sum())
                pairs += 1
    assert pairs > 100
    sums = LossSums.of(output.sums)
    assert sums.pairs == pairs
    assert sums.distance == pytest.approx(total, rel=1e-5)


def test_the_first_token_that_was_asked_for():
    asked = np.array([False, True, False, False, True])
    mapping = np.array([[0, 1], [0, 2], [1, 3], [2, 4], [2, 5], [-1, -1], [4, 5]], np.int32)
    assert first_asked(mapping, asked).tolist() == [-1, 1, 1, -1, 4, -1, 4]


def test_positions_are_counted_over_tokens_with_text():
    student = np.array([[0, 0], [0, 1], [1, 2], [5, 6], [6, 7]], np.int32)
    teacher = np.array([[0, 2], [5, 5], [5, 6], [6, 7], [7, 8]], np.int32)
    mapping = positional_map(student, teacher, np.array([0, 3, 5]), np.array([0, 1, 5]))
    assert mapping.tolist() == [[-1, -1], [0, 1], [-1, -1], [2, 3], [3, 4]]
