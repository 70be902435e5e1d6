"""`overlap` against sets of bytes, and the cases that its running sums could get wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
import vocagno
from drawn_spans import any_spans, in_batch, ordered_spans, random_batch, row_boundaries
from vocagno import SpanError


@pytest.mark.slow
@settings(max_examples=400)
@given(student=ordered_spans() | any_spans, teacher=ordered_spans(), data=st.data())
def test_overlap_is_its_definition_for_any_mapping(student, teacher, data):
    ends = st.integers(0, len(teacher))
    ranges = st.tuples(ends, ends).map(
        lambda pair: sorted(pair) if pair[0] != pair[1] else [-1] * 2
    )
    drawn = data.draw(st.lists(ranges, min_size=len(student), max_size=len(student)))
    for mapping in (np.array(drawn).reshape(-1, 2), vocagno.align(student, teacher)):
        overlap = vocagno.overlap(student, teacher, mapping)
        np.testing.assert_array_equal(overlap, oracle.overlap(student, teacher, mapping))


@pytest.mark.slow
def test_overlap_of_batches_with_any_mapping():
    rng = np.random.default_rng(0)
    for _ in range(200):
        students, teachers, boundaries = random_batch(rng, 20)
        mappings, expected = [], []
        for student, teacher in zip(students, teachers, strict=True):
            mapping = np.sort(rng.integers(0, len(teacher) + 1, (len(student), 2)), axis=1)
            mapping[mapping[:, 0] == mapping[:, 1]] = -1
            mappings.append(mapping)
            expected.append(oracle.overlap(student, teacher, mapping))
        sides = np.concatenate(students), np.concatenate(teachers)
        overlap = vocagno.overlap(*sides, in_batch(mappings, boundaries), **boundaries)
        np.testing.assert_array_equal(overlap, np.concatenate(expected, axis=1))


NAMED = {
    "same tokens": ([0, 4], [[0, 4]], [0, 1], (1, 1)),
    "a part of the teacher's": ([0, 2], [[0, 8]], [0, 1], (0.25, 1)),
    "several of the teacher's": ([1, 5], [[0, 2], [2, 4], [4, 9]], [0, 3], (4 / 9, 1)),
    "partly covered": ([0, 8], [[6, 8]], [0, 1], (0.25, 0.25)),
    "repeats": ([0, 2], [[0, 4]] * 5, [0, 5], (0.5, 1)),
    "nested": ([1, 5], [[0, 2], [1, 8], [7, 8]], [0, 3], (0.5, 1)),
    "the outer one left out": ([1, 5], [[0, 2], [1, 8], [7, 8]], [2, 3], (0, 0)),
    "holes": ([1, 5], [[0, 2], [4, 6], [9, 10]], [0, 3], (2 / 7, 0.5)),
    "in a hole": ([2, 4], [[0, 2], [4, 6]], [0, 2], (0, 0)),
    "far away": ([0, 4], [[0, 4], [50, 60], [60, 61]], [1, 3], (0, 0)),
    "far away, before": ([90, 94], [[50, 60], [60, 61], [90, 94]], [0, 2], (0, 0)),
    "empty rows in the range": ([0, 4], [[0, 0], [0, 2], [7, 7], [9, 1], [2, 4]], [0, 5], (1, 1)),
    "nothing but empty rows": ([0, 4], [[0, 4], [0, 0], [2, 2]], [1, 3], (0, 0)),
    "unmapped": ([0, 4], [[0, 4]], [-1, -1], (0, 0)),
    "no text": ([4, 4], [[0, 4]], [0, 1], (np.nan, np.nan)),
    "inverted": ([6, 4], [[0, 9]], [-1, -1], (np.nan, np.nan)),
}


@pytest.mark.parametrize("name", NAMED)
def test_iou_and_ios_of_cases_by_hand(name):
    student, teacher, mapping, expected = NAMED[name]
    overlap = vocagno.overlap([student], teacher, [mapping])
    assert overlap.iou.dtype == overlap.ios.dtype == np.float64
    np.testing.assert_array_equal((overlap.iou[0], overlap.ios[0]), expected)


def test_lengths_beyond_int64_have_their_shares():
    """Sees lengths that overflow: one span is longer than int64 holds."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    overlap = vocagno.overlap([[low, high]] * 2, [[low, 0], [0, high]], [[0, 2], [0, 1]])
    np.testing.assert_allclose(overlap, [[1, 0.5], [1, 0.5]])


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([[0, 1]], [[5, 9], [3, 4]], [[0, 1]]), {}, r"row 0, token 1: span \(3, 4\) comes after"),
        (([[0, 1]], [[0, 1]], [[0, 2]]), {}, r"token 0: expected \(-1, -1\) or .*got \(0, 2\)"),
        (([[0, 1]], [[0, 1]], [[0, 0]]), {}, r"got \(0, 0\)"),
        (([[0, 1]], [[0, 1]], [[-2, 1]]), {}, r"got \(-2, 1\)"),
        (([[0, 1]], [[0, 1]], []), {}, "mapping: expected 1 items, got 0"),
        (
            ([[0, 1], [0, 1]], [[0, 1], [0, 1]], [[0, 1], [0, 1]]),
            row_boundaries([0, 1, 2], [0, 1, 2]),
            r"token 1: expected teacher rows 1 to 2, those of its text, row 1, got \(0, 1\)",
        ),
        (
            ([[0, 1]], [[0, 1], [0, 0], [0, 1], [5, 6], [3, 4]], [[0, 1]]),
            row_boundaries([0, 1, 1], [0, 2, 5]),
            r"row 1, token 2: span \(3, 4\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(arguments, options, words):
    with pytest.raises(SpanError, match=words):
        vocagno.overlap(*arguments, **options)
    with pytest.raises(ValueError, match="teacher_cu_seqlens: expected row boundaries"):
        vocagno.overlap([[0, 1]], [[0, 1]], [[0, 1]], student_cu_seqlens=[0, 1])
