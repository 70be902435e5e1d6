"""Batches of texts for a loop of one's own, against their definition and the collator's."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vocagno
from families import TEXTS
from vocagno import TokenSpans
from vocagno.errors import ConfigError
from vocagno.guidance import (
    GuidanceConfig,
    count_kept,
    guided_batch,
    selective_cross_entropy,
    token_weights,
)
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.line_rule import rest_of_line_loss, weights_of_lines
from vocagno.teacher.candidates import Candidates

LINES = ["3 + 4 = 7\nqx zv jk wq\nSo the sum is 7.\n", "Ana has 12 apples.\n12 + 7 = 19\n"]
PAPER = GuidanceConfig(top_fraction=0.4)


@pytest.fixture
def sides(tokenizers):
    return TokenSpans(tokenizers["llama"]), TokenSpans(tokenizers["byte-level"])


def losses(other, seed=0):
    """(M,) with none at the first token of each text."""
    nll = np.random.default_rng(seed).exponential(1, len(other.ids)).astype(np.float32)
    nll[other.cu_seqlens[:-1]] = np.nan
    return nll


def made(sides, texts, rule, nll=None, **inputs):
    student, teacher = sides
    tokens, other = student.encode(texts), teacher.encode(texts)
    nll = losses(other) if nll is None else nll
    eos = student.token_id("</s>")
    return tokens, other, nll, guided_batch(student, tokens, other, nll, rule, eos_id=eos, **inputs)


@pytest.mark.parametrize("sign", ["ohm", "\u2126"])
def test_the_bytes_of_a_character_count_once(tokenizers, sign):
    """A document that is not in NFC has its spans from offsets, with which all tokens of a
    character have the whole of it."""
    student, teacher = (TokenSpans(tokenizers[name]) for name in ("byte-level-nfc", "byte-level"))
    text = f"plain words\n😊🚀💥😊🚀💥\nresistance 5 {sign}"
    tokens, other = student.encode([text]), teacher.encode([text])
    is_shared = (np.diff(tokens.spans[:, 0]) == 0).any()
    assert is_shared == (sign != "ohm")
    first, end = (text.encode().index(byte) for byte in (b"\xf0", b"\nres"))
    sides = tokens.spans, other.spans
    in_line = [(spans[:, 0] >= first) & (spans[:, 1] <= end) for spans in sides]
    sizes = other.spans[:, 1] - other.spans[:, 0]
    nll = (np.where(in_line[1], 3.0, 0.5) * sizes).astype(np.float32)
    eos = student.token_id("<|endoftext|>")
    batch = guided_batch(student, tokens, other, nll, GuidanceConfig(), eos_id=eos)
    before = len(student.prefix_ids) - 1  # a weight stands at the token that is predicted
    places = np.flatnonzero(in_line[0]) + before
    assert len(places) == 24  # a token for each byte
    assert not batch.weight[0, places].any()


def test_texts_whose_tokens_have_no_place_are_refused(tokenizers, sides):
    """All of their tokens would count as special ones, and train without a teacher."""
    student, teacher = sides
    tokens, other = student.encode(LINES), teacher.encode(LINES)
    swapped = student.from_ids(tokens.ids, tokens.cu_seqlens, texts=LINES[::-1])
    assert not swapped.proved.any()
    eos = student.token_id("</s>")
    with pytest.raises(ValueError, match="own: no token of text 0 has a place in it"):
        guided_batch(student, swapped, other, losses(other), GuidanceConfig(), eos_id=eos)
    same = student.from_ids(tokens.ids, tokens.cu_seqlens, texts=LINES)
    guided_batch(student, same, other, losses(other), GuidanceConfig(), eos_id=eos)


def test_a_student_without_line_breaks_is_warned_of(tokenizers):
    """Its lines are whole documents."""
    spans = TokenSpans(tokenizers["word-piece"])
    with pytest.warns(UserWarning, match="no token holds a line break, so that rules of lines"):
        assert not spans.line_ends().any()


@pytest.mark.parametrize("how", ["max", "mean", "sum", "min"])
def test_noise_is_told_from_the_teachers_own_tokens_whatever_the_unit(monkeypatch, sides, how):
    """Some of which share text with several tokens of the student."""
    losses_and_rests = []

    def looked_at(batch, rule):
        losses_and_rests.append((batch.teacher_loss, rest_of_line_loss(batch, rule)))
        return weights_of_lines(batch, rule)

    monkeypatch.setattr("vocagno.guidance.collator.weights_of_lines", looked_at)
    lines = {"window": "line", "window_max_loss": 1.0}
    rules = GuidanceConfig(**lines, unit="group"), GuidanceConfig(**lines, aggregation=how)
    for rule in rules:
        made(sides, [*LINES, *TEXTS], rule)
    (groups_BT, expected_BT), (tokens_BT, found_BT) = losses_and_rests
    assert not torch.equal(groups_BT.nan_to_num(), tokens_BT.nan_to_num())
    torch.testing.assert_close(found_BT, expected_BT, rtol=0, atol=0, equal_nan=True)
    assert (found_BT > 1.0).any()


@pytest.mark.parametrize("unit", ["token", "group"])
def test_losses_and_labels_are_their_definition(sides, unit):
    """Sees a shift by one between labels and teacher losses, and losses that go to a neighbouring
    text."""
    student, _ = sides
    rule = GuidanceConfig(top_fraction=None, max_threshold=0.0, unit=unit)
    tokens, other, nll, batch = made(sides, TEXTS, rule)
    cu = {"student_cu_seqlens": tokens.cu_seqlens, "teacher_cu_seqlens": other.cu_seqlens}
    expected = vocagno.reduce(nll, vocagno.align(tokens.spans, other.spans, **cu), how="max")
    numbers = np.full(len(tokens.ids), -1)
    if unit == "group":
        aligned = vocagno.groups(tokens.spans, other.spans, **cu)
        expected = np.full(len(tokens.ids), np.nan, np.float32)
        pairs = zip(aligned.student.tolist(), aligned.teacher.tolist(), strict=True)
        for number, ((a, b), (c, d)) in enumerate(pairs):
            expected[a:b], numbers[a:b] = nll[c:d].sum() / (b - a), number
    before = len(student.prefix_ids)
    assert before
    for index in range(len(TEXTS)):
        rows = tokens.text(index)
        ids = [*student.prefix_ids, *tokens.ids[rows].tolist(), student.token_id("</s>")]
        n = len(ids) - 1
        assert batch.input_ids_BT[index, :n].tolist() == ids[:-1]
        assert batch.labels_BT[index].tolist() == ids[1:] + [-100] * (batch.labels_BT.shape[1] - n)
        of_text = slice(before - 1, n - 1)
        teacher_loss = batch.teacher.teacher_loss[index].numpy()
        np.testing.assert_allclose(teacher_loss[of_text], expected[rows], rtol=1e-6)
        assert np.isnan(teacher_loss[n - 1 :]).all()
        if unit == "group":
            groups = batch.teacher.groups[index, of_text].tolist()
            same = [[a == b >= 0 for b in groups] for a in groups]
            group_of = numbers[rows].tolist()
            scored = np.isfinite(expected[rows]).tolist()
            for a, row in enumerate(same):
                for b, is_same in enumerate(row):
                    assert is_same == (group_of[a] == group_of[b] >= 0 and scored[a]), (index, a, b)


def test_the_default_rule_drops_a_line_that_the_teacher_cannot_predict(sides):
    student, teacher = sides
    other = teacher.encode(LINES)
    nll = np.full(len(other.ids), 0.5, np.float32)
    first = other.spans[other.text(0)]
    noise = (first[:, 0] >= LINES[0].index("qx")) & (first[:, 1] <= LINES[0].index("So"))
    nll[other.text(0)][noise] = 9.0
    tokens, _, _, batch = made(sides, LINES, None, nll)
    nothing = torch.zeros(batch.labels_BT.shape)
    weights = token_weights(nothing, batch.teacher, batch.labels_BT, GuidanceConfig())
    spans = tokens.spans[tokens.text(0)]
    of_noise = (spans[:, 0] >= LINES[0].index("qx")) & (spans[:, 1] <= LINES[0].index("So"))
    is_kept = weights[0, len(student.prefix_ids) - 1 :][: len(spans)].bool().numpy()
    assert of_noise.sum() > 3
    assert (is_kept == ~of_noise).all()
    assert batch.counts.kept == weights.sum()  # known before the forward pass
    assert weights[1].sum() == (batch.labels_BT[1] >= 0).sum()


@pytest.mark.parametrize(
    "guidance", [GuidanceConfig(), PAPER, GuidanceConfig(method="chunk", top_fraction=0.4)]
)
def test_the_loss_of_a_batch_is_its_weighted_cross_entropy(sides, guidance):
    student, _ = sides
    *_, batch = made(sides, LINES, guidance)
    batch = batch.to("cpu")
    torch.manual_seed(0)
    weight = torch.randn(student.vocabulary_size, 16, requires_grad=True)
    hidden = torch.randn(*batch.labels_BT.shape, 16)
    arguments = hidden, weight, batch.labels_BT, batch.teacher, guidance
    total, metrics = selective_cross_entropy(*arguments)
    total.backward()
    expected = torch.nn.functional.cross_entropy(
        (hidden @ weight.T).transpose(1, 2), batch.labels_BT, reduction="none"
    )
    assert total.item() == pytest.approx((expected * metrics.weights_BT).sum().item(), rel=1e-5)
    assert weight.grad.abs().sum() > 0
    if guidance is PAPER:
        assert batch.teacher.num_kept == count_kept(
            batch.teacher.teacher_loss, batch.labels_BT, guidance
        )
    elif guidance.method != "chunk":
        assert batch.teacher.num_kept is None


def test_the_tensors_belong_to_their_guidance(sides):
    student, _ = sides
    *_, batch = made(sides, LINES, PAPER)
    weight, hidden = torch.randn(student.vocabulary_size, 8), torch.randn(*batch.labels_BT.shape, 8)
    arguments = hidden, weight, batch.labels_BT, batch.teacher
    for other in (
        GuidanceConfig(top_fraction=0.8),
        GuidanceConfig(unit="group", max_threshold=0.0),
    ):
        with pytest.raises(ConfigError, match=r"^teacher: made for guidance"):
            selective_cross_entropy(*arguments, other)
        with pytest.raises(ConfigError, match=r"^teacher: made for guidance"):
            token_weights(torch.zeros(batch.labels_BT.shape), batch, batch.labels_BT, other)


def test_every_tensor_of_a_batch_moves_to_a_device(sides):
    """Sees a column that stays on the host."""
    *_, batch = made(sides, LINES, GuidanceConfig())
    moved = batch.to("meta")
    for name in ("input_ids_BT", "labels_BT", "teacher_loss", "weight"):
        assert getattr(moved.teacher, name).device.type == "meta"
    assert (moved.counts, type(moved)) == (batch.counts, type(batch))


def test_prompts_are_read_and_not_learnt(sides):
    prompt = len("3 + 4 =")
    tokens, _, _, batch = made(sides, LINES, PAPER, prompt_bytes=[prompt, 0])
    ends = tokens.spans[tokens.text(0)][:, 1]
    is_learnt = batch.labels_BT[0, : len(ends)] >= 0
    assert is_learnt.tolist() == (ends > prompt).tolist()
    assert (batch.labels_BT[1] >= 0).sum() == len(tokens.ids[tokens.text(1)]) + 1


def test_no_losses_at_all_and_infinite_ones(sides):
    other = sides[1].encode(LINES)
    masked = np.ma.masked_all(len(other.ids))
    for nothing in (*(np.full(len(other.ids), loss) for loss in (np.nan, np.inf)), masked):
        *_, batch = made(sides, LINES, PAPER, nothing)
        assert batch.teacher.teacher_loss.isnan().all()


def test_inputs_of_other_texts_or_tokenizers_are_refused(sides):
    student, teacher = sides
    texts, other = student.encode(LINES), teacher.encode(LINES)
    nll, size = losses(other), student.vocabulary_size
    swapped = teacher.encode(LINES[::-1])
    around = student.from_ids([*student.prefix_ids, *texts.ids[texts.text(0)].tolist()])
    shifted = replace(texts, ids=texts.ids + size)
    assert guided_batch(student, texts, other, nll, eos_id=np.int64(2)).labels_BT[0, -1] == 2
    for arguments, options, message in (
        ((texts, other[:1], nll), {}, "as many texts on both sides, got 2 and 1"),
        ((texts[:0], other[:0], []), {}, "as many texts on both sides, got 0 and 0"),
        ((texts, other, nll[1:]), {}, r"teacher_nll: expected one for each of \d+ tokens"),
        ((texts, other, -nll), {}, "log-probabilities have the other sign"),
        ((texts, other, nll), {"prompt_bytes": [0]}, "prompt_bytes: expected 2, got 1"),
        ((texts, other, nll), {"eos_id": None}, "eos_id: expected an id from 0 to .*, got None"),
        ((texts, other, nll), {"eos_id": -1}, "eos_id: expected an id from 0 to .*, got -1"),
        ((texts, other, nll), {"eos_id": size}, f"eos_id: expected an id from 0 to .*, got {size}"),
        ((texts, swapped, losses(swapped)), {}, "are these the same texts in the same order"),
        ((around, other[:1], nll[other.text(0)]), {}, "text 0 begins with BOS or ends with EOS"),
        ((shifted, other, nll), {}, "own: id .* has .*in each other's place"),
    ):
        with pytest.raises(ValueError, match=message):
            guided_batch(student, *arguments, **{"eos_id": 2} | options)
    for method in ({"method": "kld"}, {"method": "chunk", "selection": "random"}):
        with pytest.raises(ConfigError, match="needs more than stored losses"):
            guided_batch(student, texts, other, nll, GuidanceConfig(**method), eos_id=2)


def test_targets_and_candidates_belong_to_the_texts(sides, tokenizers):
    """Buckets or candidates of other tokenizers, texts or counts would train towards other ids
    without an error."""
    rule, texts = GuidanceConfig(method="distill", distill_where="all"), TEXTS[:6]
    other = sides[1].encode(texts)
    targets = BucketTargets(vocagno.buckets(*sides), 3)
    top_k = replace(Candidates.none(len(other.ids), 3), tokens=other.ids.astype(np.int32))
    top_k.ids[:], top_k.codes[:] = other.ids[:, None] - np.arange(3) * (other.ids[:, None] > 9), 80
    both = {"targets": targets, "candidates": top_k}
    *_, batch = made(sides, texts, rule, **both)
    size = sides[0].vocabulary_size
    hidden = torch.randn(*batch.labels_BT.shape, 8)
    for rows in (size, size + 3):  # a head may have more ids
        arguments = hidden, torch.randn(rows, 8), batch.labels_BT, batch.teacher, rule
        assert selective_cross_entropy(*arguments)[0].isfinite()
    arguments = hidden, torch.randn(size - 1, 8), batch.labels_BT, batch.teacher, rule
    with pytest.raises(
        ValueError, match=r"^buckets: the student's tokenizer has 513 ids, but its head has"
    ):
        selective_cross_entropy(*arguments)

    third = TokenSpans(tokenizers["metaspace-first"])
    moved = replace(top_k, tokens=np.roll(top_k.tokens, 1))
    of_another = {**both, "targets": BucketTargets(vocagno.buckets(sides[0], third), 3)}
    for wrong, message in (
        ({}, "^targets: guidance.method: distill needs BucketTargets"),
        ({"candidates": top_k}, "^targets: guidance.method: distill needs BucketTargets"),
        ({"targets": targets}, "^candidates: guidance.method: distill needs the candidates of"),
        ({**both, "candidates": moved}, "^candidates: their tokens are not those of `other`"),
        ({**both, "candidates": top_k[:-1]}, "^candidates: their tokens are not those of `other`"),
        (
            {**both, "targets": BucketTargets(vocagno.buckets(third, sides[1]), 3)},
            "^targets: their buckets are of another student tokenizer",
        ),
        (of_another, "^targets: only"),
        ({**both, "targets": BucketTargets(targets.buckets, 4)}, "needs scores with 4 candidates"),
    ):
        with pytest.raises(ValueError, match=message):
            made(sides, texts, rule, **wrong)
    with pytest.raises(ConfigError, match=r"^targets: only"):  # also without a teacher loss
        made(sides, texts, rule, np.full(len(other.ids), np.nan), **of_another)
    with pytest.raises(ConfigError, match=r"^candidates: guidance.method: vocagno needs none"):
        made(sides, texts, PAPER, candidates=top_k)


def test_an_empty_text_trains_its_eos_after_a_bos(sides):
    """Only the end of the text is learnt, and nothing where there is no BOS to learn it from."""
    student, teacher = sides
    tokens, other = student.encode(["", ""]), teacher.encode(["", ""])
    batch = guided_batch(student, tokens, other, [], eos_id=2)
    assert batch.labels_BT.tolist() == [[2]] * 2
    plain = teacher.encode(["", ""])
    batch = guided_batch(teacher, plain, other, [], eos_id=2)
    assert batch.labels_BT.tolist() == [[-100]] * 2
