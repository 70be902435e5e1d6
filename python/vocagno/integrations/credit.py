"""A teacher's log-probabilities of the tokens that a student has sampled."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.alignment.arrays import as_floats, rows_in
from vocagno.alignment.mapping import groups
from vocagno.errors import InputError
from vocagno.integrations.pretokenized import spans_of_same_responses, without_spans
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans

_ABOVE_ZERO = 1e-3
"""The most by which rounding may put a log-probability above zero."""


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
    only: Literal["same_ends"] | None = None,
    strict: bool = True,
) -> NDArray[np.float64]:
    """Gives each sampled token the teacher's log-probability of it, for on-policy distillation.

    Both sides are cut into `groups`, the smallest runs of tokens with the same text. The sum of the
    teacher's log-probabilities over a group is divided among its student tokens, in proportion to
    the student's own log-probabilities or evenly. So the sums over a group, and over a text of
    comparable groups, are the teacher's. With one token on each side nothing is divided.

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
        student_logprobs: (N,) nats; default: the sum of a group is divided evenly.
        student_cu_seqlens, teacher_cu_seqlens: (B + 1,) boundaries; default: one text.
        only: "same_ends": only groups of one student token and one teacher token have a credit.
            In arXiv 2610.08448, sums divided among several tokens made all 18 settings worse.
        strict: True refuses texts that differ, or whose ids do not determine them; False gives
            their tokens NaN.
    Returns: (N,) nats. If both sides of a text end in one special token (end of text), that of the
        student gets the teacher's. NaN for other special tokens that are not in the text, and for
        groups that cannot be compared: a special token of one side faces ordinary tokens of the
        other; a log-probability is NaN or infinite; the text from an incomplete character on (a
        response cut by its limit of tokens), which the other side may lack or have as U+FFFD.
    Raises: TokenizerError for texts that `strict` refuses; InputError for another `only`;
        ValueError for another number of log-probabilities than ids, or for positive ones (losses
        are minus log-probabilities).
    """
    if only not in (None, "same_ends"):
        raise InputError(f'only: expected "same_ends", or None for all groups, got {only!r}')
    student_side, teacher_side, same_bytes = spans_of_same_responses(
        student,
        without_spans(student_ids, student_cu_seqlens),
        teacher,
        without_spans(teacher_ids, teacher_cu_seqlens),
        strict=strict,
    )
    logprobs = _logprobs(teacher_logprobs, teacher_side, "teacher_logprobs")
    # Without the student's log-probabilities every token of a group has the same share.
    shares = np.ones(len(student_side.ids))
    if student_logprobs is not None:
        shares = np.maximum(-_logprobs(student_logprobs, student_side, "student_logprobs"), 0)
    is_beyond = _is_beyond(student_side, same_bytes)
    shares[is_beyond] = np.nan
    # A NaN in a group makes the sum of the group NaN: what is beyond spoils the groups that it is
    # in.
    logprobs[_is_beyond(teacher_side, same_bytes)] = np.nan
    ranges = groups(
        student_side.spans,
        teacher_side.spans,
        student_cu_seqlens=student_side.cu_seqlens,
        teacher_cu_seqlens=teacher_side.cu_seqlens,
    )
    student_special = _is_special(student, student_side.ids)
    teacher_special = _is_special(teacher, teacher_side.ids)
    student_groups = _group_numbers(ranges.student, student_side, student_special)
    teacher_groups = _group_numbers(ranges.teacher, teacher_side, teacher_special)
    is_comparable = _is_comparable(
        (student_groups, student_special),
        (teacher_groups, teacher_special),
        len(ranges.student),
        only_single=only is not None,
    )
    credits = _divide(logprobs, teacher_groups, shares, student_groups, is_comparable)
    student_ends = _ends(student_side, student_special)
    teacher_ends = _ends(teacher_side, teacher_special)
    # Two ends without text are in no group, and still are the same event: the text is over.
    both = (student_ends >= 0) & (teacher_ends >= 0)
    credits[student_ends[both]] = logprobs[teacher_ends[both]]
    # Again: the end of a text behind a cut may just have been given a credit.
    credits[is_beyond] = np.nan
    return credits


def _is_beyond(tokens: TokenizedTexts, same_bytes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) True for a token that ends after the bytes that both sides of its text have."""
    is_beyond: NDArray[np.bool_]
    is_beyond = tokens.spans[:, 1] > np.repeat(same_bytes, np.diff(tokens.cu_seqlens))
    return is_beyond


def _is_special(side: TokenSpans, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """(n,) True for the ids of special tokens."""
    # A head may have ids that the tokenizer lacks, and without `strict` a student may have sampled
    # one. Its text gets NaN in any case.
    return side.is_special(np.where(ids < side.vocabulary_size, ids, 0))


def _logprobs(values: ArrayLike, tokens: TokenizedTexts, name: str) -> NDArray[np.float64]:
    """The log-probabilities of all tokens, as an array of our own; NaN for infinite ones.

    Raises: ValueError for another number of them than tokens, or for positive ones.
    """
    logprobs = as_floats(values, np.float64, name)
    if logprobs.shape != tokens.ids.shape:
        raise ValueError(
            f"{name}: expected one for each of {len(tokens.ids)} ids, got shape {logprobs.shape}"
        )
    logprobs = np.where(np.isfinite(logprobs), logprobs, np.nan)
    if (logprobs > _ABOVE_ZERO).any():
        raise ValueError(
            f"{name}: {np.nanmax(logprobs):.3g} is no log-probability, which is 0 at most; losses "
            "have the other sign"
        )
    return logprobs


def _group_numbers(
    ranges: NDArray[np.int32], tokens: TokenizedTexts, is_special: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(n,) the group of each token; -1 for none, and for special tokens without text.

    Any other token without text is a dummy prefix, which belongs to the group of the next token.
    """
    rows, count = rows_in(ranges)
    numbers = np.full(len(tokens.ids), -1)
    numbers[rows] = np.repeat(np.arange(len(ranges)), count)
    has_text = tokens.spans[:, 0] < tokens.spans[:, 1]
    numbers[~has_text] = -1
    # One place more than tokens: an empty first text ends at place -1, which must be no token's.
    is_last = np.zeros(len(numbers) + 1, bool)
    # The token after the last one of a text belongs to the next text: no prefix of it.
    is_last[tokens.cu_seqlens[1:] - 1] = True
    is_prefix = ~has_text[:-1] & ~is_special[:-1] & has_text[1:] & ~is_last[: len(numbers)][:-1]
    before = np.flatnonzero(is_prefix)
    numbers[before] = numbers[before + 1]
    return numbers


def _is_comparable(
    student: tuple[NDArray[np.int64], NDArray[np.bool_]],
    teacher: tuple[NDArray[np.int64], NDArray[np.bool_]],
    num_groups: int,
    *,
    only_single: bool,
) -> NDArray[np.bool_]:
    """(G,) True for groups that have only ordinary tokens, or only special ones.

    Args:
        student, teacher: the group of each token, and True for special tokens.
        only_single: True also requires one token on each side.
    """
    has = np.zeros((2, num_groups), bool)
    is_single = np.ones(num_groups, bool)
    for numbers, is_special in (student, teacher):
        inside = numbers >= 0
        has[is_special[inside].astype(int), numbers[inside]] = True
        is_single &= np.bincount(numbers[inside], minlength=num_groups) == 1
    is_comparable: NDArray[np.bool_] = ~has.all(0) & (is_single | (not only_single))
    return is_comparable


def _divide(
    logprobs: NDArray[np.float64],
    teacher_groups: NDArray[np.int64],
    shares: NDArray[np.float64],
    student_groups: NDArray[np.int64],
    is_comparable: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """(N,) the teacher's sum over each comparable group, divided by `shares`; elsewhere NaN."""
    rows, teacher_rows = np.flatnonzero(student_groups >= 0), np.flatnonzero(teacher_groups >= 0)
    number, share, num_groups = student_groups[rows], shares[rows], len(is_comparable)
    total = np.bincount(teacher_groups[teacher_rows], logprobs[teacher_rows], num_groups)
    total = np.where(is_comparable, total, np.nan)
    whole = np.bincount(number, share, num_groups)
    share = np.where(whole[number] == 0, 1.0, share)  # the student was sure of each: evenly
    whole = np.bincount(number, share, num_groups)
    credits = np.full(len(student_groups), np.nan)
    credits[rows] = total[number] * (share / whole[number])
    return credits


def _ends(tokens: TokenizedTexts, is_special: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(B,) the row of a special token that ends a text, the only one there; -1 for none."""
    # One place more than tokens, for the index -1 of an empty first text.
    has_text = np.append(tokens.spans[:, 0] < tokens.spans[:, 1], True)
    is_end_token = np.append(is_special, False) & ~has_text
    first, stop = tokens.cu_seqlens[:-1], tokens.cu_seqlens[1:]
    is_alone = (stop - first == 1) | has_text[np.maximum(stop - 2, 0)]
    return np.where((stop > first) & is_end_token[stop - 1] & is_alone, stop - 1, -1)
