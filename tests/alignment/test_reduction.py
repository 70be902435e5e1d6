"""`reduce` against its definition, on arrays and on tensors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
import vocagno

HOW = ["max", "mean", "sum", "min"]


@st.composite
def losses_and_ranges(draw):
    losses = st.floats(0, 20, width=32) | st.sampled_from([np.nan, np.inf, -np.inf])
    losses = draw(st.lists(losses, max_size=30))
    ranges = []
    for _ in range(draw(st.integers(0, 12))):
        if losses and draw(st.booleans()):
            first = draw(st.integers(0, len(losses) - 1))
            ranges.append((first, draw(st.integers(first + 1, len(losses)))))
        else:
            ranges.append((-1, -1))
    return np.array(losses, np.float32), np.array(ranges, np.int32).reshape(-1, 2)


@pytest.mark.parametrize("how", HOW)
@given(case=losses_and_ranges())
def test_reduce_is_its_definition(how, case):
    losses, mapping = case
    expected = oracle.reduce(losses, mapping, how)
    result = vocagno.reduce(losses, mapping, how)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    wide = vocagno.reduce(losses.astype(np.float64), mapping, how)
    np.testing.assert_allclose(wide, expected, rtol=1e-6)


def on_the_device(losses, mapping, how):
    torch = pytest.importorskip("torch")
    from vocagno.alignment.segments import segment_reduce

    return segment_reduce(torch.from_numpy(losses), torch.from_numpy(mapping), how)


@pytest.mark.parametrize("how", HOW)
@given(case=losses_and_ranges())
def test_reduction_on_the_device_is_that_on_the_host(how, case):
    expected = vocagno.reduce(*case, how)
    np.testing.assert_allclose(on_the_device(*case, how), expected, rtol=1e-5, atol=1e-5)


def test_ranges_thousands_long_on_the_device():
    """Sees a sum of a long range that loses digits in float32."""
    rng = np.random.default_rng(0)
    losses = rng.exponential(2, 50_000).astype(np.float32)
    first = rng.integers(0, 40_000, 2_000)
    mapping = np.stack([first, first + rng.integers(1, 10_000, 2_000)], 1).astype(np.int32)
    for how in HOW:
        expected = vocagno.reduce(losses, mapping, how)
        np.testing.assert_allclose(on_the_device(losses, mapping, how), expected, rtol=1e-5)


@pytest.mark.parametrize("how", HOW)
def test_a_huge_loss_reaches_no_other_range_on_the_device(how):
    losses = np.array([np.finfo(np.float32).max, 1, 2, 4], np.float32)
    mapping = np.array([[0, 1], [1, 2], [1, 4], [-1, -1]], np.int32)
    expected = vocagno.reduce(losses, mapping, how)
    np.testing.assert_array_equal(on_the_device(losses, mapping, how), expected)


def test_integers_and_float16_are_reduced_as_float32():
    mapping = [[0, 2], [-1, -1]]
    assert vocagno.reduce([1, 3], mapping).tolist()[0] == 3.0
    half = vocagno.reduce(np.array([1, 3], np.float16), mapping, "mean")
    assert half.dtype == np.float32
    assert half[0] == 2.0
    assert np.isnan(half[1])
    assert vocagno.reduce([], np.empty((0, 2), np.int32)).shape == (0,)


@pytest.mark.parametrize(
    ("losses", "mapping", "how", "error", "words"),
    [
        ([1.0], [[0, 2]], "max", ValueError, "0.*2"),
        ([1.0], [[-1, 1]], "max", ValueError, "-1"),
        ([1.0], [[0, 0]], "max", ValueError, "0"),
        ([1.0], [[0, 1]], "median", ValueError, "median"),
        ([[1.0]], [[0, 1]], "max", ValueError, r"\(1, 1\)"),
        (["a"], [[0, 1]], "max", TypeError, "losses"),
        ([1.0], [[0.0, 1.0]], "max", TypeError, "mapping"),
        ([1.0], [[0, 2**40]], "max", ValueError, "mapping"),
    ],
)
def test_reduce_names_the_argument_that_is_wrong(losses, mapping, how, error, words):
    with pytest.raises(error, match=words):
        vocagno.reduce(losses, mapping, how)


def test_sums_of_rows_by_hand():
    torch = pytest.importorskip("torch")
    from vocagno.alignment.segments import row_sums

    nll = torch.tensor([1.0, torch.nan, 3.0, torch.inf, 5.0, 7.0])
    ranges = torch.tensor([[0, 3], [3, 4], [4, 6], [6, 6]])
    assert row_sums(nll, ranges).tolist() == [[4, 2], [0, 0], [12, 2], [0, 0]]
