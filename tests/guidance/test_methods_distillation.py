"""KLD and ULD: losses and gradients against plain formulas on all logits, torch's and TRL's."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import oracle
from drawn_batches import (
    HIDDEN,
    LENGTH,
    ROWS,
    VOCABULARY,
    batch,
    check_close,
    dense_logits,
    dense_losses,
    heads,
    states,
    with_gradients,
)
from live_documents import pieces
from method_runs import CPU, distance, live_teacher
from runs import ARCHITECTURE, metrics, train_here
from tiny_models import save_llama, tiny_llama
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.loss import LossSums
from vocagno.guidance.methods import method_of
from vocagno.models.head import LanguageHead
from vocagno.models.losses import TeacherStates
from vocagno.teacher.live import first_asked
from vocagno.training.step import GuidedStudent

NAN = float("nan")
TEACHER_HIDDEN, TEACHER_TOKENS = 5, 40
pytestmark = pytest.mark.usefixtures("small_chunks")


def teacher(ids, *, bias=True):
    """Random states; every fourth label has no partner, some share one."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(ids, TEACHER_HIDDEN, generator=generator)
    hidden = torch.randn(TEACHER_TOKENS, TEACHER_HIDDEN, generator=generator)
    partner = torch.randint(0, TEACHER_TOKENS, (ROWS, LENGTH), generator=generator)
    partner[:, ::4] = -1
    head = LanguageHead(weight, torch.randn(ids, generator=generator) if bias else None)
    return TeacherStates(hidden, head, partner)


def teacher_logits(target, ids=None):
    """(B, T, W) float64, of row 0 where there is no partner."""
    logits = dense_logits(target.states_MH, target.head)
    return logits[target.partner_BT.clamp_min(0)][..., :ids]


def plain_kl(log_p, target, divergence):
    """torch's KL divergence, of the ids that both know."""
    log_q = teacher_logits(target, log_p.shape[-1]).log_softmax(-1)
    first, second = (log_q, log_p) if divergence == "reverse" else (log_p, log_q)
    return torch.nn.functional.kl_div(first, second, log_target=True, reduction="none").sum(-1)


def plain_wasserstein(p, q):
    """Distributions sorted, filled up with zeros, added up."""
    width = max(p.shape[-1], q.shape[-1])
    sides = [torch.nn.functional.pad(side, (0, width - side.shape[-1])) for side in (p, q)]
    falling = [side.sort(-1, descending=True).values for side in sides]
    return (falling[0] - falling[1]).abs().sum(-1)


def check(guidance, target, kind, distance_of):
    labels, _ = batch()
    hidden, dense_head, expected = with_gradients(states(), heads()[kind])
    nll = dense_losses(hidden, dense_head, labels)
    paired = (target.partner_BT >= 0) & (labels >= 0)
    distance = torch.where(
        paired, distance_of(dense_logits(hidden, dense_head).log_softmax(-1)), 0.0
    )
    expected_loss = nll.sum() + guidance.weight_of_distance * distance.sum()
    (expected_loss * 0.37).backward()
    hidden, our_head, our_leaves = with_gradients(states(), heads()[kind])
    loss, stats = method_of(guidance).distill(hidden, our_head, labels, target)
    (loss * 0.37).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected_loss.detach(), rtol=1e-5, atol=0)
    torch.testing.assert_close(stats.nll_BT.double(), nll.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stats.distance_BT.double(), distance.detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(stats.has_partner_BT, paired)
    assert 0 < paired.sum() < (labels >= 0).sum()
    check_close(our_leaves, expected, 2e-5)


@pytest.mark.parametrize("kind", heads())
@pytest.mark.parametrize("divergence", ["reverse", "forward"])
@pytest.mark.parametrize("extra_ids", [0, 16])
def test_kld_is_cross_entropy_and_torchs_divergence(kind, divergence, extra_ids):
    """A teacher's ids beyond the student's (Llemma has 16) are left out."""
    target = teacher(VOCABULARY + extra_ids)
    guidance = GuidanceConfig(method="kld", divergence=divergence)
    assert guidance.weight_of_distance == 1.0
    check(guidance, target, kind, lambda log_p: plain_kl(log_p, target, divergence))


@pytest.mark.parametrize("kind", heads())
@pytest.mark.parametrize("ids", [20, VOCABULARY, 70, 3 * VOCABULARY])
def test_uld_is_cross_entropy_and_the_distance_of_sorted_distributions(kind, ids):
    target = teacher(ids)
    guidance = GuidanceConfig(method="uld", distillation_weight=1.5)
    of_teacher = teacher_logits(target).softmax(-1)
    check(guidance, target, kind, lambda log_p: plain_wasserstein(log_p.exp(), of_teacher))


def test_uld_is_that_of_trl():
    """The distance and its gradient agree with another implementation, on all logits at once."""
    pytest.importorskip("trl", reason="TRL's ULD is the rival; install trl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.gold import GOLDConfig
        from trl.experimental.gold.gold_trainer import ULDLoss
    config = GOLDConfig(
        output_dir="unused",
        use_uld_loss=True,
        use_extended_uld=False,
        report_to=[],
        uld_crossentropy_weight=0.0,
        uld_distillation_weight=1.0,
        bf16=False,
        uld_skip_student_eos=False,
        uld_skip_teacher_eos=False,
        use_cpu=True,
    )
    labels, _ = batch()
    labels = labels.clamp_min(0)
    target = teacher(70)
    partner = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % TEACHER_TOKENS
    target = TeacherStates(target.states_MH, target.head, partner)
    hidden, head, leaves = with_gradients(states(), heads()["weights"])
    logits = dense_logits(hidden, head).log_softmax(-1).float()
    trl_loss = ULDLoss(config)(
        logits, teacher_logits(target).float(), labels, labels, labels, labels
    )
    trl_loss.backward()
    our_hidden, our_head, our_leaves = with_gradients(states(), heads()["weights"])
    guidance = GuidanceConfig(method="uld", distillation_weight=1.0)
    loss, stats = method_of(guidance).distill(our_hidden, our_head, labels, target)
    loss.backward()
    torch.testing.assert_close(stats.distance_BT.mean(), trl_loss.detach(), rtol=1e-4, atol=0)
    nll_hidden, nll_head, nll_leaves = with_gradients(states(), heads()["weights"])
    dense_losses(nll_hidden, nll_head, labels).sum().backward()
    for our_leaf, of_nll, rival in zip(our_leaves, nll_leaves, leaves, strict=True):
        distance_alone = (our_leaf.grad - of_nll.grad) / (ROWS * LENGTH)
        assert (distance_alone - rival.grad).norm() <= 1e-4 * rival.grad.norm()


@pytest.mark.parametrize(("method", "ids"), [("kld", VOCABULARY + 3), ("uld", 3 * VOCABULARY)])
def test_no_more_logits_of_either_side_exist_than_a_chunk(monkeypatch, method, ids):
    seen = []
    original = LanguageHead.logits

    def watched(self, hidden, room=None):
        seen.append(len(hidden) * len(self.weight_VH))
        return original(self, hidden, room)

    monkeypatch.setattr(LanguageHead, "logits", watched)
    labels, _ = batch()
    method_of(GuidanceConfig(method=method)).distill(states(), heads()["all"], labels, teacher(ids))
    assert len(seen) > ROWS * LENGTH // 7
    assert max(seen) <= 7 * VOCABULARY


def test_the_same_distribution_is_at_no_distance():
    labels, _ = batch()
    hidden, head = states(), heads()["bias"]
    partner = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH)
    target = TeacherStates(hidden.flatten(0, 1), head, partner)
    for options in (
        {"method": "kld"},
        {"method": "kld", "divergence": "forward"},
        {"method": "uld"},
    ):
        _, stats = method_of(GuidanceConfig(**options)).distill(hidden, head, labels, target)
        assert stats.distance_BT.abs().max() < 1e-5


def test_bfloat16_states_are_compared_in_float32():
    labels, _ = batch()
    target = teacher(70)
    for method in ("kld", "uld"):
        guidance = GuidanceConfig(method=method)
        exact, _ = method_of(guidance).distill(states(), heads()["weights"], labels, target)
        with torch.autocast("cpu", torch.bfloat16):
            rounded, stats = method_of(guidance).distill(
                states(), heads()["weights"], labels, target
            )
        assert rounded.dtype == stats.distance_BT.dtype == torch.float32
        assert float(rounded) == pytest.approx(float(exact), rel=1e-2)
        assert float(rounded) != float(exact)


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
def test_kld_of_the_ids_that_both_know(divergence):
    """Heads have rows to spare on both sides; both distributions are renormalised."""
    shared = 41
    target = teacher(47)
    target = TeacherStates(target.states_MH, target.head, target.partner_BT, shared)

    def among(log_p):
        return plain_kl(log_p[..., :shared].log_softmax(-1), target, divergence)

    guidance = GuidanceConfig(method="kld", divergence=divergence)
    for kind in heads():
        check(guidance, target, kind, among)


def test_a_state_that_is_no_number_and_nobodys_partner_does_no_harm():
    labels, _ = batch()
    for method in ("kld", "uld"):
        target = teacher(VOCABULARY)
        target.states_MH[0] = NAN
        target.partner_BT[target.partner_BT == 0] = -1
        hidden, head, leaves = with_gradients(states(), heads()["bias"])
        loss, _ = method_of(GuidanceConfig(method=method)).distill(hidden, head, labels, target)
        loss.backward()
        assert all(leaf.grad.isfinite().all() for leaf in leaves)


def test_a_teacher_with_fewer_ids_is_refused():
    labels, _ = batch()
    with pytest.raises(ValueError, match="50 ids, but the student has 50 and the teacher 20"):
        method_of(GuidanceConfig(method="kld")).distill(
            states(), heads()["all"], labels, teacher(20)
        )
    assert HIDDEN != TEACHER_HIDDEN


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


@pytest.mark.slow
def test_a_student_moves_away_from_itself(tmp_path, config, same_vocabulary_model, tokenizers):
    start = save_llama(tmp_path / "start", tokenizers["llama"], seed=5)
    student = {"model": str(start), "architecture": None, "eos": "</s>", "tokenizer": None}
    path = config(
        "run", start, student=student, guidance={"method": "kld"}, teacher={"mode": "live"}
    )
    assert train_here(path) == 0
    distances = [entry["mean_distance"] for entry in metrics(tmp_path / "run")[0]]
    assert distances[0] == pytest.approx(0, abs=1e-6)
    assert distances[-1] > 1e-4


@pytest.mark.slow
def test_heads_may_be_larger_than_the_vocabulary(tmp_path, config):
    """Of both sides; what is compared are the ids that both tokenizers know."""
    path = config(
        "run",
        guidance={"method": "kld"},
        teacher={"mode": "live"},
        student={"architecture": {**ARCHITECTURE, "vocab_size": 700}},
    )
    assert train_here(path) == 0
    assert all(entry["mean_distance"] > 0 for entry in metrics(tmp_path / "run")[0])


@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["positional", "aligned"])
def test_uld_compares_the_tokens_it_says(rows, teacher_model, tokenizers, pairing):
    """Piece by piece with plain models, sorted distributions and the oracle's mapping."""
    from transformers import AutoModelForCausalLM

    store, texts = rows
    guidance, spans = GuidanceConfig(method="uld", pairing=pairing), TokenSpans(teacher_model)
    live, collator = live_teacher(texts, teacher_model, guidance)
    chosen = [store[index] for index in range(0, len(store), 3)]
    batch = collator(chosen)
    tensors = batch.to(CPU).inputs()
    teacher_inputs = live.guide(batch.live_text, tensors, live.plan(batch.live_text))
    model = tiny_llama(tokenizers["llama"].get_vocab_size())
    guided = GuidedStudent(model, guidance)
    output = guided(**tensors, **teacher_inputs)
    teacher = AutoModelForCausalLM.from_pretrained(teacher_model)
    total = pairs = 0
    with torch.no_grad():
        of_student = model(tensors["input_ids"]).logits.softmax(-1)
    for number, row in enumerate(chosen):
        before = 0
        for piece, text, begins in pieces(row):
            tokens = spans.encode([text])
            teacher_spans = tokens.spans + begins
            before += len(piece)
            if not len(teacher_spans):
                continue
            with torch.no_grad():
                of_teacher = teacher(torch.tensor(tokens.ids[None].astype(np.int64))).logits
            of_teacher = of_teacher[0].softmax(-1)
            with_text = [i for i, (start, end) in enumerate(piece) if start < end]
            if pairing == "positional":
                partner = dict(zip(with_text, range(len(teacher_spans)), strict=False))
            else:
                mapping = oracle.align(piece, teacher_spans)
                partner = {i: max(1, mapping[i, 0]) for i in with_text if mapping[i, 1] > 1}
            for token, other in partner.items():
                place = before - len(piece) + token - 1
                if place < 0 or other == 0 or other >= len(teacher_spans):
                    continue  # nothing predicts the first token of a row, or of a text without BOS
                total += float(plain_wasserstein(of_student[number, place], of_teacher[other - 1]))
                pairs += 1
    assert pairs > 100
    sums = LossSums.of(output.sums)
    assert sums.pairs == pairs
    assert sums.distance == pytest.approx(total, rel=1e-5)


def test_the_first_token_that_was_asked_for():
    asked = np.array([False, True, False, False, True])
    mapping = np.array([[0, 1], [0, 2], [1, 3], [2, 4], [2, 5], [-1, -1], [4, 5]], np.int32)
    assert first_asked(mapping, asked).tolist() == [-1, 1, 1, -1, 4, -1, 4]
