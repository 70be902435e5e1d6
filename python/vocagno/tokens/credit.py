"""A teacher's log-probabilities of the tokens that a student has sampled."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.alignment.arrays import as_floats, rows_in
from vocagno.alignment.groups import groups
from vocagno.tokens.pretokenized import spans_of_same_responses
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans

_ABOVE_ZERO = 1e-3
"""Most by which rounding may put a log-probability above zero."""


def credit(
    student: TokenSpans,
    student_ids: ArrayLike,
    teacher: TokenSpans,
    teacher_ids: ArrayLike,
    teacher_logprobs: ArrayLike,
    *,
    student_logprobs: ArrayLike | None = None,
    student_cu_seqlens: ArrayLike | None = None,
    teacher_cu_seqlens: ArrayLike | None = None,
    strict: bool = True,
) -> NDArray[np.float64]:
    """The teacher's log-probability of each sampled token: what on-policy distillation needs.

    Both sides are cut into `groups`, the smallest runs of tokens with the same text. The sum of the
    teacher's log-probabilities over a group is dealt out to its student tokens in proportion to the
    student's own log-probabilities, or evenly. So the sums over a group, and over a text, are the
    teacher's. With one token on each side nothing is shared.

        credits = vocagno.credit(small, ids, large, other_ids, other_logprobs,
                                 student_logprobs=logprobs)
        reward = credits - logprobs  # minus the reverse KL

    Args:
        student_ids, teacher_ids: (N,) and (M,) ids of the same B texts, one after the other, such
            as sampled responses. The student's need not be what its tokenizer makes of the text. A
            space that only one side has, at the start of a text or after an added token, is taken
            for a dummy prefix, if that side's tokenizer has one; a space of both sides is text. So
            responses need no prompt.
        teacher_logprobs: (M,) nats; NaN or masked where there is none.
        student_logprobs: (N,) nats; default: the sum of a group is dealt out evenly.
        student_cu_seqlens, teacher_cu_seqlens: (B + 1,) boundaries; default: one text.
        strict: as `spans_of_same_texts`; False: tokens of texts that differ get NaN.
    Returns: (N,) nats. NaN for special tokens that are not in the text, and for groups with a
        log-probability that is NaN or infinite. If both sides of a text end in one special token
        (end of text), that of the student gets the teacher's.
    Raises: TokenizerError as `spans_of_same_texts`; ValueError for another number of
        log-probabilities than ids, or for positive ones (losses are minus log-probabilities).
    """
    own, other = spans_of_same_responses(
        student,
        student_ids,
        teacher,
        teacher_ids,
        student_cu_seqlens=student_cu_seqlens,
        teacher_cu_seqlens=teacher_cu_seqlens,
        strict=strict,
    )
    given = _checked(teacher_logprobs, other, "teacher_logprobs")
    shares = np.ones(len(own.ids))
    if student_logprobs is not None:
        shares = np.maximum(-_checked(student_logprobs, own, "student_logprobs"), 0)
    cu_seqlens = {"student_cu_seqlens": own.cu_seqlens, "teacher_cu_seqlens": other.cu_seqlens}
    found = groups(own.spans, other.spans, **cu_seqlens)
    of_student = _numbers(found.student, own, student.is_special(own.ids))
    of_teacher = _numbers(found.teacher, other, teacher.is_special(other.ids))
    credits = _dealt(given, of_teacher, shares, of_student, len(found.student))
    ends = _ends(own, student.is_special(own.ids))
    theirs = _ends(other, teacher.is_special(other.ids))
    both = (ends >= 0) & (theirs >= 0)
    credits[ends[both]] = given[theirs[both]]
    return credits


def _checked(logprobs: ArrayLike, tokens: TokenizedTexts, name: str) -> NDArray[np.float64]:
    """Log-probabilities of all tokens, NaN for infinite ones."""
    found = as_floats(logprobs, np.float64, name)
    if found.shape != tokens.ids.shape:
        raise ValueError(
            f"{name}: expected one for each of {len(tokens.ids)} ids, got shape {found.shape}"
        )
    found = np.where(np.isfinite(found), found, np.nan)
    if (found > _ABOVE_ZERO).any():
        raise ValueError(
            f"{name}: {np.nanmax(found):.3g} is no log-probability, which is 0 at most; losses "
            "have the other sign"
        )
    return found


def _numbers(
    ranges: NDArray[np.int32], tokens: TokenizedTexts, is_special: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(n,) the group of each token, -1 for none and for special tokens without text.

    Any other token without text is a dummy prefix, which belongs to what follows.
    """
    rows, count = rows_in(ranges)
    numbers = np.full(len(tokens.ids), -1)
    numbers[rows] = np.repeat(np.arange(len(ranges)), count)
    has_text = tokens.spans[:, 0] < tokens.spans[:, 1]
    numbers[~has_text] = -1
    is_last = np.zeros(len(numbers) + 1, bool)
    is_last[tokens.cu_seqlens[1:] - 1] = True
    is_prefix = ~has_text[:-1] & ~is_special[:-1] & has_text[1:] & ~is_last[: len(numbers)][:-1]
    before = np.flatnonzero(is_prefix)
    numbers[before] = numbers[before + 1]
    return numbers


def _dealt(
    given: NDArray[np.float64],
    of_teacher: NDArray[np.int64],
    shares: NDArray[np.float64],
    of_student: NDArray[np.int64],
    num_groups: int,
) -> NDArray[np.float64]:
    """(N,) the teacher's sum of each group, dealt out by `shares`; NaN for tokens in none."""
    rows, other_rows = np.flatnonzero(of_student >= 0), np.flatnonzero(of_teacher >= 0)
    number, share = of_student[rows], shares[rows]
    total = np.bincount(of_teacher[other_rows], given[other_rows], num_groups)
    whole = np.bincount(number, share, num_groups)
    share = np.where(whole[number] == 0, 1.0, share)  # the student was sure of each: evenly
    whole = np.bincount(number, share, num_groups)
    credits = np.full(len(of_student), np.nan)
    credits[rows] = total[number] * (share / whole[number])
    return credits


def _ends(tokens: TokenizedTexts, is_special: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(B,) the row of the only special token at the end of each text, -1 for none."""
    has_text = np.append(tokens.spans[:, 0] < tokens.spans[:, 1], True)
    is_end_token = np.append(is_special, False) & ~has_text
    first, stop = tokens.cu_seqlens[:-1], tokens.cu_seqlens[1:]
    is_alone = (stop - first == 1) | has_text[np.maximum(stop - 2, 0)]
    is_end = (stop > first) & is_end_token[stop - 1] & is_alone
    return np.where(is_end, stop - 1, -1)
