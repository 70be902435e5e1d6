"""`starts` against its definition."""

import numpy as np
import pytest
from hypothesis import example, given, settings

import oracle
import vocagno
from drawn_spans import any_spans, in_batch, ordered_spans, random_batch
from vocagno import SpanError


@settings(max_examples=200)
@given(student=ordered_spans(), teacher=ordered_spans())
@example(student=np.array([[0, 0], [0, 4], [0, 4]]), teacher=np.array([[0, 4], [0, 4], [4, 4]]))
def test_starts_are_their_definition(student, teacher):
    starts = vocagno.starts(student, teacher)
    np.testing.assert_array_equal(starts, oracle.starts(student, teacher))
    assert starts.dtype == np.int32
    narrow = vocagno.starts(student.astype(np.int32), teacher.astype(np.int32))
    np.testing.assert_array_equal(narrow, starts)
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
    students, teachers, boundaries = random_batch(np.random.default_rng(0), 4_000)
    sides = np.concatenate(students), np.concatenate(teachers)
    starts = vocagno.starts(*sides, **boundaries, num_threads=num_threads)
    expected = in_batch(map(oracle.starts, students, teachers), boundaries)
    np.testing.assert_array_equal(starts, expected)


def test_lists_and_arrays_of_any_order_are_taken():
    spans = np.array([[0, 2], [2, 4]])
    starts = vocagno.starts(spans.tolist(), np.asfortranarray(spans.astype(np.int16)))
    assert starts.tolist() == [0, 1]
