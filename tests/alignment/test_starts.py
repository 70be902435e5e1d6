"""`starts` against its definition."""

import numpy as np
import pytest
from hypothesis import example, given, settings

import oracle
import vocagno
from drawn_spans import any_spans, ordered_spans, random_spans
from vocagno import SpanError


@settings(max_examples=200)
@given(student=ordered_spans(), teacher=ordered_spans())
@example(student=np.array([[0, 0], [0, 4], [0, 4]]), teacher=np.array([[0, 4], [0, 4], [4, 4]]))
def test_starts_are_their_definition(student, teacher):
    starts = vocagno.starts(student, teacher)
    np.testing.assert_array_equal(starts, oracle.starts(student, teacher))
    assert starts.dtype == np.int32
    np.testing.assert_array_equal(
        vocagno.starts(student.astype(np.int32), teacher.astype(np.int32)), starts
    )
    mapping = vocagno.align(student, teacher)  # a shared start is a shared byte
    covered = starts >= 0
    assert ((mapping[:, 0] <= starts) & (starts < mapping[:, 1]))[covered].all()


def outcome(call, student, teacher):
    """What a call returns, or what it says that it refuses."""
    try:
        return call(student, teacher)
    except SpanError as error:
        return str(error)


@given(student=any_spans, teacher=any_spans)
def test_spans_out_of_order_are_refused_as_by_groups(student, teacher):
    outcomes = [outcome(call, student, teacher) for call in (vocagno.starts, vocagno.groups)]
    if isinstance(outcomes[1], str):
        assert outcomes[0] == outcomes[1]
    else:
        np.testing.assert_array_equal(outcomes[0], oracle.starts(student, teacher))


@pytest.mark.parametrize("num_threads", [1, 2, None])
def test_starts_of_a_batch_are_those_of_its_texts(num_threads):
    """Sees texts that are mixed up where several threads share a batch."""
    rng = np.random.default_rng(0)
    students, teachers = ([random_spans(rng) for _ in range(4_000)] for _ in range(2))
    student_cu, teacher_cu = (np.cumsum([0, *map(len, side)]) for side in (students, teachers))
    starts = vocagno.starts(
        np.concatenate(students),
        np.concatenate(teachers),
        student_cu_seqlens=student_cu,
        teacher_cu_seqlens=teacher_cu,
        num_threads=num_threads,
    )
    for row in range(0, 4_000, 13):
        expected = oracle.starts(students[row], teachers[row])
        expected[expected >= 0] += teacher_cu[row]
        np.testing.assert_array_equal(starts[student_cu[row] : student_cu[row + 1]], expected)


def test_arguments_are_read_as_by_align():
    spans = np.array([[0, 2], [2, 4]])
    assert vocagno.starts(spans.tolist(), np.asfortranarray(spans.astype(np.int16))).tolist() == [
        0,
        1,
    ]
    with pytest.raises(ValueError, match=r"student_spans: expected shape \(n, 2\)"):
        vocagno.starts([1, 2], spans)
    with pytest.raises(TypeError, match="teacher_spans: expected integers"):
        vocagno.starts(spans, spans / 2)
    with pytest.raises(ValueError, match="teacher_cu_seqlens: expected row boundaries"):
        vocagno.starts(spans, spans, student_cu_seqlens=[0, 2])
    with pytest.raises(SpanError, match=r"student_cu_seqlens\[1\]: expected 2"):
        vocagno.starts(spans, spans, student_cu_seqlens=[0, 1], teacher_cu_seqlens=[0, 2])
    with pytest.raises(ValueError, match="num_threads: expected None or 1 to"):
        vocagno.starts(spans, spans, num_threads=0)
