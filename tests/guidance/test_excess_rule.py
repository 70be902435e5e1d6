"""Weights and thresholds against loops over single tokens."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle

torch = pytest.importorskip("torch")

from drawn_batches import drawn_units, tensors_of
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance import GuidanceTensors, count_kept, known_weights, token_weights
from vocagno.guidance.excess_rule import choose_by_excess, quota, top, worse_place
from vocagno.guidance.loss import excess_loss
from vocagno.guidance.methods import method_of
from vocagno.models.losses import IGNORED

NAN = math.nan
POLICIES = ["include", "exclude", "mean"]


@st.composite
def batches(draw):
    """Few distinct values, so that there are many ties."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 12))

    def drawn(values, dtype):
        size = rows * length
        elements = draw(st.lists(values, min_size=size, max_size=size))
        return np.array(elements, dtype).reshape(rows, length)

    losses = st.sampled_from([0.0, 1.0, 2.5, NAN, NAN, math.inf])
    student, teacher = drawn(st.integers(0, 6), np.float32), drawn(losses, np.float32)
    sums = st.tuples(st.integers(0, 9), st.integers(0, 4))
    sums = draw(st.none() | st.lists(sums, min_size=rows, max_size=rows))
    if sums is not None:
        sums = np.array([(total * (count > 0), count) for total, count in sums], np.float32)
    return student, teacher, drawn(st.booleans(), bool), sums


@pytest.mark.slow
@settings(max_examples=300)
@given(
    batch=batches(),
    top_fraction=st.sampled_from([0.01, 0.1, 0.25, 0.4, 0.5, 0.7, 1.0]),
    policy=st.sampled_from(POLICIES),
    scope=st.sampled_from(["sequence", "micro_batch"]),
)
def test_weights_are_equation_4(batch, top_fraction, policy, scope):
    """With the mean of the teacher's own tokens, if their sums are given."""
    student, teacher, valid, sums = batch
    config = GuidanceConfig(top_fraction=top_fraction, unmapped=policy, scope=scope)
    labels, losses = torch.from_numpy(np.where(valid, 5, -100)), torch.from_numpy(teacher)
    of_rows = None if sums is None else torch.from_numpy(sums)
    given_here = GuidanceTensors(teacher_loss=losses, teacher_sums=of_rows)
    weights = token_weights(torch.from_numpy(student), given_here, labels, config)
    shape = (1, -1) if scope == "micro_batch" else student.shape
    means = [None] * len(student)
    if sums is not None:
        of_scopes = sums.sum(0, keepdims=True) if scope == "micro_batch" else sums
        means = [total / max(count, np.float32(1)) for total, count in of_scopes]
    scopes = zip(*(side.reshape(shape) for side in (student, teacher, valid)), means, strict=False)
    expected = [oracle.weights(*sides, top_fraction, policy, mean) for *sides, mean in scopes]
    np.testing.assert_array_equal(weights, np.array(expected).reshape(student.shape))
    assert count_kept(losses, labels, config) == weights.sum()
    assert not weights.requires_grad


def test_weights_under_each_policy_for_unmapped_tokens_by_hand():
    student = torch.tensor([[3.0, 1.0, 2.0, 5.0, 0.5, 9.0]])
    teacher = torch.tensor([[1.0, 0.9, 1.5, NAN, 0.1, 0.0]])
    labels = torch.tensor([[1, 1, 1, 1, 1, -100]])  # excess: 2, 0.1, 0.5, -, 0.4, padding
    kept = {
        policy: token_weights(
            student, teacher, labels, GuidanceConfig(unmapped=policy, top_fraction=0.4)
        ).tolist()[0]
        for policy in POLICIES
    }
    assert kept["include"] == [1, 0, 1, 1, 0, 0]  # ceil(0.4 * 4) = 2 of four, and the unmapped one
    assert kept["exclude"] == [1, 0, 1, 0, 0, 0]
    assert kept["mean"] == [1, 0, 0, 1, 0, 0]  # mean 0.875: excess 4.125; ceil(0.4 * 5) = 2
    naive = token_weights(student, teacher, labels, GuidanceConfig(method="cpt"))
    assert naive.tolist() == [[1, 1, 1, 1, 1, 0]]


def test_the_count_is_that_of_the_written_decimal():
    counts = torch.arange(0, 101)
    for fraction, denominator in ((0.1, 10), (0.2, 5), (0.7, None), (1.0, 1)):
        kept = quota(counts, fraction)
        if denominator:
            assert torch.equal(kept, (counts + denominator - 1) // denominator)
    assert quota(torch.tensor(30), 0.1) == 3  # 0.1 * 30 is a little more than 3 in binary
    assert quota(torch.tensor(10), 0.7) == 7
    assert quota(torch.tensor(1000), 1e-7) == 1
    assert quota(torch.tensor(3), 0.33333334) == 2
    assert quota(torch.tensor(3 * 10**9), 1 / 3) == 10**9
    assert quota(torch.tensor(5), 1e-12) == 1


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"top_fraction": 0.4}, [0, 1, 1, 0, 0]),
        ({"top_fraction": 0.8, "max_threshold": 2.8}, [0, 1, 1, 1, 1]),
        ({"max_threshold": 2.5}, [0, 1, 1, 1, 1]),
    ],
    ids=str,
)
def test_a_loss_of_nan_is_kept(rule, expected):
    """So that the loss of the step is NaN, too."""
    student = torch.tensor([[0.5, float("inf"), NAN, 2.7, 3.0]])
    config = GuidanceConfig(unit="token", **rule)
    weights = token_weights(student, torch.zeros(1, 5), torch.ones(1, 5), config)
    assert weights[0].tolist() == expected


@pytest.mark.parametrize("rule", [{"top_fraction": 0.4}, {"max_threshold": 0.0}], ids=str)
def test_a_row_without_tokens_has_no_weights(rule):
    nothing = torch.zeros(2, 0)
    config = GuidanceConfig(unit="token", **rule)
    assert token_weights(nothing, nothing, nothing.long(), config).shape == (2, 0)


def test_by_two_criteria_a_rank_of_nan_is_the_first():
    excess, entropy = torch.tensor([[1.0, NAN, 3.0]]), torch.tensor([[0.1, 9.0, 0.2]])
    competing = torch.ones(1, 3, dtype=torch.bool)
    kept = top(worse_place(excess, -entropy, competing), competing, 0.3)
    assert kept.tolist() == [[False, True, False]]


def test_excess_is_detached_and_nan_where_unscored():
    student = torch.ones(1, 3, requires_grad=True)
    excess = excess_loss(student, torch.tensor([[0.25, NAN, float("inf")]]))
    assert not excess.requires_grad
    assert excess[0, 0] == 0.75
    assert excess[0, 1:].isnan().all()


def test_two_criteria_keep_what_is_best_by_the_worse_place():
    """By hand: of five competitors two are kept; places by excess 0..4 from the left."""
    student = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 9.0]])
    teacher = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, NAN]])
    entropy = torch.tensor([[9.0, 1.0, 5.0, 0.0, 2.0, 0.0]])  # places 4, 1, 3, 0, 2
    labels = torch.zeros(1, 6, dtype=torch.int64)
    config = GuidanceConfig(method="rho1", criterion="excess_and_entropy", unmapped="exclude")
    weights = token_weights(
        student, GuidanceTensors(teacher_loss=teacher, entropy=entropy), labels, config
    )
    # Worse places: 4, 1, 3, 3, 4; the third and the fourth are equal, and the third is further
    # behind the teacher.
    assert weights.tolist() == [[0, 1, 1, 0, 0, 0]]
    with pytest.raises(ValueError, match="needs the teacher's entropies"):
        token_weights(student, teacher, labels, config)


def group(**options):
    """A rule on groups, all of which are kept but for what the options say."""
    return GuidanceConfig(
        **{"unit": "group", "top_fraction": None, "max_threshold": -1.0} | options
    )


RULES = [
    {},
    {"top_fraction": 0.4},
    {"top_fraction": 0.4, "max_threshold": None},
    {"max_threshold": 0.5, "unmapped": "exclude"},
    {"window_max_loss": 0.4},
    {"window_max_loss": 0.7, "top_fraction": 0.7},
    {"window_max_loss": 0.3, "max_threshold": None},
    {"unit": "token"},
    {"unit": "token", "window_max_loss": 0.3},
    {"unit": "token", "top_fraction": 0.3, "max_threshold": 0.0},
]


@pytest.mark.parametrize("options", RULES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_weights_are_those_of_a_loop_over_tokens(options, seed):
    nll, teacher, labels, units = drawn_units(seed)
    config = group(**options)
    choice = choose_by_excess(nll, labels, tensors_of(teacher, labels, units, config), config)
    for row in range(len(nll)):
        tensors = (
            nll,
            teacher,
            labels,
            *(getattr(units, f"{name}_BT") for name in ("groups", "lines", "bytes", "group_loss")),
        )
        given_row = [tensor[row].tolist() for tensor in tensors]
        weights, threshold = oracle.weights_of_units(*given_row, config)
        assert choice.weights_BT[row].tolist() == pytest.approx(weights, abs=1e-6)
        assert choice.thresholds_S[row].item() == pytest.approx(threshold, abs=1e-5)


def test_a_wider_scope_has_one_threshold():
    nll, teacher, labels, units = drawn_units(7)
    config = group(top_fraction=0.4, max_threshold=None, scope="micro_batch")
    choice = choose_by_excess(nll, labels, tensors_of(teacher, labels, units, config), config)
    as_one = choose_by_excess(
        nll.view(1, -1),
        labels.view(1, -1),
        GuidanceTensors(teacher_loss=teacher.view(1, -1), groups=units.groups_BT.view(1, -1)),
        replace(config, scope="sequence"),
    )
    assert torch.equal(choice.weights_BT.flatten(), as_one.weights_BT.flatten())
    assert torch.equal(choice.thresholds_S, as_one.thresholds_S)


def test_single_tokens_under_the_largest_threshold_are_the_paper_s_rule_and_more():
    nll, teacher, labels, _ = drawn_units(3)
    losses = GuidanceTensors(teacher_loss=teacher)
    paper = choose_by_excess(nll, labels, losses, GuidanceConfig(top_fraction=0.4))
    capped = choose_by_excess(
        nll, labels, losses, GuidanceConfig(max_threshold=-0.5, top_fraction=0.4)
    )
    free = choose_by_excess(
        nll, labels, losses, GuidanceConfig(max_threshold=1e9, top_fraction=0.4)
    )
    assert torch.equal(free.weights_BT, paper.weights_BT)
    assert torch.equal(free.thresholds_S, paper.thresholds_S)
    assert (capped.weights_BT >= paper.weights_BT).all()
    assert capped.weights_BT.sum() > paper.weights_BT.sum()
    assert (capped.thresholds_S == -0.5).all()


def test_the_threshold_of_the_paper_s_rule_is_its_smallest_kept_excess():
    nll = torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    teacher = torch.tensor([[0.0, 0.0, 0.0, NAN, 0.0], [NAN] * 5])
    losses, labels = GuidanceTensors(teacher_loss=teacher), torch.ones_like(nll).long()
    choice = choose_by_excess(nll, labels, losses, GuidanceConfig(top_fraction=0.5))
    assert choice.thresholds_S[0] == 3.0
    assert choice.thresholds_S[1].isnan()


def test_what_a_rule_needs_is_asked_for():
    nll, teacher, labels, units = drawn_units(0)
    losses = GuidanceTensors(teacher_loss=teacher)
    with pytest.raises(ValueError, match="needs the groups"):
        choose_by_excess(nll, labels, losses, group())
    for rule in (group(window_max_loss=1.0), group(window_max_loss=1.0, max_threshold=None)):
        with pytest.raises(ValueError, match="needs the weights"):
            choose_by_excess(nll, labels, replace(losses, groups=units.groups_BT), rule)
    rule = group(unit="token", window_max_loss=1.0)
    for name, words in (("groups_BT", "the groups"), ("group_loss_BT", "the losses of the groups")):
        with pytest.raises(ValueError, match=words):
            known_weights(teacher, labels, replace(units, **{name: None}), rule)


def test_options_of_a_guided_run_may_stay_where_it_becomes_naive():
    naive = group(method="cpt", window_max_loss=2.0)
    assert method_of(naive).counts_kept_exactly
    assert not naive.takes_one_pass
    nll, teacher, labels, _ = drawn_units(0)
    weights = token_weights(nll, teacher, labels, naive)
    assert torch.equal(weights, (labels != IGNORED).float())
