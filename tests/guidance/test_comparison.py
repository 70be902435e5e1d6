"""Which teacher tokens are behind a student token: by text, count, position or group."""

import math
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from families import HARD_TEXTS, TEXTS
from vocagno import TokenSpans
from vocagno.errors import GuidanceError
from vocagno.guidance.comparison import (
    DocumentPairs,
    compared_groups,
    identity_map,
    positional_map,
    safe_cuts,
)

NAN = math.nan


def pieces_of(student, teacher, student_cu=None, teacher_cu=None, **fields):
    """DocumentPairs with the spans of both sides, each of document 7 and the first of its row."""
    student, teacher = (np.array(s, np.int32).reshape(-1, 2) for s in (student, teacher))
    student_cu = np.array(student_cu or [0, len(student)])
    count = len(student_cu) - 1
    defaults = {
        "num_tokens": np.diff(student_cu),
        "num_prompt": np.zeros(count, np.int64),
        "document_numbers": [7] * count,
        "first_bytes": [0] * count,
        "end_bytes": [99] * count,
        "is_missing": np.zeros(count, bool),
        "teacher_tokens_before": np.zeros(count, np.int64),
        "teacher_nll": np.zeros(len(teacher), np.float32),
        "teacher_cu": np.array(teacher_cu or [0, len(teacher)]),
        "row_sizes": [len(student)],
        "row_pieces": np.arange(count + 1),
    }
    spans = {"student_spans": student, "teacher_spans": teacher}
    return DocumentPairs(**spans, student_cu=student_cu, **defaults | fields)


def compare(student, teacher, nll, predicted=None, ends=(), **cu):
    sizes = np.diff([0, *(end + 1 for end in ends)])
    pieces = pieces_of(
        student, teacher, teacher_nll=np.array(nll, np.float32), row_sizes=sizes, **cu
    )
    return compared_groups(pieces, None if predicted is None else np.array(predicted, bool))


STUDENT = [(0, 2), (2, 4), (4, 9), (9, 9), (9, 12), (12, 13)]


TEACHER = [(0, 4), (4, 6), (6, 9), (9, 13)]
"""Groups: tokens 0 and 1 to 0; 2 to 1 and 2; 4 and 5 (behind a special token) to 3."""


LOSSES = [1.0, 2.0, 4.0, 8.0]


def test_a_group_has_the_sum_of_the_teacher_over_its_student_tokens():
    compared = compare(STUDENT, TEACHER, LOSSES)
    assert compared.groups.tolist() == [0, 0, 1, -1, 2, 2]
    assert compared.mapping.tolist() == [[0, 1], [0, 1], [1, 3], [-1, -1], [3, 4], [3, 4]]
    np.testing.assert_array_equal(compared.teacher_loss, [0.5, 0.5, 6.0, NAN, 4.0, 4.0])


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({"predicted": [0, 1, 1, 1, 1, 1]}, [-1, -1, 0, -1, 1, 1]),  # the first token of a row
        ({"predicted": [0, 0, 0, 1, 1, 1]}, [-1, -1, -1, -1, 0, 0]),  # a prompt
        ({"ends": [5]}, [0, 0, 1, -1, -1, -1]),  # text may go on in the next row
        ({"ends": [3]}, [0, 0, 1, -1, 2, 2]),  # the end of a document ends the row
        ({"nll": [NAN, 2.0, 4.0, 8.0]}, [-1, -1, 0, -1, 1, 1]),  # no BOS: the first has no loss
        ({"nll": [1.0, math.inf, 4.0, 8.0]}, [0, 0, -1, -1, 1, 1]),  # a part of a group
        ({"teacher": [(0, 4), (4, 6), (6, 9), (9, 11)]}, [0, 0, 1, -1, -1, -1]),  # truncated
        ({"teacher": TEACHER[:3], "nll": LOSSES[:3]}, [0, 0, 1, -1, -1, -1]),
        ({"teacher": [], "nll": []}, [-1] * 6),
    ],
)
def test_groups_that_are_known_in_part_are_not_compared(options, groups):
    given_here = {"student": STUDENT, "teacher": TEACHER, "nll": LOSSES} | options
    compared = compare(**given_here)
    assert compared.groups.tolist() == groups
    assert (np.isnan(compared.teacher_loss) == (np.array(groups) < 0)).all()
    assert ((compared.mapping[:, 0] < 0) == (np.array(groups) < 0)).all()


def test_texts_of_a_batch_are_compared_each_with_its_own():
    twice = [*STUDENT, *STUDENT]
    compared = compare(
        twice,
        [*TEACHER, *TEACHER],
        [*LOSSES, *LOSSES],
        ends=[11],
        student_cu=[0, 6, 12],
        teacher_cu=[0, 4, 8],
    )
    assert compared.groups.tolist() == [0, 0, 1, -1, 2, 2, 3, 3, 4, -1, -1, -1]
    sizes = [len(list(same)) for number, same in groupby(compared.groups.tolist()) if number >= 0]
    assert sizes == [2, 1, 2, 2, 1]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["group", "none", "hole"])), max_size=12)
)
@settings(max_examples=200, deadline=None)
def test_chunks_may_end_wherever_no_group_is_cut(parts):
    """A group may have tokens inside it that are in none (special tokens)."""
    numbers = []
    for number, (size, kind) in enumerate(parts):
        if kind == "none":
            numbers += [-1] * size
        else:
            inside = [-1] * (size - 1) if kind == "hole" else [number] * (size - 1)
            numbers += [number, *inside, number]
    cut = {
        place
        for place in range(1, len(numbers))
        if {n for n in numbers[:place] if n >= 0} & {n for n in numbers[place:] if n >= 0}
    }
    ends = safe_cuts(np.array(numbers, np.int64)).tolist()
    assert ends == [place for place in range(1, len(numbers) + 1) if place not in cut]


@pytest.mark.parametrize("family", ["llama", "metaspace-first", "byte-level"])
def test_counting_tokens_finds_what_searching_finds(tokenizers, family):
    """Rows begin anywhere, between the bytes of a character too; scores are of whole documents."""
    rng = np.random.default_rng(0)
    tokens = TokenSpans(tokenizers[family])
    for text in [*TEXTS[:6], *HARD_TEXTS]:
        spans = tokens.encode([text]).spans
        bounds = sorted(rng.integers(0, len(spans) + 1, 2))
        part = spans[bounds[0] : bounds[1]]
        mapping = identity_map(pieces_of(part, spans))
        expected = np.full((len(part), 2), -1)
        for place in np.flatnonzero(part[:, 0] < part[:, 1]):
            expected[place] = bounds[0] + place, bounds[0] + place + 1
        np.testing.assert_array_equal(mapping, expected)


def test_repeated_spans_are_counted_from_the_row_border():
    """Five bytes of one character, of which a row holds the last two."""
    teacher = np.array([[0, 1], *[[1, 5]] * 4, [5, 6]], np.int32)
    student = np.array([[0, 0], [1, 5], [1, 5], [5, 6]], np.int32)
    mapping = identity_map(pieces_of(student, teacher))
    assert mapping.tolist() == [[-1, -1], [3, 4], [4, 5], [5, 6]]
    # A piece behind another one begins where its document does, wherever its row ends.
    first = np.array([[0, 1], [1, 5], [1, 5]], np.int32)
    mapping = identity_map(pieces_of(first, teacher, row_pieces=np.array([1])))
    assert mapping.tolist() == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize(
    ("first", "teacher", "teacher_span"),
    [([0, 2], [[0, 2], [2, 3]], r"\[2, 3\) in"), ([0, 1], [[0, 1]], "missing in")],
)
def test_other_tokens_are_refused_by_document_and_bytes(first, teacher, teacher_span):
    words = rf"document 7: the student's token of bytes \[1, 2\) is {teacher_span}"
    with pytest.raises(GuidanceError, match=words):
        identity_map(pieces_of([first, [1, 2]], teacher))


def test_positions_are_counted_over_tokens_with_text():
    student = np.array([[0, 0], [0, 1], [1, 2], [5, 6], [6, 7]], np.int32)
    teacher = np.array([[0, 2], [5, 5], [5, 6], [6, 7], [7, 8]], np.int32)
    mapping = positional_map(pieces_of(student, teacher, [0, 3, 5], [0, 1, 5]))
    assert mapping.tolist() == [[-1, -1], [0, 1], [-1, -1], [2, 3], [3, 4]]


def test_teacher_tokens_that_overlap_a_piece_share_its_text():
    """Sees an empty token, or one that only touches the piece, counted as sharing its text."""
    spans = np.array([[0, 3], [3, 3], [3, 5], [5, 9], [9, 12], [0, 4]], np.int32)
    pieces = pieces_of([(4, 9)] * 2, spans, [0, 1, 2], [0, 5, 6], end_bytes=[9, 9])
    inside = pieces.sharing_text([4, 4])
    assert inside.tolist() == [False, False, True, True, False, False]
