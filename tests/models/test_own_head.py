"""Heads that are no product: the model's own code, a chunk at a time, and what is refused."""

import pytest

torch = pytest.importorskip("torch")

from architectures import build
from drawn_batches import batch
from tiny_models import scaled_models, tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.methods import method_of
from vocagno.guidance.selective import selective_cross_entropy
from vocagno.models.head import (
    UnsupportedModelError,
    head_of,
    hidden_states,
    language_head,
    own_head_of,
)
from vocagno.models.losses import IGNORED, TeacherStates, chunked_entropy, chunked_nll
from vocagno.models.own_head import OwnHead, agree, probe_ids, sees_later_tokens
from vocagno.teacher.scorer import TransformersScorer
from vocagno.teacher.windows import Window
from vocagno.training.step import GuidedStudent

VOCABULARY = 50
OWN = "its own code computes them"
PAPER = GuidanceConfig(top_fraction=0.4)
pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def bert():
    """A decoder whose head is dense, gelu, norm and then a product with the tied embeddings."""
    return build("bert", is_decoder=True, vocab_size=VOCABULARY)


def product_models():
    """Heads that are a product, computed by both ways: plain, tied, capped, scaled."""
    plain = [tiny_llama(VOCABULARY), tiny_llama(VOCABULARY, seed=1, tie_word_embeddings=True)]
    return [*plain, *(model.eval() for model in scaled_models())]


def both_heads(model):
    return head_of(model), own_head_of(model, VOCABULARY, 32)


def states_of(model, labels):
    return hidden_states(model, labels.clamp_min(0)).detach().requires_grad_()


def gradients(model, states):
    grads = {"states": states.grad.clone()}
    grads |= {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    states.grad = None
    return grads


def trained(model, states, head, labels, teacher, *, autocast=False):
    """Half of the loss is differentiated; the loss, the metrics and the gradients."""
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss, metrics = selective_cross_entropy(states, head, labels, teacher, PAPER)
    (loss * 0.5).backward()
    return loss, metrics, gradients(model, states)


def check_same(grads, expected):
    assert grads.keys() == expected.keys()
    largest = max(gradient.norm() for gradient in expected.values())
    for name, gradient in expected.items():
        assert (grads[name] - gradient).norm() <= 1e-6 * largest + 1e-5 * gradient.norm(), name


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_both_ways_give_the_same_of_a_product(number):
    model = product_models()[number]
    labels, teacher = batch()
    states = states_of(model, labels)
    results = [trained(model, states, head, labels, teacher) for head in both_heads(model)]
    (our_loss, our_metrics, our_gradients), (their_loss, metrics, their_gradients) = results
    torch.testing.assert_close(our_loss, their_loss)
    torch.testing.assert_close(our_metrics.nll_BT, metrics.nll_BT)
    torch.testing.assert_close(our_metrics.weights_BT, metrics.weights_BT)
    check_same(our_gradients, their_gradients)
    flat = states.detach().flatten(0, 1)
    entropies = (chunked_entropy(flat, head) for head in both_heads(model))
    torch.testing.assert_close(*entropies)


@pytest.mark.parametrize("method", ["kld", "uld"])
def test_both_ways_distil_the_same(method):
    model, teacher_model = product_models()[1], tiny_llama(VOCABULARY + 9, seed=3)
    labels, _ = batch()
    states, results = states_of(model, labels), []
    guidance = GuidanceConfig(method=method)
    with torch.no_grad():
        of_teacher = hidden_states(teacher_model, labels.clamp_min(0)).flatten(0, 1)
    partner = torch.arange(labels.numel()).view(labels.shape)
    partner[:, ::4] = -1
    teachers = head_of(teacher_model), own_head_of(teacher_model, VOCABULARY + 9, 32)
    for head, teacher in zip(both_heads(model), teachers, strict=True):
        teacher_states = TeacherStates(of_teacher, teacher, partner, VOCABULARY)
        loss, metrics = method_of(guidance).distill(states, head, labels, teacher_states)
        loss.backward()
        results.append((loss, metrics, gradients(model, states)))
    (our_loss, our_metrics, our_gradients), (their_loss, metrics, their_gradients) = results
    torch.testing.assert_close(our_loss, their_loss)
    torch.testing.assert_close(our_metrics.distance_BT, metrics.distance_BT)
    assert metrics.distance_BT.sum() > 0.1
    check_same(our_gradients, their_gradients)


def test_a_student_with_its_own_head_trains_on_its_own_logits(bert):
    labels, teacher = batch()
    with pytest.warns(UserWarning, match=OWN):
        student = GuidedStudent(bert, PAPER).eval()
    output = student(labels.clamp_min(0), labels, teacher)
    output.loss.backward()
    our_gradients = {name: p.grad.clone() for name, p in bert.named_parameters()}
    assert any(name.endswith("transform.dense.weight") for name in our_gradients)
    bert.zero_grad()
    logits = bert(labels.clamp_min(0), use_cache=False).logits.flatten(0, 1)
    nll = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="none")
    (nll * output.weights_BT.flatten()).sum().backward()
    check_same(our_gradients, {name: p.grad for name, p in bert.named_parameters()})
    with torch.no_grad():
        torch.testing.assert_close(student(labels.clamp_min(0), labels, teacher).loss, output.loss)


def test_autocast_rounds_the_states_alone(bert):
    """All of the head is float32; the rounding of the states is the only difference."""
    labels, teacher = batch()
    with pytest.warns(UserWarning, match=OWN):
        head = language_head(bert)
    states = states_of(bert, labels)
    rounded = states.detach().bfloat16().float().requires_grad_()
    loss, our_metrics, our_gradients = trained(bert, states, head, labels, teacher, autocast=True)
    rounded_loss, metrics, their_gradients = trained(bert, rounded, head, labels, teacher)
    assert loss.dtype == torch.float32
    assert torch.equal(our_metrics.nll_BT, metrics.nll_BT)
    assert torch.equal(loss, rounded_loss)
    check_same(our_gradients, their_gradients)


def test_nothing_chosen_gives_gradients_of_zero(bert):
    labels, teacher = batch()
    head, states = own_head_of(bert, VOCABULARY, 32), states_of(bert, labels)
    loss, _, grads = trained(bert, states, head, labels * 0 + IGNORED, teacher)
    assert loss == 0
    assert all(not gradient.any() for gradient in grads.values())
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_frozen_parts_of_a_head_get_no_gradient(bert):
    bert.cls.predictions.transform.requires_grad_(False)
    labels, teacher = batch()
    head, states = own_head_of(bert, VOCABULARY, 32), states_of(bert, labels)
    selective_cross_entropy(states, head, labels, teacher, PAPER)[0].backward()
    assert bert.cls.predictions.transform.dense.weight.grad is None
    assert bert.cls.predictions.decoder.weight.grad.any()


def test_a_head_of_low_precision_gets_gradients(bert):
    """Its weights are converted for the chunks, and the copies lead nowhere."""
    labels, teacher = batch()
    head, states = own_head_of(bert.bfloat16(), VOCABULARY, 32), states_of(bert, labels)
    loss, _ = selective_cross_entropy(states, head, labels, teacher, GuidanceConfig(method="cpt"))
    loss.backward()
    assert all(weight.grad.dtype == torch.bfloat16 for weight in head.weights.values())
    assert all(weight.grad.any() for weight in head.weights.values())


def test_the_model_is_left_as_it_is(bert):
    before = {name: id(module) for name, module in bert.named_modules()}
    head = own_head_of(bert, VOCABULARY, 32)
    with torch.no_grad():
        head.logits(torch.randn(3, 32))
    assert {name: id(module) for name, module in bert.named_modules()} == before
    weights = list(bert.cls.parameters())  # its product has the embeddings of the base model
    assert {id(weight) for weight in head.weights.values()} == {id(weight) for weight in weights}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_teacher_with_its_own_head_scores_by_its_own_logits(bert, dtype):
    model = bert.to(dtype)
    with pytest.warns(UserWarning, match=OWN):
        scorer = TransformersScorer(model, batch_tokens=64, width=32)
    assert isinstance(scorer.head, OwnHead)
    ids = probe_ids(VOCABULARY, None, torch.device("cpu"))[0].numpy()
    ((_, nll),) = scorer.score([Window(ids, 1)])
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)[None], use_cache=False).logits[0, :-1]
    labels = torch.from_numpy(ids[1:])
    expected = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(torch.from_numpy(nll).double(), expected, rtol=0, atol=tolerance)


def test_a_model_that_sees_later_tokens_is_refused():
    words = "BertLMHeadModel: its logits depend on later tokens.*set is_decoder: true in its config"
    with pytest.raises(UnsupportedModelError, match=words):
        language_head(build("bert"))
    with pytest.raises(UnsupportedModelError, match=r"CpmAnt.*later tokens.*use a causal model"):
        language_head(build("cpmant"))
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(2, 32, VOCABULARY)
        logits[1, :16] = logits[0, :16]
        assert not sees_later_tokens(logits.to(dtype), dtype)
        logits[1, 15] *= 1.1
        assert sees_later_tokens(logits.to(dtype), dtype)


def test_logits_that_are_almost_right_do_not_agree():
    logits = torch.randn(64, VOCABULARY) * 0.01  # those of new weights are small
    assert agree(logits + 1e-6, logits, torch.float32)
    assert not agree(logits * 1.05, logits, torch.float32)
    assert not agree(logits[:, :-1], logits, torch.float32)
    assert agree(logits.bfloat16().float(), logits, torch.bfloat16)
    assert not agree(logits * 1.5, logits, torch.bfloat16)
    assert not agree(logits + 1000, logits + 1010, torch.float32)
    masked = logits.clone()
    masked[:, 3] = -torch.inf  # an id that is never predicted
    assert agree(masked, masked, torch.float32)
    assert not agree(logits, masked, torch.float32)
    broken = logits.clone()
    broken[5, 7] = torch.nan
    assert not agree(broken, broken, torch.float32)


def test_weights_that_are_not_finite_are_refused():
    model = tiny_llama(VOCABULARY)
    with torch.no_grad():
        model.lm_head.weight[3, 4] = torch.nan
    words = r"logits are NaN; so are weights: lm_head\.weight$"
    with pytest.raises(UnsupportedModelError, match=words):
        language_head(model)


def test_a_failure_while_it_is_tried_leaves_the_mode_as_it_was():
    model = tiny_llama(VOCABULARY).train()
    model.model.forward = lambda **_: (_ for _ in ()).throw(ValueError("no ids"))
    with pytest.raises(UnsupportedModelError, match=r"cannot read only ids \(no ids\)"):
        language_head(model)
    assert model.training


def test_the_losses_of_an_own_head_need_no_gradient(bert):
    head = own_head_of(bert, VOCABULARY, 32)
    nll = chunked_nll(torch.randn(9, 32), head, torch.arange(9))
    assert not nll.requires_grad


def test_a_model_of_few_positions_is_tried_on_as_many():
    model = build("gpt2", n_positions=9)
    assert language_head(model).vocabulary_size == 96


def test_a_factor_that_the_head_learns_has_a_gradient():
    """It is 1 at first, so a product with the weights gives the same logits."""

    class Scaled(torch.nn.Linear):
        def forward(self, states):
            return super().forward(states) * self.factor

    model = tiny_llama(VOCABULARY)
    model.lm_head.__class__ = Scaled
    model.lm_head.factor = torch.nn.Parameter(torch.ones(VOCABULARY))
    with pytest.warns(UserWarning, match=OWN):
        student = GuidedStudent(model, GuidanceConfig(top_fraction=0.5))
    labels, teacher = batch(VOCABULARY)
    student(labels.clamp_min(0), labels, teacher).loss.backward()
    assert model.lm_head.factor.grad.norm() > 0
