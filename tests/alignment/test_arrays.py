"""What is taken in place of NumPy's plain arrays, and what is refused, with the way out."""

import numpy as np
import pytest

import vocagno

SPANS = np.array([[0, 2], [2, 5]], np.int32)
TEACHER = np.array([[0, 3], [3, 5]], np.int32)
MAPPING = vocagno.align(SPANS, TEACHER)
CALLS = {
    "align": lambda spans, mapping: vocagno.align(spans, TEACHER),
    "groups": lambda spans, mapping: vocagno.groups(spans, TEACHER).student,
    "overlap": lambda spans, mapping: vocagno.overlap(spans, TEACHER, mapping).iou,
    "unmapped_reasons": lambda spans, mapping: vocagno.unmapped_reasons(spans, TEACHER, mapping),
    "reduce": lambda spans, mapping: vocagno.reduce([1.0, 2.0], mapping),
}


def unaligned(array):
    """The same items at an odd address."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    copy = memory[1:].view(array.dtype).reshape(array.shape)
    copy[:] = array
    assert not copy.flags.aligned
    return copy


@pytest.mark.parametrize("name", CALLS)
def test_unaligned_arrays_are_copied(name):
    expected = CALLS[name](SPANS, MAPPING)
    np.testing.assert_array_equal(CALLS[name](unaligned(SPANS), unaligned(MAPPING)), expected)
    losses = np.array([1.0, 2.0])
    assert vocagno.reduce(unaligned(losses), MAPPING).tolist() == [1.0, 2.0]
    whole = unaligned(np.array([0, 2]))
    batch = vocagno.align(SPANS, TEACHER, student_cu_seqlens=whole, teacher_cu_seqlens=whole)
    np.testing.assert_array_equal(batch, MAPPING)


@pytest.mark.parametrize("name", CALLS)
def test_masked_spans_and_mappings_are_refused(name):
    mask = [[0, 0], [1, 0]]
    arguments = [SPANS, np.ma.masked_array(MAPPING, mask)]
    argument = "mapping"
    if name in ("align", "groups"):
        arguments, argument = [np.ma.masked_array(SPANS, mask), MAPPING], "student_spans"
    with pytest.raises(TypeError, match=rf"{argument}: .*without a mask, got 1 .*\.filled\("):
        CALLS[name](*arguments)
    nothing = np.ma.masked_array(SPANS), np.ma.masked_array(MAPPING)  # nothing is masked in them
    np.testing.assert_array_equal(CALLS[name](*nothing), CALLS[name](SPANS, MAPPING))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
def test_a_masked_loss_is_no_loss(dtype):
    losses = np.ma.masked_array(np.array([1, 100, 3], dtype), [0, 1, 0])
    assert vocagno.reduce(losses, [[0, 3], [1, 2]])[0] == 3
    assert np.isnan(vocagno.reduce(losses, [[1, 2]])[0])
    spans = [[0, 1], [1, 2], [2, 3]]
    reasons = vocagno.unmapped_reasons(spans, spans, vocagno.align(spans, spans), losses=losses)
    assert reasons.tolist() == [0, vocagno.Reason.UNSCORED, 0]


def test_a_group_with_a_masked_loss_has_no_excess():
    spans = [[0, 1], [1, 2]]
    groups = vocagno.groups(spans, spans)
    losses = np.ma.masked_array([1.0, 8.0], [0, 1])
    for student, teacher in ((losses, [1.0, 1.0]), ([1.0, 1.0], losses)):
        np.testing.assert_array_equal(groups.excess(student, teacher), [0, np.nan])


def test_a_null_of_pyarrow_is_no_loss():
    pyarrow = pytest.importorskip("pyarrow")
    spans, column = [[0, 1], [1, 2]], pyarrow.array([1.0, None])
    groups = vocagno.groups(spans, spans)
    for teacher in (column, pyarrow.chunked_array([column])):
        np.testing.assert_array_equal(groups.excess([1.0, 2.0], teacher), [0, np.nan])


def test_lists_of_two_of_pyarrow():
    pyarrow = pytest.importorskip("pyarrow")
    column = pyarrow.array(SPANS.tolist(), pyarrow.list_(pyarrow.int32(), 2))
    for spans in (column, pyarrow.chunked_array([column[:1], column[1:]])):
        np.testing.assert_array_equal(vocagno.align(spans, TEACHER), MAPPING)
    np.testing.assert_array_equal(vocagno.align(column[1:], TEACHER), MAPPING[1:])
    missing = pyarrow.array([[0, 2], None], column.type)
    with pytest.raises(TypeError, match="student_spans: expected no nulls, got 1"):
        vocagno.align(missing, TEACHER)
    with pytest.raises(TypeError, match="teacher_spans: expected no nulls, got 1"):
        vocagno.align(SPANS, pyarrow.array([[0, 2], [2, None]], column.type))
    assert vocagno.reduce(pyarrow.array([1.0, 2.0]), MAPPING).tolist() == [1.0, 2.0]


def test_tensors_that_numpy_cannot_read_come_with_the_way_out():
    torch = pytest.importorskip("torch")
    losses = torch.tensor([1.0, 2.0])
    assert vocagno.reduce(losses, MAPPING).tolist() == [1.0, 2.0]
    trained = losses.to(torch.bfloat16).requires_grad_()
    for tensor, got, calls in (
        (losses.bfloat16(), "of torch.bfloat16", ".float()"),
        (losses.clone().requires_grad_(), "that requires grad", ".detach()"),
        (losses.to("meta"), "on meta", ".cpu()"),
        (trained, "that requires grad of torch.bfloat16", ".detach().float()"),
    ):
        with pytest.raises(TypeError) as refused:
            vocagno.reduce(tensor, MAPPING)
        message = f"losses: expected numbers that NumPy can read, got a tensor {got}; "
        assert str(refused.value) == f"{message}pass it as tensor{calls}"
    assert vocagno.reduce(trained.detach().float(), MAPPING).tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match=r"student_spans: .*on meta; pass it as tensor\.cpu\(\)"):
        vocagno.align(torch.from_numpy(SPANS).to("meta"), TEACHER)
