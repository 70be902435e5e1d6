"""`groups` against the definition, and against TRL's own walk where that is right."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

import oracle
import vocagno
from drawn_spans import any_spans, ordered_spans, random_batch
from families import HARD_TEXTS, TEXTS
from shared_data import shared, shared_texts
from vocagno import SpanError, TokenSpans


def of_trl(student, teacher):
    """Both sides' groups as the installed TRL's GOLD trainer finds them."""
    gold = pytest.importorskip("trl.experimental.gold.gold_trainer")
    sides = [list(map(tuple, side.tolist())) for side in (student, teacher)]
    return gold.ULDLoss._align_by_byte_offsets(*sides)


def as_lists(ranges):
    return [list(range(first, stop)) for first, stop in ranges.tolist()]


@pytest.mark.slow
@settings(max_examples=400)
@given(student=ordered_spans(), teacher=ordered_spans())
def test_groups_are_their_definition(student, teacher):
    found = vocagno.groups(student, teacher)
    np.testing.assert_array_equal(found[:2], oracle.groups(student, teacher))
    assert found.cu_seqlens.tolist() == [0, len(found.student)]


@given(student=any_spans, teacher=ordered_spans())
def test_students_out_of_order_are_refused(student, teacher):
    filled = [span for span in student if span[0] < span[1]]
    in_order = all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(filled))
    if in_order:
        vocagno.groups(student, teacher)
    else:
        with pytest.raises(SpanError, match="student_spans: row 0, token"):
            vocagno.groups(student, teacher)


def test_groups_of_batches():
    rng = np.random.default_rng(0)
    for _ in range(100):
        students, teachers, boundaries = random_batch(rng, 20)
        student_cu, teacher_cu = boundaries.values()
        found = vocagno.groups(np.concatenate(students), np.concatenate(teachers), **boundaries)
        for row, (student, teacher) in enumerate(zip(students, teachers, strict=True)):
            own = slice(*found.cu_seqlens[row : row + 2])
            expected = oracle.groups(student, teacher)
            np.testing.assert_array_equal(found.student[own] - student_cu[row], expected[0])
            np.testing.assert_array_equal(found.teacher[own] - teacher_cu[row], expected[1])
        assert found.cu_seqlens[-1] == len(found.student) == len(found.teacher)


@pytest.mark.parametrize("pair", [("byte-level", "unigram"), ("unigram", "byte-level")])
def test_trl_finds_the_same_where_each_token_has_text_of_its_own(tokenizers, pair):
    """Its walk needs both sides to tile the text without repetition; ours does not."""
    compared = 0
    for text in [*TEXTS[:6], *HARD_TEXTS]:
        student, teacher = (TokenSpans(tokenizers[name]).encode([text]).spans for name in pair)
        sides = [side[side[:, 0] < side[:, 1]] for side in (student, teacher)]
        if any(len({tuple(span) for span in side.tolist()}) < len(side) for side in sides):
            continue  # bytes of one character
        if not all(len(side) and side[-1, 1] == len(text.encode()) for side in sides):
            continue
        found = vocagno.groups(*sides)
        assert (as_lists(found.student), as_lists(found.teacher)) == of_trl(*sides)
        compared += 1
    assert compared > 10


def test_bytes_of_one_character_keep_together_what_follows():
    """Four byte tokens of an emoji beside one: TRL's walk ends its group at the first of them."""
    student = np.array([[0, 4]] * 4 + [[4, 5], [5, 6]])
    teacher = np.array([[0, 4], [4, 5], [5, 6]])
    found = vocagno.groups(student, teacher)
    assert as_lists(found.student) == [[0, 1, 2, 3], [4], [5]]
    assert as_lists(found.teacher) == [[0], [1], [2]]
    assert of_trl(student, teacher)[0] == [[0], [1, 2, 3, 4], [5]]


def test_the_losses_of_a_group(tokenizers):
    """Sums over groups are the losses of the same text, so that both sides can be compared."""
    rng = np.random.default_rng(0)
    both = [TokenSpans(tokenizers[name]).encode(TEXTS) for name in ("byte-level", "unigram")]
    cu = {"student_cu_seqlens": both[0].cu_seqlens, "teacher_cu_seqlens": both[1].cu_seqlens}
    found = vocagno.groups(both[0].spans, both[1].spans, **cu)
    for side, tokens in zip(found[:2], both, strict=True):
        nll = rng.random(len(tokens.spans)).astype(np.float32)
        sums = vocagno.reduce(nll, side, how="sum")
        filled = tokens.spans[:, 0] < tokens.spans[:, 1]
        assert np.isclose(sums.sum(), nll[filled].sum(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("teacher", ["qwen2.5", "llama-3", "mistral-v0.1"])
def test_real_text_is_in_groups_as_a_whole(teacher):
    """Every token with text is in one; and where no character is split, the groups are TRL's."""
    own, other = (
        TokenSpans(shared("tokenizers", f"{name}.json.gz")) for name in ("tinyllama", teacher)
    )
    compared = 0
    for text in shared_texts("math-valid")[:40]:
        both = (own.encode([text]).spans, other.encode([text]).spans)
        sides = [spans[spans[:, 0] < spans[:, 1]] for spans in both]
        found = vocagno.groups(*sides)
        for ranges, spans in zip(found[:2], sides, strict=True):
            assert ranges[0, 0] == 0
            assert ranges[-1, 1] == len(spans)
            assert (ranges[1:, 0] == ranges[:-1, 1]).all()
        if all((np.diff(spans[:, 1]) > 0).all() for spans in sides):
            assert (as_lists(found.student), as_lists(found.teacher)) == of_trl(*sides)
            compared += 1
    assert compared > 5


def test_the_excess_of_groups_by_hand():
    """'proofread' as pro|of|read and pr|oofre|ad, then '!' on both sides."""
    student = np.array([[0, 3], [3, 5], [5, 9], [9, 9], [9, 10], [12, 13]])
    teacher = np.array([[0, 2], [2, 7], [7, 9], [9, 10]])
    found = vocagno.groups(student, teacher)
    own, other = [1.0, 2.0, 3.0, 9.0, 0.5, 7.0], [0.5, 0.25, 0.75, 1.5]
    nan = np.nan
    np.testing.assert_array_equal(found.excess(own, other), [1.5, 1.5, 1.5, nan, -1, nan])
    np.testing.assert_array_equal(
        found.excess(own, [nan, *other[1:]]), [nan, nan, nan, nan, -1, nan]
    )
    np.testing.assert_array_equal(
        found.excess([*own[:4], np.inf, 1.0], other), [1.5, 1.5, 1.5, nan, nan, nan]
    )
    for bad in (own[:2], [own]):
        with pytest.raises(ValueError, match="student_nll: expected one loss for each token"):
            found.excess(bad, other)
    with pytest.raises(TypeError, match="student_nll: expected real numbers, got complex ones"):
        found.excess([own[0] + 1j, *own[1:]], other)
    assert vocagno.groups(student, teacher[:0]).excess(own, []).shape == (6,)


def test_a_huge_loss_reaches_no_other_group():
    spans, cu_seqlens = np.array([[0, 1]] * 3), [0, 1, 2, 3]
    found = vocagno.groups(
        spans, spans, student_cu_seqlens=cu_seqlens, teacher_cu_seqlens=cu_seqlens
    )
    for huge in (1e17, float(np.finfo(np.float32).max)):
        excess = found.excess([1.0, 5.0, 2.0], [huge, 1.0, 1.5])
        np.testing.assert_array_equal(excess, np.float32([1 - huge, 4, 0.5]))
