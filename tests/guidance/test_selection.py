"""Chunk alignment as guidance, against its definition written out plainly."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from live_documents import DOCUMENTS, SEQ_LEN
from runs import metrics, train_here
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.guidance import GuidanceTensors, token_weights
from vocagno.guidance.collator import Collator
from vocagno.guidance.comparison import chunk_numbers
from vocagno.guidance.methods import method_of
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.teacher.score_store import NOT_SCORED, DocumentScores

NAN = float("nan")


def chunk_weights(nll, losses, labels, numbers, config):
    teacher = GuidanceTensors(teacher_loss=losses, chunks=numbers)
    return token_weights(nll, teacher, labels, config)


def plain_chunk_weights(nll, teacher, labels, numbers, chunks, fraction, unmapped):
    """One row; chunks as lists of places."""
    members = [
        [i for i, n in enumerate(numbers) if n == c and labels[i] >= 0] for c in range(chunks)
    ]
    losses = [teacher[m[0]] if m else NAN for m in members]
    scored = [c for c in range(chunks) if members[c] and np.isfinite(losses[c])]
    unknown = [c for c in range(chunks) if members[c] and c not in scored]
    mean = np.mean([losses[c] for c in scored]) if scored else 0.0
    if unmapped == "mean":
        scored, losses = sorted(scored + unknown), [x if np.isfinite(x) else mean for x in losses]
        unknown = []
    excess = {c: np.mean([nll[i] for i in members[c]]) - losses[c] for c in scored}
    ranked = sorted(scored, key=lambda c: (-excess[c], c))
    chosen = ranked[: math.ceil(fraction * len(scored))]
    chosen += unknown if unmapped == "include" else []
    return [float(any(i in members[c] for c in chosen)) for i in range(len(nll))]


@pytest.mark.parametrize("unmapped", ["include", "exclude", "mean"])
@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_chunks_are_ranked_by_their_mean_loss(unmapped, fraction):
    rng = np.random.default_rng(1)
    sizes, chunks, width = [30, 17, 3, 0], 7, 32
    nll = rng.integers(0, 9, (4, width)).astype(np.float32) / 2  # ties, and exact sums
    teacher = np.full((4, width), np.nan, np.float32)
    numbers = np.full((4, width), -1)
    labels = np.where(rng.random((4, width)) < 0.8, 1, -100)
    for row, size in enumerate(sizes):
        numbers[row, :size] = chunk_numbers(size, chunks)
        losses = np.where(rng.random(chunks) < 0.7, rng.integers(0, 4, chunks), np.nan)
        teacher[row, :size] = losses[numbers[row, :size]]
        labels[row, size:] = -100
    config = GuidanceConfig(method="chunk", chunks=chunks, unmapped=unmapped, top_fraction=fraction)
    weights = chunk_weights(*map(torch.from_numpy, (nll, teacher, labels, numbers)), config)
    for row in range(4):
        expected = plain_chunk_weights(
            nll[row], teacher[row], labels[row], numbers[row], chunks, fraction, unmapped
        )
        assert weights[row].tolist() == expected, row


def test_the_teacher_loss_of_a_chunk_is_of_the_same_part_of_its_tokens(tmp_path, rows, tokenizers):
    """Scores stand on whole documents; of them the part that shares text with the row counts."""
    store, _ = rows
    teacher = TokenSpans(tokenizers["byte-level"])
    rng = np.random.default_rng(2)

    sides = [teacher.encode([text]).spans for text in DOCUMENTS]
    scores = [DocumentScores(spans, rng.random(len(spans)).astype(np.float16)) for spans in sides]
    guidance = GuidanceConfig(method="chunk", chunks=4, aggregation="mean")
    data = DataConfig(train="unused", seq_len=SEQ_LEN)
    collator = Collator(ScoresInOrder(scores), guidance, data)
    chosen = [store[index] for index in range(0, len(store), 2)]
    _, view = collator.align(chosen)
    before = 0
    for row in chosen:
        losses = []
        ends = np.cumsum(row.num_tokens)
        for document, stop, count in zip(row.documents, ends, row.num_tokens, strict=True):
            row_spans = row.spans[stop - count : stop]
            of = scores[document]
            first, last = row_spans[:, 0].min(), row_spans[:, 1].max()
            inside = [i for i, (s, e) in enumerate(of.spans) if s < e and s < last and e > first]
            losses += [float(of.nll[i]) for i in inside]
        n, m = len(row.ids), len(losses)
        for token in range(n):
            chunk = next(c for c in range(4) if c * n // 4 <= token < (c + 1) * n // 4)
            part = losses[chunk * m // 4 : (chunk + 1) * m // 4]
            expected_loss = np.float32(np.mean(part)) if part else np.float32(np.nan)
            np.testing.assert_allclose(view.teacher_loss[before + token], expected_loss, rtol=1e-5)
        before += n


def test_a_row_with_a_document_that_is_not_scored_has_no_chunks(rows, tokenizers):
    store, _ = rows
    teacher = TokenSpans(tokenizers["byte-level"])
    sides = [teacher.encode([text]).spans for text in DOCUMENTS[1:]]
    scores = [DocumentScores(spans, np.zeros(len(spans), np.float16)) for spans in sides]
    guidance = GuidanceConfig(method="chunk", chunks=4)
    data = DataConfig(train="unused", seq_len=SEQ_LEN)
    collator = Collator(ScoresInOrder([NOT_SCORED, *scores]), guidance, data)
    chosen = [store[index] for index in range(6)]
    (_, view), before = collator.align(chosen), 0
    for row in chosen:
        has_loss = np.isfinite(view.teacher_loss[before : before + len(row.ids)])
        assert has_loss.any() != (0 in row.documents)
        before += len(row.ids)


@pytest.mark.parametrize("unmapped", ["include", "exclude", "mean"])
def test_no_more_is_kept_than_the_host_expects(unmapped):
    rng = np.random.default_rng(3)
    for _ in range(50):
        labels = torch.from_numpy(np.where(rng.random((3, 20)) < 0.7, 1, -100))
        numbers = torch.from_numpy(np.stack([chunk_numbers(20, 6)] * 3))
        losses = rng.permuted([[1.0, NAN, 2.0, 3.0, NAN, 0.0]] * 3, axis=1).astype(np.float32)
        teacher = torch.from_numpy(losses).gather(1, numbers)
        nll = torch.from_numpy(rng.random((3, 20)).astype(np.float32))
        config = GuidanceConfig(method="chunk", chunks=6, unmapped=unmapped)
        kept = int(chunk_weights(nll, teacher, labels, numbers, config).sum())
        batch = GuidanceTensors(labels=labels, chunks=numbers, teacher_loss=teacher)
        most = method_of(config).most_kept(*[None] * 2, batch)
        assert kept <= most < kept + 3 * 3 * 4


@pytest.mark.slow
def test_a_random_choice_needs_no_teacher_and_does_not_depend_on_the_cut(tmp_path, config):
    guidance = {"method": "chunk", "selection": "random", "chunks": 4, "top_fraction": 0.5}
    for name, rows in (("whole", 8), ("cut", 2)):
        train = {"micro_batch": rows, "log_every": 1}
        assert (
            train_here(config(name, guidance=guidance, teacher={"model": None}, train=train)) == 0
        )
    logs = [metrics(tmp_path / name)[0] for name in ("whole", "cut")]
    for whole, other in zip(*logs, strict=True):
        assert whole["kept_fraction"] == other["kept_fraction"]
        assert whole["kept_loss"] == pytest.approx(other["kept_loss"], rel=1e-5)
        assert 0.4 < whole["kept_fraction"] < 0.6
    assert len({entry["kept_fraction"] for entry in logs[0]}) > 1
    assert not (tmp_path / "cache" / "scores").exists()


def test_random_ranks_follow_from_seed_and_sample():
    method = method_of(GuidanceConfig(method="chunk", chunks=8, selection="random"))
    ranks, other_ranks = (method.for_samples(seed, range(3, 6))["chunk_rank"] for seed in (0, 1))
    assert ranks.shape == (3, 8)
    assert torch.equal(ranks[1:2], method.for_samples(0, [4])["chunk_rank"])
    assert not torch.equal(ranks, other_ranks)
    assert len(ranks.unique()) == 24


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stored", "live"])
def test_a_run_by_chunks_keeps_the_configured_share(tmp_path, config, teacher_model, mode):
    path = config(
        "run",
        teacher_model,
        guidance={"method": "chunk", "chunks": 8},
        teacher={"mode": mode},
        train={"log_every": 1, "sample_every": 3},
    )
    assert train_here(path) == 0
    for entry in metrics(tmp_path / "run")[0]:
        assert 0.35 < entry["kept_fraction"] < 0.6
        assert entry["coverage"] == 1.0
        assert 3 < entry["mean_excess_loss"] + entry["mean_teacher_loss"] < 8  # a mean student loss
    assert (tmp_path / "run" / "samples" / "step_3.html").is_file()
