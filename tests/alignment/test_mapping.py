"""`align` and `unmapped_reasons` against their definitions."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import oracle
import vocagno
from chaos import repeats
from drawn_spans import any_spans, in_batch, ordered_spans, random_batch, row_boundaries
from vocagno import Reason, SpanError


@settings(max_examples=400)
@given(student=ordered_spans() | any_spans, teacher=ordered_spans())
@example(student=np.array([[0, 0], [0, 1]]), teacher=np.array([[0, 1], [0, 1]]))
def test_align_is_its_definition(student, teacher):
    mapping = vocagno.align(student, teacher)
    np.testing.assert_array_equal(mapping, oracle.align(student, teacher))
    if (student >= 0).all():
        np.testing.assert_array_equal(mapping, oracle.align_by_bytes(student, teacher, 64))
    for losses in (np.where(np.arange(len(teacher)) % 3 == 0, np.nan, 1.0), None):
        reasons = vocagno.unmapped_reasons(student, teacher, mapping, losses=losses)
        np.testing.assert_array_equal(reasons, oracle.reasons(student, teacher, mapping, losses))


@pytest.mark.slow
def test_align_on_random_cases_in_batches():
    """Of a hundred cases each: twenty thousand in all, a hundred thousand under `make chaos`."""
    rng = np.random.default_rng(0)
    for _ in range(repeats(1_000, 200)):
        students, teachers, boundaries = random_batch(rng, 100)
        mapping = vocagno.align(np.concatenate(students), np.concatenate(teachers), **boundaries)
        expected = in_batch(map(oracle.align, students, teachers), boundaries)
        np.testing.assert_array_equal(mapping, expected)


def test_each_token_without_a_teacher_row_has_its_reason():
    student = [[0, 0], [0, 4], [4, 5], [5, 9], [9, 12], [12, 12]]
    teacher = [[0, 0], [0, 4], [5, 9]]
    mapping = vocagno.align(student, teacher)
    reasons = vocagno.unmapped_reasons(student, teacher, mapping, losses=[1.0, np.inf, 0.5])
    names = [Reason(reason).name for reason in reasons]
    assert names == "SPECIAL UNSCORED HOLE MAPPED TRUNCATED SPECIAL".split()
    no_teacher = vocagno.unmapped_reasons(student, [[0, 0]], np.full((6, 2), -1))
    assert no_teacher.tolist() == [1, 2, 2, 2, 2, 1]


def test_reasons_of_rows_of_another_text_are_refused():
    spans = [[0, 1], [0, 1]]
    cu_seqlens = row_boundaries([0, 1, 2], [0, 1, 2])
    mapping = vocagno.align(spans, spans, **cu_seqlens)
    assert vocagno.unmapped_reasons(spans, spans, mapping, **cu_seqlens).tolist() == [0, 0]
    with pytest.raises(SpanError, match=r"token 1: expected teacher rows 1 to 2.*got \(0, 1\)"):
        vocagno.unmapped_reasons(spans, spans, [[0, 1], [0, 1]], **cu_seqlens)


def test_arrays_of_either_width_are_borrowed_and_any_other_is_converted():
    student, teacher = [[0, 2], [2, 5]], [[0, 3], [3, 5]]
    expected = vocagno.align(student, teacher)
    for dtype in (np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4"):
        for other in (np.int32, np.int64):
            left, right = np.array(student, dtype), np.array(teacher, other)
            np.testing.assert_array_equal(vocagno.align(left, right), expected)
    wide = np.zeros((4, 2), np.int64)
    wide[::2] = student
    for awkward in (wide[::2], np.asfortranarray(student), np.array(student)):
        awkward.setflags(write=False)
        np.testing.assert_array_equal(vocagno.align(awkward, teacher), expected)


TOKEN, ONE_TEXT = [[0, 1]], (None, None)
AFTER = r"row 0, token 1: span \(3, 4\) comes after \(5, 9\)"


@pytest.mark.parametrize(
    ("spans", "cu_seqlens", "error", "words"),
    [
        (([[0.5, 1]], TOKEN), ONE_TEXT, TypeError, "student_spans.*integers"),
        ((TOKEN, [[0, 0.5]]), ONE_TEXT, TypeError, "teacher_spans: expected integers"),
        (([[0, 1, 2]], TOKEN), ONE_TEXT, ValueError, r"student_spans.*\(n, 2\).*\(1, 3\)"),
        ((TOKEN, [0, 1]), ONE_TEXT, ValueError, r"teacher_spans.*\(2,\)"),
        ((TOKEN, TOKEN), ([0, 1], None), ValueError, "teacher_cu_seqlens: expected row boundaries"),
        ((TOKEN, TOKEN), ([0, 2], [0, 1]), SpanError, r"student_cu_seqlens\[1\]: expected 1"),
        ((TOKEN, TOKEN), ([0, 1], [0, 1, 1]), ValueError, "cu_seqlens"),
        ((TOKEN, TOKEN), ([0, 1, 0, 1], [0, 1, 1, 1]), ValueError, "student_cu_seqlens"),
        ((np.array([[0, 2**63]], np.uint64), TOKEN), ONE_TEXT, ValueError, "student_spans"),
        ((TOKEN, [[5, 9], [3, 4]]), ONE_TEXT, SpanError, AFTER),
        ((TOKEN * 2, [[0, 1], [5, 9], [3, 4]]), ([0, 1, 2], [0, 1, 3]), SpanError, "row 1"),
    ],
)
@pytest.mark.parametrize("call", [vocagno.align, vocagno.groups, vocagno.starts])
def test_the_argument_that_is_wrong_is_named(call, spans, cu_seqlens, error, words):
    with pytest.raises(error, match=words):
        call(*spans, **row_boundaries(*cu_seqlens))


def test_positions_at_the_ends_of_int64_are_aligned():
    """Sees a comparison that overflows."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    mapping = vocagno.align([[low, high], [high - 1, high]], [[low, low + 1], [high - 1, high]])
    np.testing.assert_array_equal(mapping, [[0, 2], [1, 2]])


sizes = st.integers(0, 60)


@given(n_student=sizes, n_teacher=sizes, chunks=st.integers(1, 70))
def test_each_token_gets_the_rows_of_its_chunk(n_student, n_teacher, chunks):
    expected = np.full((n_student, 2), -1)
    cuts = [[i * n // chunks for i in range(chunks + 1)] for n in (n_student, n_teacher)]
    for i in range(chunks):
        if cuts[1][i] < cuts[1][i + 1]:
            expected[cuts[0][i] : cuts[0][i + 1]] = cuts[1][i], cuts[1][i + 1]
    mapping = vocagno.chunk_map(n_student, n_teacher, chunks)
    assert mapping.dtype == np.int32
    np.testing.assert_array_equal(mapping, expected)
    boundaries = vocagno.chunk_boundaries(n_student, chunks)
    assert boundaries.dtype == np.int64
    np.testing.assert_array_equal(boundaries, cuts[0])


def test_numbers_that_could_overflow():
    large, most = 2**63 - 1, 2**31 - 1
    assert vocagno.chunk_boundaries(large, 3).tolist() == [i * large // 3 for i in range(4)]
    expected = []
    for token in range(3):
        chunk = ((token + 1) * large - 1) // 3  # the last c with c * 3 // large <= token
        rows = [i * most // large for i in (chunk, chunk + 1)]
        expected.append(rows if rows[0] < rows[1] else [-1, -1])
    assert expected[2] == [most - 1, most]
    assert vocagno.chunk_map(np.int8(3), np.uint64(most), large).tolist() == expected


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((-1, 1, 1), ValueError, "n_student: expected 0 to .*, got -1"),
        ((1, -3, 1), ValueError, "n_teacher: expected 0 to .*, got -3"),
        ((1, 1, 0), ValueError, "chunks: expected 1 to .*, got 0"),
        ((1, 1, 2**63), ValueError, "chunks: expected 1 to .*, got 9223372036854775808"),
        ((1.0, 1, 1), TypeError, "n_student: expected an integer, got float"),
        ((2**31, 1, 1), ValueError, "n_student: expected at most 2147483647"),
        ((1, 2**31, 1), ValueError, "n_teacher: expected at most 2147483647"),
    ],
)
def test_bad_numbers_are_named_before_memory_is_asked_for(arguments, error, words):
    with pytest.raises(error, match=words):
        vocagno.chunk_map(*arguments)


def test_bad_boundaries_are_named():
    with pytest.raises(ValueError, match="n: expected 0 to"):
        vocagno.chunk_boundaries(-1, 2)
    with pytest.raises(ValueError, match="chunks: expected at most 2147483647 chunks"):
        vocagno.chunk_boundaries(1, 2**31)
    with pytest.raises(ValueError, match="chunks: expected at least 1, got 0"):
        vocagno._vocagno.chunk_boundaries(1, 0)


@pytest.mark.slow
@settings(max_examples=400)
@given(student=ordered_spans(), teacher=ordered_spans())
def test_groups_are_their_definition(student, teacher):
    groups = vocagno.groups(student, teacher)
    np.testing.assert_array_equal(groups[:2], oracle.groups(student, teacher))
    assert groups.cu_seqlens.tolist() == [0, len(groups.student)]


@given(student=any_spans, teacher=ordered_spans())
def test_students_out_of_order_are_refused(student, teacher):
    filled = [span for span in student if span[0] < span[1]]
    in_order = all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(filled))
    if in_order:
        vocagno.groups(student, teacher)
    else:
        with pytest.raises(SpanError, match="student_spans: row 0, token"):
            vocagno.groups(student, teacher)


def test_groups_of_a_batch_are_those_of_its_texts():
    """Sees rows of one text that are counted from another text's beginning."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        students, teachers, boundaries = random_batch(rng, 20)
        student_cu, teacher_cu = boundaries.values()
        groups = vocagno.groups(np.concatenate(students), np.concatenate(teachers), **boundaries)
        for row, (student, teacher) in enumerate(zip(students, teachers, strict=True)):
            of_row = slice(*groups.cu_seqlens[row : row + 2])
            expected = oracle.groups(student, teacher)
            np.testing.assert_array_equal(groups.student[of_row] - student_cu[row], expected[0])
            np.testing.assert_array_equal(groups.teacher[of_row] - teacher_cu[row], expected[1])
        assert groups.cu_seqlens[-1] == len(groups.student) == len(groups.teacher)


def test_the_excess_of_groups_by_hand():
    """'proofread' as pro|of|read and pr|oofre|ad, then '!' on both sides."""
    student = np.array([[0, 3], [3, 5], [5, 9], [9, 9], [9, 10], [12, 13]])
    teacher = np.array([[0, 2], [2, 7], [7, 9], [9, 10]])
    groups = vocagno.groups(student, teacher)
    nll, teacher_nll = [1.0, 2.0, 3.0, 9.0, 0.5, 7.0], [0.5, 0.25, 0.75, 1.5]
    nan = np.nan
    np.testing.assert_array_equal(groups.excess(nll, teacher_nll), [1.5, 1.5, 1.5, nan, -1, nan])
    first_unscored = groups.excess(nll, [nan, *teacher_nll[1:]])
    np.testing.assert_array_equal(first_unscored, [nan, nan, nan, nan, -1, nan])
    last_infinite = groups.excess([*nll[:4], np.inf, 1.0], teacher_nll)
    np.testing.assert_array_equal(last_infinite, [1.5, 1.5, 1.5, nan, nan, nan])
    for bad in (nll[:2], [nll]):
        with pytest.raises(ValueError, match="student_nll: expected one loss for each token"):
            groups.excess(bad, teacher_nll)
    with pytest.raises(TypeError, match="student_nll: expected real numbers, got complex ones"):
        groups.excess([nll[0] + 1j, *nll[1:]], teacher_nll)
    assert vocagno.groups(student, teacher[:0]).excess(nll, []).shape == (6,)


def test_a_huge_loss_reaches_no_other_group():
    spans = np.array([[0, 1]] * 3)
    groups = vocagno.groups(spans, spans, **row_boundaries([0, 1, 2, 3], [0, 1, 2, 3]))
    for huge in (1e17, float(np.finfo(np.float32).max)):
        excess = groups.excess([1.0, 5.0, 2.0], [huge, 1.0, 1.5])
        np.testing.assert_array_equal(excess, np.float32([1 - huge, 4, 0.5]))
