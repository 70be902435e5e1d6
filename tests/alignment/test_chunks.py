"""`chunk_boundaries` and `chunk_map` against their formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vocagno

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


def test_a_token_gets_the_loss_of_its_chunk():
    losses = np.array([1, 4, 2, 8, 3], np.float32)
    chunked = vocagno.chunk_map(6, len(losses), 2)
    assert vocagno.reduce(losses, chunked, "max").tolist() == [4] * 3 + [8] * 3
    assert vocagno.reduce(losses, vocagno.chunk_map(4, 5, 1), "sum").tolist() == [18] * 4
    few = vocagno.reduce(losses[:1], vocagno.chunk_map(4, 1, 2))
    np.testing.assert_array_equal(few, [np.nan, np.nan, 1, 1])


def test_the_same_vocabulary_in_as_many_chunks_as_tokens_is_the_identity():
    np.testing.assert_array_equal(
        vocagno.chunk_map(5, 5, 5), np.stack([np.arange(5), np.arange(1, 6)], axis=1)
    )


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
