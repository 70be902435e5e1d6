"""`alm` and `distill`: their losses against autograd and tokenkit, and what they ask of a batch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.guidance import GuidanceTensors, selective_cross_entropy, token_weights
from vocagno.guidance import chunked_loss as chunked_loss_module
from vocagno.guidance.bucket_loss import BucketCrossEntropy, BucketTable
from vocagno.guidance.loss import LossSums, TokenMetrics
from vocagno.guidance.methods import method_of
from vocagno.models import head as head_module

ANCHOR = json.loads((Path(__file__).parent / "tokenkit_alm.json").read_text())
SHARE = 0.3


@pytest.fixture
def small_chunks(monkeypatch):
    """Five tokens at a time."""
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", 5 * 11)
    monkeypatch.setattr(head_module, "LEAST_ROWS", 1)


def anchored():
    """Logits (24, 11), labels and teacher of tokenkit's chunks."""
    labels, groups = (torch.tensor(ANCHOR[name]) for name in ("labels", "groups"))
    sizes = torch.bincount(groups[groups >= 0])
    means = torch.tensor(ANCHOR["teacher_sums"]) / sizes
    loss = torch.where(groups >= 0, means[groups.clamp_min(0)], torch.nan)
    teacher = GuidanceTensors(teacher_loss=loss[None], groups=groups[None])
    return torch.tensor(ANCHOR["logits"]), labels[None], teacher


def test_the_gradient_of_alm_is_that_of_tokenkit(small_chunks):
    logits, labels, teacher = anchored()
    guidance = GuidanceConfig(method="alm", distillation_weight=SHARE)
    hidden = logits[None].clone().requires_grad_()
    loss, metrics = selective_cross_entropy(hidden, torch.eye(11), labels, teacher, guidance)
    loss.backward()
    plain, alm_gradient = (torch.tensor(ANCHOR[name]) for name in ("cross_entropy", "gradient"))
    in_group = (teacher.groups[0] >= 0)[:, None]
    expected = torch.where(in_group, (1 - SHARE) * plain + SHARE * alm_gradient, plain)
    # Where the student is more than twice as sure as the teacher, ours is limited to -1.
    is_limited = torch.isin(teacher.groups[0], torch.tensor(ANCHOR["beyond_the_clip"]))
    expected[is_limited] = (1 - 2 * SHARE) * plain[is_limited]
    torch.testing.assert_close(hidden.grad[0], expected, atol=1e-6, rtol=1e-5)
    assert is_limited.sum() == 1
    assert (metrics.weights_BT == 1).all()  # each trains

    of_groups = (tensor[0][in_group[:, 0]] for tensor in (teacher.groups, metrics.nll_BT))
    sums, of_teacher = torch.zeros(8).index_add(0, *of_groups), torch.tensor(ANCHOR["teacher_sums"])
    value = of_teacher * (of_teacher / sums).log() + sums - of_teacher
    torch.testing.assert_close(value, torch.tensor(ANCHOR["value"]))


def test_alm_weights_say_which_model_is_surer():
    """Negative where the student is surer; 1 without a group, without a loss, and at a loss of 0
    on both sides; 0 for noise and where nothing is predicted."""
    nll = torch.tensor([[2.0, 4.0, 1.0, 5.0, 5.0, 0.0, 0.0, 3.0, 3.0]])
    loss = torch.tensor([[1.5, 1.5, 2.0, torch.nan, 2.5, 0.0, 1.0, 1.5, 1.5]])
    groups = torch.tensor([[0, 0, 1, -1, 2, 3, 4, 5, 6]])
    labels = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, -100]])
    weight = torch.tensor([[1.0, 1, 1, 1, 1, 1, 1, 0, 1]])
    guidance = GuidanceConfig(method="alm", distillation_weight=1.0, window_max_loss=2.0)
    teacher = GuidanceTensors(teacher_loss=loss, groups=groups, weight=weight)
    weights = token_weights(nll, teacher, labels, guidance)
    assert weights.tolist() == [[0.5, 0.5, -1.0, 1.0, 0.5, 1.0, -1.0, 0.0, 0.0]]


def drawn(seed, *, double=True):
    """Two teachers' buckets of 11 ids (one has none of the first ids), and probabilities of some of
    them at 24 tokens: unused places, tokens without any, and one with nothing left for others."""
    rng = np.random.default_rng(seed)
    tables = [rng.integers(-1, 4, 11), rng.integers(-1, 3, 11)]
    tables[0][:4], tables[1][-3:] = np.arange(4), np.arange(3)
    members, begins, first = [], [0], [0, 4]
    for table in tables:
        for bucket in range(table.max() + 1):
            members += np.flatnonzero(table == bucket).tolist()
            begins.append(len(members))
    table = BucketTable(torch.tensor(members), torch.tensor(begins), [3, 2], (0.7, 0.3), 11, "key")
    bucket = np.stack([[*rng.permutation(4)[:3], *(rng.permutation(3)[:2] + 4)] for _ in range(24)])
    mass = np.concatenate(
        [rng.dirichlet(np.ones(4), 24)[:, :3], rng.dirichlet(np.ones(3), 24)[:, :2]], 1
    )
    for place in (np.s_[3, :], np.s_[5, 2], np.s_[6, 3:], np.s_[20:22, :]):
        bucket[place], mass[place] = -1, 0
    mass[9, :3] = 0.5, 0.25, 0.25
    mass = torch.from_numpy(mass if double else mass.astype(np.float32))
    return tables, first, table, torch.from_numpy(bucket.astype(np.int32)), mass


def by_autograd(logits, labels, tables, first, table, bucket, mass, share, weights, entropy=None):
    """The definition, token by token. A teacher without buckets at a token does not count there;
    nor, with the entropies of teachers, one whose entropy exceeds the student's by 0.25 nats."""
    log_p, total = logits.log_softmax(1), 0.0
    for token in (labels != -100).nonzero()[:, 0].tolist():
        cross, denominator = 0.0, 0.0
        for number, columns in enumerate((slice(0, 3), slice(3, 5))):
            p = log_p[token].exp()
            rest, left, part, has_bucket = torch.ones((), dtype=p.dtype), 1.0, 0.0, False
            for place, q in zip(bucket[token, columns].tolist(), mass[token, columns], strict=True):
                if place >= 0:
                    of = p[torch.from_numpy(tables[number]) == place - first[number]].sum()
                    part, rest, left = part - q * of.log(), rest - of, left - float(q)
                    has_bucket = True
            counts = table.shares[number] * has_bucket
            if entropy is not None:
                student_entropy = -(p * log_p[token]).sum().detach()
                counts *= bool(entropy[token, number] < student_entropy + 0.25)
            denominator += counts
            cross = cross + counts * (part - left * rest.log() if left > 1e-12 else part)
        plain = -log_p[token, labels[token]]
        mixed = (1 - share) * plain + share * cross / denominator if denominator else plain
        total = total + weights[token] * mixed
    return total


@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_over_buckets_is_that_of_autograd_in_float64(seed):
    tables, first, table, bucket, mass = drawn(seed)
    torch.manual_seed(seed)
    logits = torch.randn(24, 11, dtype=torch.float64)
    labels = torch.randint(0, 11, (24,))
    labels[2] = -100
    weights = torch.rand(24, dtype=torch.float64)
    weights[[2, 7]] = 0
    objective = BucketCrossEntropy(labels, bucket, mass, table, weights, 0.4)
    gradient = logits.clone()
    parts = objective(gradient, slice(0, 24))
    leaf = logits.clone().requires_grad_()
    expected = by_autograd(leaf, labels, tables, first, table, bucket, mass, 0.4, weights)
    expected.backward()
    torch.testing.assert_close(gradient, leaf.grad, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(parts[:, 0].sum(), expected.detach(), atol=1e-10, rtol=1e-10)
    assert (parts[:, 2] >= -1e-12).all()
    assert (parts[3, 2], parts[20, 2]) == (0, 0)


def distilled(where, *, share=0.4, **overrides):
    """Hidden states with their gradient, the metrics and all that went into a loss."""
    logits, labels, teacher = anchored()
    tables, first, table, bucket, mass = drawn(0, double=False)
    guidance = GuidanceConfig(method="distill", distillation_weight=share, distill_where=where)
    # From 0 to the 2.4 nats of a uniform distribution; the students' are about 2. One is not known.
    entropy = torch.linspace(0, 3, 48).view(2, 24).T.contiguous()
    entropy[1] = torch.nan
    tensors = {"candidates": bucket[None], "candidate_mass": mass[None], "buckets": table}
    tensors |= {"candidate_entropy": entropy[None]} | overrides
    teacher = GuidanceTensors(teacher_loss=teacher.teacher_loss, **tensors)
    hidden = logits[None].clone().requires_grad_()
    loss, metrics = selective_cross_entropy(hidden, torch.eye(11), labels, teacher, guidance)
    loss.backward()
    assert (metrics.weights_BT == 1).all()
    leaf = logits.clone().requires_grad_()
    arguments = tables, first, table, bucket, mass, share, torch.ones(24)
    expected = by_autograd(leaf, labels[0], *arguments, entropy if where == "surer" else None)
    expected.backward()
    return loss.detach(), hidden.grad[0], expected.detach(), leaf.grad


@pytest.mark.parametrize("method", ["alm", "distill"])
def test_dropped_lines_say_nothing_of_who_is_ahead(method):
    """The teacher is ahead by 0.5 nats where it trains, and behind on noise, which is dropped."""
    guidance = GuidanceConfig(method=method, window_max_loss=2.0)
    weights = torch.tensor([[1.0] * 10 + [0.0] * 3])
    metrics = TokenMetrics(torch.tensor([[2.0] * 10 + [5.0] * 3]), weights)
    teacher = GuidanceTensors(
        teacher_loss=torch.tensor([[1.5] * 10 + [9.0] * 3]), labels=weights.long()
    )
    output = method_of(guidance)._output(metrics.nll_BT.sum(), metrics, teacher)
    sums = LossSums.of(output.sums)
    assert (sums.with_teacher_loss, sums.excess, sums.teacher) == (10, 5.0, 15.0)


@pytest.mark.parametrize("where", ["surer", "all"])
def test_distill_in_chunks_is_its_definition(small_chunks, where):
    loss, gradient, expected, slope = distilled(where)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, slope, atol=2e-6, rtol=1e-5)
    assert loss != distilled("all" if where == "surer" else "surer")[0]


def test_the_number_of_members_may_be_known_beforehand(small_chunks):
    *_, table, bucket, _ = drawn(0)
    before = np.append(0, table.sizes(bucket).sum(1).cumsum(0).numpy())
    loss, gradient, *_ = distilled("all", members_before=before)
    assert (loss, gradient.tolist()) == (distilled("all")[0], distilled("all")[1].tolist())


@pytest.mark.parametrize("rest", [-30.0, -10.0, 0.0])
@pytest.mark.parametrize("mass", [[0.5, 0.48], [0.99, 0.005]])
def test_the_gradient_sums_to_zero_where_the_student_rules_out_all_other_ids(rest, mass):
    """A softmax's gradient does. It is that of the loss, too: a step against it lowers the loss."""
    table = BucketTable(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 3]), [2], (1.0,), 4, "key")
    bucket, labels = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([0])

    def loss_and_gradient(logits):
        arguments = torch.tensor([mass]).to(logits), table, torch.ones(1).to(logits)
        gradient = logits.clone()
        objective = BucketCrossEntropy(labels, bucket, *arguments, share=1.0)
        return objective(gradient, slice(0, 1))[0, 0], gradient

    logits = torch.tensor([[2.0, 1.0, 0.5, rest]], dtype=torch.float64)
    loss, gradient = loss_and_gradient(logits)
    assert float(gradient.sum()) == pytest.approx(0, abs=1e-12)
    lower, _ = loss_and_gradient(logits - 1e-6 * gradient)
    assert float(loss - lower) == pytest.approx(1e-6 * float(gradient.square().sum()), rel=1e-4)
    _, of_float32 = loss_and_gradient(logits.float())
    assert float(of_float32.sum()) == pytest.approx(0, abs=1e-3)  # 0.02 with a limit on the ratio


@pytest.mark.parametrize("method", ["alm", "distill"])
def test_no_product_for_a_gradient_is_made_without_gradients(monkeypatch, method):
    """An evaluation costs what the losses cost, and gives the same numbers."""
    logits, labels, teacher = anchored()
    *_, table, bucket, mass = drawn(0, double=False)
    if method == "distill":
        tensors = {"candidates": bucket[None], "candidate_mass": mass[None], "buckets": table}
        tensors["candidate_entropy"] = torch.ones(1, 24, 2)
        teacher = GuidanceTensors(teacher_loss=teacher.teacher_loss, **tensors)
    weight, guidance = torch.eye(11, requires_grad=True), GuidanceConfig(method=method)
    arguments = logits[None], weight, labels, teacher, guidance
    expected, metrics = selective_cross_entropy(*arguments)
    monkeypatch.setattr(chunked_loss_module, "_add_product_", None)
    with torch.no_grad():
        loss, again = selective_cross_entropy(*arguments)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(again.nll_BT, metrics.nll_BT)


def test_a_bucket_that_the_student_rules_out_has_its_gradient():
    tables, first, table, bucket, mass = drawn(0, double=False)
    logits, labels = torch.zeros(24, 11), torch.full((24,), 5)
    logits[:, torch.from_numpy(tables[0] == 0)] = -40.0  # all of a bucket
    weights = torch.ones(24)
    objective = BucketCrossEntropy(labels, bucket, mass, table, weights, 0.4)
    gradient, leaf = logits.clone(), logits.double().requires_grad_()
    objective(gradient, slice(0, 24))
    arguments = tables, first, table, bucket, mass.double(), 0.4, weights.double()
    by_autograd(leaf, labels, *arguments).backward()
    torch.testing.assert_close(gradient.double(), leaf.grad, atol=1e-6, rtol=1e-5)
    assert leaf.grad[:, 0].min() < -0.1
    none = bucket < 0
    again = objective(logits.clone(), slice(0, 24))
    foreign = bucket.masked_fill(none, -2), mass.masked_fill(none, 0.6), table
    padded = BucketCrossEntropy(labels, *foreign, weights, 0.4)
    assert torch.equal(padded(logits.clone(), slice(0, 24)), again)  # its mass does not count


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"bucket_key": "another"},
            r"^candidates: the batch was made with other buckets than those of the loss",
        ),
        ({"buckets": None}, r"^guidance.method: distill needs the candidates of the tokens"),
        ({"candidate_entropy": None}, "^guidance.distill_where: surer compares the entropy"),
        ({"candidates": torch.zeros(1, 23, 5)}, r"^candidates \(1, 23, 5\): expected the shape"),
        ({"weight": torch.ones(1, 24).byte()}, "^weight: expected floats .* torch.uint8"),
        (
            {"members_before": np.zeros(6, int)},
            "members_before: counted for 5 tokens, but there are 24 labels",
        ),
        ({"chunk_ends": [3, 5]}, "chunk_ends: counted for 5 tokens, but there are 24 labels"),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        distilled("surer", **overrides)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "token"}, "guidance.unit: token: guidance.method: alm has groups"),
        ({"distillation_weight": 1.5}, "must be at most 1"),
        ({"top_fraction": 0.4}, "guidance.top_fraction: is for .*, not alm; omit it"),
        ({"aggregation": "mean"}, "guidance.aggregation: is for .*, not alm; omit it"),
        ({"max_threshold": 0.0}, "guidance.max_threshold: is for guidance.method vocagno"),
        ({"unmapped": "exclude"}, "guidance.unmapped: is for .*, not alm; omit it"),
        ({"distill_where": "all"}, "is for guidance.method distill, not alm"),
        ({"normalize": "selected"}, "guidance.normalize: selected"),
    ],
)
def test_options_of_other_methods_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        GuidanceConfig(method="alm", **options)
