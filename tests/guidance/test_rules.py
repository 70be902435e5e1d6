"""Weights against Eq. 4 as an oracle, token by token."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle

torch = pytest.importorskip("torch")

from vocagno.alignment.segments import row_sums
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.guidance import GuidanceTensors, token_weights
from vocagno.guidance.rules import excess_loss, kept_count, top, worse_place
from vocagno.guidance.selective import count_kept
from vocagno.models.losses import causal_shift, teacher_guided_loss

NAN = float("nan")
POLICIES = ["include", "exclude", "mean"]


@st.composite
def batches(draw):
    """Few distinct values, so that there are many ties."""
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    student = draw(st.lists(st.integers(0, 6), min_size=rows * length, max_size=rows * length))
    teacher = draw(
        st.lists(
            st.sampled_from([0.0, 1.0, 2.5, NAN, NAN, float("inf")]),
            min_size=rows * length,
            max_size=rows * length,
        )
    )
    valid = draw(st.lists(st.booleans(), min_size=rows * length, max_size=rows * length))
    shape = (rows, length)
    return (
        np.array(student, np.float32).reshape(shape),
        np.array(teacher, np.float32).reshape(shape),
        np.array(valid).reshape(shape),
    )


@pytest.mark.slow
@settings(max_examples=200)
@given(
    batch=batches(),
    top_fraction=st.sampled_from([0.01, 0.1, 0.25, 0.4, 0.5, 0.7, 1.0]),
    policy=st.sampled_from(POLICIES),
    scope=st.sampled_from(["sequence", "micro_batch"]),
)
def test_weights_are_equation_4(batch, top_fraction, policy, scope):
    student, teacher, valid = batch
    config = GuidanceConfig(top_fraction=top_fraction, unmapped=policy, scope=scope)
    labels = torch.from_numpy(np.where(valid, 5, -100))
    weights = token_weights(torch.from_numpy(student), torch.from_numpy(teacher), labels, config)
    shape = (1, -1) if scope == "micro_batch" else student.shape
    expected = [
        oracle.weights(*row, top_fraction, policy)
        for row in zip(
            student.reshape(shape), teacher.reshape(shape), valid.reshape(shape), strict=True
        )
    ]
    np.testing.assert_array_equal(weights, np.array(expected).reshape(student.shape))
    assert count_kept(torch.from_numpy(teacher), labels, config) == weights.sum()
    assert not weights.requires_grad


@settings(max_examples=100)
@given(
    batch=batches(),
    scope=st.sampled_from(["sequence", "micro_batch"]),
    sums=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=4, max_size=4),
)
def test_the_mean_is_that_of_the_teacher_s_own_tokens(batch, scope, sums):
    student, teacher, valid = batch
    sums = np.array([(total * (count > 0), count) for total, count in sums[: len(student)]])
    config = GuidanceConfig(unmapped="mean", scope=scope, top_fraction=0.4)
    labels = torch.from_numpy(np.where(valid, 5, -100))
    losses, of_rows = torch.from_numpy(teacher), torch.from_numpy(sums).float()
    tensors = GuidanceTensors(teacher_loss=losses, teacher_sums=of_rows)
    weights = token_weights(torch.from_numpy(student), tensors, labels, config)
    shape = student.shape if scope == "sequence" else (1, -1)
    of_scopes = sums if scope == "sequence" else sums.sum(0, keepdims=True)
    expected = [
        oracle.weights(*row, 0.4, "mean", np.float32(total) / np.float32(max(count, 1)))
        for row, (total, count) in zip(
            zip(student.reshape(shape), teacher.reshape(shape), valid.reshape(shape), strict=True),
            of_scopes,
            strict=True,
        )
    ]
    np.testing.assert_array_equal(weights, np.array(expected).reshape(student.shape))
    assert count_kept(torch.from_numpy(teacher), labels, config) == weights.sum()


def test_sums_of_rows_by_hand():
    nll = torch.tensor([1.0, NAN, 3.0, float("inf"), 5.0, 7.0])
    ranges = torch.tensor([[0, 3], [3, 4], [4, 6], [6, 6]])
    assert row_sums(nll, ranges).tolist() == [[4, 2], [0, 0], [12, 2], [0, 0]]


def test_weights_by_hand():
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


def test_ties_go_to_the_earlier_position():
    student, teacher = torch.ones(1, 10), torch.zeros(1, 10)
    weights = token_weights(student, teacher, torch.ones(1, 10), GuidanceConfig(top_fraction=0.4))
    assert weights.tolist() == [[1] * 4 + [0] * 6]


def test_the_count_is_that_of_the_written_decimal():
    counts = torch.arange(0, 101)
    for fraction, denominator in ((0.1, 10), (0.2, 5), (0.7, None), (1.0, 1)):
        kept = kept_count(counts, fraction)
        if denominator:
            assert torch.equal(kept, (counts + denominator - 1) // denominator)
    assert kept_count(torch.tensor(30), 0.1) == 3  # 0.1 * 30 is a little more than 3 in binary
    assert kept_count(torch.tensor(10), 0.7) == 7
    assert kept_count(torch.tensor(1000), 1e-7) == 1
    assert kept_count(torch.tensor(3), 0.33333334) == 2
    assert kept_count(torch.tensor(3 * 10**9), 1 / 3) == 10**9
    assert kept_count(torch.tensor(5), 1e-12) == 1


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
    found = token_weights(student, torch.zeros(1, 5), torch.ones(1, 5), config)
    assert found[0].tolist() == expected


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


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5])
def test_a_top_fraction_outside_its_range_is_refused(value):
    with pytest.raises(ConfigError, match=r"guidance\.top_fraction must be in \(0, 1\]"):
        GuidanceConfig(top_fraction=value)


def test_the_shift_by_hand():
    inputs, labels = causal_shift(np.array([[5, 6, 7]], np.int32))
    assert inputs.tolist() == [[5, 6]]
    assert labels.tolist() == [[6, 7]]


def test_a_dropped_infinite_loss_does_not_poison_the_sum():
    nll = torch.tensor([[float("inf"), 2.0]], requires_grad=True)
    loss = teacher_guided_loss(nll, torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert loss == 2.0
    assert nll.grad.tolist() == [[0.0, 1.0]]
    with pytest.raises(ValueError, match="differ"):
        teacher_guided_loss(nll, torch.ones(1, 3))
