"""Selective cross-entropy against all logits at once, loss and gradients."""

import re

import pytest

from drawn_batches import (
    NAN,
    VOCABULARY,
    batch,
    check_close,
    dense_losses,
    drawn_units,
    heads,
    states,
    tensors_of,
    torch,
    with_gradients,
)
from tiny_models import scaled_models, tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.guidance import GuidanceTensors, token_weights
from vocagno.guidance import chunked_loss as chunked_loss_module
from vocagno.guidance.chunked_loss import CrossEntropy, chunked_loss, kept_rows
from vocagno.guidance.loss import LossSums, head_loss
from vocagno.guidance.selective import count_kept, selective_cross_entropy
from vocagno.models import head as head_module
from vocagno.models.head import LanguageHead
from vocagno.models.loading import compile_layers
from vocagno.training.step import GuidedStudent

pytestmark = pytest.mark.usefixtures("small_chunks")
PAPER = GuidanceConfig(top_fraction=0.4)
POLICIES = [
    {"unmapped": unmapped, "scope": scope, "top_fraction": fraction}
    for unmapped in ("include", "exclude", "mean")
    for scope in ("sequence", "micro_batch")
    for fraction in (0.4, 1.0)
]


@pytest.mark.parametrize("options", [{"top_fraction": 0.8}, {"method": "cpt"}], ids=str)
def test_a_count_of_other_guidance_is_refused(options):
    labels, teacher = batch()
    num_kept = count_kept(teacher, labels, PAPER)
    hidden, head, _ = with_gradients(states(), next(iter(heads().values())))
    with pytest.raises(ValueError, match=rf"^num_kept: \d+ tokens are kept, and .* is {num_kept}:"):
        selective_cross_entropy(
            hidden, head, labels, teacher, GuidanceConfig(**options), num_kept=num_kept
        )


def compared(head, labels, teacher, guidance, **options):
    """The weights of a loss that is, with its gradients, that of all logits at once."""
    hidden, dense_head, expected = with_gradients(states(labels.shape), head)
    nll = dense_losses(hidden, dense_head, labels)
    weights = token_weights(nll.float(), teacher, labels, guidance)
    expected_loss = (nll * weights).sum()
    (expected_loss * 0.37).backward()
    hidden, our_head, our_leaves = with_gradients(states(labels.shape), head)
    loss, metrics = selective_cross_entropy(hidden, our_head, labels, teacher, guidance, **options)
    (loss * 0.37).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected_loss.detach(), rtol=1e-5, atol=0)
    assert torch.equal(metrics.weights_BT, weights)
    torch.testing.assert_close(metrics.nll_BT.double(), nll.detach(), rtol=1e-4, atol=1e-5)
    check_close(our_leaves, expected)
    return weights


@pytest.mark.parametrize("options", [*POLICIES, {"method": "cpt"}], ids=str)
@pytest.mark.parametrize("kind", heads())
def test_loss_and_gradients_are_those_of_all_logits(options, kind):
    guidance, (labels, teacher) = GuidanceConfig(**options), batch()
    for num_kept in (None, count_kept(teacher, labels, guidance)):
        compared(heads()[kind], labels, teacher, guidance, num_kept=num_kept)


@pytest.mark.parametrize("options", [*POLICIES, {"method": "cpt"}], ids=str)
def test_given_logits_are_left_as_they_are(options):
    """In one pass, and in two, of which the first computes losses in place."""
    guidance, (labels, teacher) = GuidanceConfig(**options), batch()
    head = heads()["weights"]
    outputs = []
    for given_head in (head, None):
        hidden = states(labels.shape).requires_grad_()
        logits = hidden if given_head else head.logits(hidden.flatten(0, 1)).view(*labels.shape, -1)
        before = logits.detach().clone()
        loss, metrics = selective_cross_entropy(logits, given_head, labels, teacher, guidance)
        loss.backward()
        assert torch.equal(logits, before)
        outputs.append((loss.detach(), metrics.nll_BT, metrics.weights_BT, hidden.grad))
    for tensor, expected in zip(*outputs, strict=True):
        torch.testing.assert_close(tensor, expected)


@pytest.mark.parametrize("rule", [POLICIES[1], {"method": "cpt"}, {}], ids=str)
def test_given_logits_are_not_rounded_under_autocast(rule):
    guidance, (labels, teacher) = GuidanceConfig(**rule), batch()
    inputs = GuidanceTensors(teacher_loss=teacher, weight=None if rule else labels.ne(-100).float())
    logits = torch.randn(*labels.shape, VOCABULARY, requires_grad=True)
    exact, _ = selective_cross_entropy(logits, None, labels, inputs, guidance)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = selective_cross_entropy(logits, None, labels, inputs, guidance)
    assert torch.equal(loss, exact)


def test_weights_between_0_and_1_count_where_losses_rank():
    rule = GuidanceConfig(unit="token", top_fraction=1.0, window_max_loss=2.0)
    labels, _ = batch()
    weight = torch.linspace(0, 1, labels.numel()).view(labels.shape)
    teacher = GuidanceTensors(teacher_loss=torch.zeros(labels.shape), weight=weight)
    compared(heads()["weights"], labels, teacher, rule)


def test_what_no_rule_reads_is_refused():
    labels, losses = batch()
    logits = torch.randn(*labels.shape, VOCABULARY)
    ones, none = torch.ones(labels.shape), torch.full((*labels.shape, 2), -1)
    for columns, rule, words in (
        (
            {"weight": ones},
            {"top_fraction": 0.4},
            "^weight: only `guidance.window_max_loss` reads it",
        ),
        ({"candidates": none}, {}, "^candidates: only `guidance.method: distill` reads it"),
        ({"weight": ones * 255}, {}, "^weight: expected floats from 0 to 1, .* 255; divide"),
        ({"weight": ones * torch.nan}, {}, "^weight: expected floats from 0 to 1"),
    ):
        teacher = GuidanceTensors(teacher_loss=losses, **columns)
        with pytest.raises(ValueError, match=words):
            selective_cross_entropy(logits, None, labels, teacher, GuidanceConfig(**rule))
    teacher = GuidanceTensors(teacher_loss=losses, weight=ones)
    selective_cross_entropy(logits, None, labels, teacher, GuidanceConfig(method="cpt"))
    student = GuidedStudent(tiny_llama(VOCABULARY), PAPER)
    with pytest.raises(ValueError, match=r"^weight: only `guidance.window_max_loss` reads it"):
        student(input_ids=labels.clamp_min(0), labels=labels, teacher_loss=losses, weight=ones)


GROUPS = {"unit": "group", "top_fraction": None, "max_threshold": -1.0}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_threshold": 1.0},
        {"unit": "token"},
        {"unmapped": "mean"},
        {"unmapped": "mean", "scope": "micro_batch"},
        {"window_max_loss": 0.9, "max_threshold": None},
        {"window_max_loss": 1.0, "unmapped": "mean"},
        {"unit": "token", "window_max_loss": 1.0},
        {"top_fraction": 0.4},  # depends on other tokens: two passes
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [7, 1000])
def test_one_pass_gives_loss_weights_and_gradients_of_all_logits(monkeypatch, options, rows):
    """In chunks of 7 tokens, which end at groups and some of which span two rows, and in one."""
    monkeypatch.setattr(head_module, "chunk_rows", lambda *_: rows)
    _, losses, mask, units = drawn_units(11)
    labels = torch.arange(mask.numel()).view(mask.shape) % VOCABULARY
    labels = labels.where(mask >= 0, -100)
    guidance = GuidanceConfig(**GROUPS | options)
    teacher = tensors_of(losses + 2.5, labels, units, guidance)
    weights = compared(heads()["weights"], labels, teacher, guidance)
    assert 0 < weights.sum() < (labels >= 0).sum()


@pytest.mark.filterwarnings("error")
def test_a_group_that_is_longer_than_a_chunk_takes_memory_of_its_own(monkeypatch):
    """torch warns where a result does not fit into what was given for it."""
    monkeypatch.setattr(head_module, "chunk_rows", lambda *_: 4)
    labels, _ = batch()
    groups = (torch.arange(labels.shape[1]) >= 10).long().repeat(3, 1)
    groups += 2 * torch.arange(3)[:, None]
    teacher = GuidanceTensors(teacher_loss=torch.zeros(labels.shape) - 99, groups=groups)
    hidden, head, _ = with_gradients(states(), heads()["weights"])
    loss, _ = selective_cross_entropy(hidden, head, labels, teacher, GuidanceConfig(**GROUPS))
    expected = dense_losses(hidden, head, labels).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_mean_is_over_all_or_over_the_kept():
    labels, teacher = batch()
    arguments = states(), heads()["weights"].weight_VH, labels, teacher
    total, metrics = selective_cross_entropy(*arguments, PAPER)
    for how, count in (("tokens", (labels >= 0).sum()), ("selected", metrics.weights_BT.sum())):
        rule = GuidanceConfig(normalize=how, top_fraction=0.4)
        mean, _ = selective_cross_entropy(*arguments, rule, reduction="mean")
        assert mean == pytest.approx(float(total / count))


def test_without_gradients_nothing_but_losses_is_computed(monkeypatch):
    labels, teacher = batch()
    arguments = states(), heads()["all"], labels, teacher
    _, expected = selective_cross_entropy(*arguments, PAPER)
    monkeypatch.setattr(chunked_loss_module._ChunkedLoss, "forward", None)
    for rule in (PAPER, GuidanceConfig(method="cpt")):
        with torch.no_grad():
            loss, metrics = selective_cross_entropy(*arguments, rule)
        assert torch.equal(metrics.nll_BT, expected.nll_BT)
    assert loss == pytest.approx(float(metrics.nll_BT.sum()))


def test_no_more_logits_exist_than_a_chunk(monkeypatch):
    """Every matrix as wide as the vocabulary, by its number of rows."""
    seen = []
    original = LanguageHead.logits

    def watched(self, hidden, room):
        seen.append(len(hidden))
        return original(self, hidden, room)

    monkeypatch.setattr(LanguageHead, "logits", watched)
    labels, teacher = batch()
    hidden, head, _ = with_gradients(states(), heads()["weights"])
    _, metrics = selective_cross_entropy(hidden, head, labels, teacher, PAPER)
    assert max(seen) == 7
    assert sum(seen) == labels.numel() + int(metrics.weights_BT.sum())


@pytest.mark.parametrize("rule", [{"top_fraction": 0.4}, {"max_threshold": 0.0}], ids=str)
def test_nothing_chosen_gives_gradients_of_zero(rule):
    labels, teacher = batch()
    nothing = GuidanceConfig(unmapped="exclude", **rule)
    hidden, head, leaves = with_gradients(states(), heads()["all"])
    loss, _ = selective_cross_entropy(hidden, head, labels, teacher * NAN, nothing)
    loss.backward()
    assert loss == 0
    assert all((leaf.grad == 0).all() for leaf in leaves)


def test_an_infinite_logit_of_a_dropped_token_spoils_nothing():
    labels, teacher = batch()
    teacher[0, 1] = NAN
    hidden, head, leaves = with_gradients(states(), heads()["weights"])
    with torch.no_grad():
        hidden[0, 1] = float("inf")
    guidance = GuidanceConfig(top_fraction=0.4, unmapped="exclude")
    loss, metrics = selective_cross_entropy(hidden, head, labels, teacher, guidance)
    loss.backward()
    assert metrics.weights_BT[0, 1] == 0
    assert loss.isfinite()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize(
    "rule",
    [
        {"top_fraction": 0.4},
        {"max_threshold": 0.0},
        {"top_fraction": 0.4, "max_threshold": 0.0},
        {"method": "rho1", "top_fraction": 0.4},
    ],
    ids=str,
)
def test_a_student_that_is_not_a_number_has_no_loss_of_zero(rule):
    labels, teacher = batch()
    labels[0, 1], teacher[0, 1] = 3, 0.1
    hidden, head, _ = with_gradients(states(), heads()["weights"])
    with torch.no_grad():
        hidden[0, 1] = NAN
    guidance = GuidanceConfig(**{"unit": "token"} | rule)
    loss, _ = selective_cross_entropy(hidden, head, labels, teacher, guidance)
    assert loss.isnan()


def test_arguments_of_other_kinds_are_named():
    labels, teacher = batch()
    weight = heads()["weights"].weight_VH
    with pytest.raises(ValueError, match="reduction: expected 'sum' or 'mean', got 'none'"):
        selective_cross_entropy(states(), weight, labels, teacher, PAPER, reduction="none")
    with pytest.raises(TypeError, match=r"head: expected a tensor \(V, H\).*got Linear"):
        selective_cross_entropy(states(), torch.nn.Linear(8, 50), labels, teacher, PAPER)
    labels[0, 0] = -1
    with pytest.raises(ValueError, match="labels: -1 is not a token id; use -100"):
        selective_cross_entropy(states(), weight, labels, teacher, PAPER)


def test_a_second_backward_pass_is_refused():
    labels = batch()[0].flatten()
    hidden, head, _ = with_gradients(states(), heads()["weights"])
    loss, _ = head_loss(hidden.flatten(0, 1), head, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        loss.backward()


def test_a_head_that_is_no_product_is_said():
    model = tiny_llama(50)
    model.config.final_logit_softcapping = 0.01  # the model itself caps nothing
    with pytest.warns(UserWarning, match="LlamaForCausalLM: its logits are not a product"):
        GuidedStudent(model, PAPER)


@pytest.mark.parametrize(
    ("labels", "teacher", "weight", "words"),
    [
        ((3, 16), (3, 17), (50, 8), "labels (3, 16) and teacher losses (3, 17)"),
        ((3, 17), (3, 16), (50, 8), "teacher losses (3, 16)"),
        ((3, 17), (3, 17), (8, 50), "head weights (8, 50): expected (V, H) with H = 8"),
    ],
)
def test_shapes_that_do_not_fit_are_named(labels, teacher, weight, words):
    weight, labels, teacher = map(torch.zeros, (weight, labels, teacher))
    with pytest.raises(ValueError, match=re.escape(words)):
        selective_cross_entropy(states(), weight, labels.long(), teacher, PAPER)


def model_gradients(model, labels, teacher, *, dense=False, autocast=False):
    """The gradients of all parameters of a model, through our loss or from its own logits."""
    model.zero_grad()
    model.train()
    ids = labels.clamp_min(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        if dense:
            logits = model(input_ids=ids, use_cache=False).logits.float()
            nll = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction="none"
            ).view(labels.shape)
            loss = (nll * token_weights(nll, teacher, labels, PAPER)).sum()
        else:
            loss = GuidedStudent(model, PAPER)(ids, labels, teacher)[0]
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def check_same_gradients(gradients, expected, tolerance=1e-5):
    for name, gradient in expected.items():
        difference = (gradients[name] - gradient).norm() / gradient.norm()
        assert difference <= tolerance, name


def test_whole_models_get_the_gradients_of_their_own_logits():
    """Plain, of tied embeddings, of capped and scaled logits."""
    labels, teacher = batch()
    tied = tiny_llama(50, tie_word_embeddings=True)
    for model in (tiny_llama(50), tied, *scaled_models()):
        expected = model_gradients(model, labels, teacher, dense=True)
        check_same_gradients(model_gradients(model, labels, teacher), expected)


def test_under_autocast_the_losses_are_finer_than_the_models_own():
    """Operands in bfloat16 as in the model itself, logits in float32."""
    labels, teacher = batch()
    model = tiny_llama(50)
    exact = model_gradients(model, labels, teacher, dense=True)
    our_gradients = model_gradients(model, labels, teacher, autocast=True)
    dense = model_gradients(model, labels, teacher, dense=True, autocast=True)
    check_same_gradients(our_gradients, exact, 0.1)
    head = "lm_head.weight"
    errors = [
        (gradients[head] - exact[head]).norm() / exact[head].norm()
        for gradients in (our_gradients, dense)
    ]
    assert errors[0] < 1.1 * errors[1]
    assert our_gradients[head].dtype == torch.float32


@pytest.mark.slow
def test_compiled_layers_give_the_same_gradients(monkeypatch):
    labels, teacher = batch()
    expected = model_gradients(tiny_llama(50), labels, teacher)
    model = tiny_llama(50)
    compiled = []
    original = torch.nn.Module.compile

    def counted(self, *arguments, **options):
        compiled.append(type(self).__name__)
        original(self, *arguments, backend="aot_eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", counted)
    compile_layers(model)
    assert compiled == ["LlamaDecoderLayer"] * 2
    check_same_gradients(model_gradients(model, labels, teacher), expected)
    model._no_split_modules = []
    with pytest.raises(ConfigError, match=r"train\.compile: LlamaForCausalLM declares no layers"):
        compile_layers(model)


def test_the_sums_of_a_forward_pass():
    labels, teacher = batch()
    student = GuidedStudent(tiny_llama(50), PAPER)
    loss, sums, nll, weights = student(labels.clamp_min(0), labels, teacher)
    loss_sums = LossSums.of(sums)
    assert loss_sums.kept_nll == pytest.approx(loss.item())
    assert loss_sums.kept == count_kept(teacher, labels, PAPER)
    assert loss_sums.nll == pytest.approx(float(nll.sum()))
    assert loss_sums.kept == int(weights.sum())
    scored = teacher.isfinite() & (labels >= 0)
    assert loss_sums.teacher == pytest.approx(float(teacher[scored].sum()), rel=1e-5)


def test_weights_that_are_not_of_these_labels_are_refused():
    hidden, head = torch.randn(2, 6, 8), torch.randn(20, 8)
    labels = torch.randint(20, (2, 6))
    losses, rule = torch.zeros(2, 6), GuidanceConfig()
    for shape in ((4, 6), (3, 6), (2, 5)):
        tensors = GuidanceTensors(teacher_loss=losses, weight=torch.ones(shape))
        with pytest.raises(
            ValueError, match=r"weight .*expected the shape of the labels, \(2, 6\)"
        ):
            selective_cross_entropy(hidden, head, labels, tensors, rule)
    labels[0] = -100  # masked after the weights were made
    tensors = GuidanceTensors(teacher_loss=losses, weight=torch.ones(2, 6))
    loss, metrics = selective_cross_entropy(hidden.requires_grad_(), head, labels, tensors, rule)
    assert metrics.weights_BT.tolist() == [[0] * 6, [1] * 6]
    halves = GuidanceTensors(teacher_loss=losses, weight=torch.full((2, 6), 0.5))
    half, _ = selective_cross_entropy(hidden, head, labels, halves, rule)
    assert half.item() == pytest.approx(loss.item() / 2)
    with torch.no_grad():
        half_no_grad, _ = selective_cross_entropy(hidden, head, labels, halves, rule)
    assert half_no_grad.item() == pytest.approx(half.item())


@pytest.mark.parametrize("trained", ["weight bias", "weight", "bias", ""])
def test_what_is_frozen_of_a_head_has_no_gradient_to_keep(monkeypatch, trained):
    """As under LoRA: it would be as large as the head, in float32."""
    monkeypatch.setattr(head_module, "chunk_rows", lambda *_: 4)
    shapes = {"states": (10, 8), "weight": (20, 8), "bias": (20,)}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    losses, gradients = [], []
    for names in ("weight bias", trained):
        leaves = {
            name: values.clone().requires_grad_(name == "states" or name in names.split())
            for name, values in tensors.items()
        }
        objective = CrossEntropy(torch.arange(10))
        of_head = LanguageHead(leaves["weight"], leaves["bias"], 2.0, 3.0)
        total, _ = chunked_loss(leaves["states"], of_head, objective)
        kept = [tensor for tensor in total.grad_fn.saved_tensors if tensor is not None]
        assert len(kept) == 1 + len(names.split())
        total.backward()
        losses.append(total)
        gradients.append({name: leaf.grad for name, leaf in leaves.items()})
    assert losses[0] == losses[1]
    for name, expected in gradients[0].items():
        gradient = gradients[1][name]
        assert (gradient is None) == (name not in ("states", *trained.split()))
        assert gradient is None or torch.equal(gradient, expected)


@pytest.mark.parametrize("kept", [0, 1, 31, 32, 33, 300, 341])
def test_kept_rows_are_a_multiple_of_32_whose_others_have_no_weight(kept):
    """A product of each number of rows left code in memory: 1.4 GB after 48 steps."""
    weights = torch.zeros(341)
    weights[torch.randperm(341, generator=torch.Generator().manual_seed(kept))[:kept]] = 0.5
    rows = kept_rows(weights)
    if kept > 330:
        assert rows is None
        return
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert int((weights[rows] > 0).sum()) == kept
    matrix = torch.where(weights[:, None] > 0, torch.arange(341.0)[:, None] + 1, NAN)
    moved = chunked_loss_module._moved_up_(matrix, rows)
    assert len(moved) % 32 == 0
    assert kept <= len(moved) < kept + 32
    assert moved[:kept, 0].tolist() == [row + 1 for row in rows.tolist()]
    assert not moved[kept:].any()


def test_a_state_of_a_dropped_token_that_is_not_finite_spoils_no_gradient():
    """Where rows of dropped tokens filled the products, 0 times infinity was NaN."""
    weights = torch.zeros(100)
    weights[10:50] = 1.0
    hidden = torch.randn(100, 16)
    hidden[0] = float("inf")
    leaves = [hidden.requires_grad_(), torch.randn(300, 16).requires_grad_()]
    objective = CrossEntropy(torch.arange(100), weights)
    total, _ = chunked_loss(leaves[0], LanguageHead(leaves[1]), objective)
    total.backward()
    assert total.isfinite()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
