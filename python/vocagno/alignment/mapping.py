"""Maps student tokens to teacher tokens, and teacher losses to student tokens.

`align` maps by the text that tokens share, and `reduce` gives one loss per token (Algorithm 1 and
Eq. 2 of arXiv 2503.19123). `chunk_map` maps equal chunks of both sides instead.
`groups` gives the smallest runs of both sides that cover the same text.

The functions here accept lists and arrays of any integer type; the compiled functions, which do the
work, accept only arrays that they can borrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno import _vocagno
from vocagno._vocagno import SpanError
from vocagno.alignment.arrays import (
    as_batch,
    as_count,
    as_floats,
    as_losses,
    as_mapping,
    rows_in,
    sums_in,
)

_strict_align: Any = _vocagno.align  # rejects arguments of any other type
_strict_reduce: Any = _vocagno.reduce
Result = TypeVar("Result")


def _call_or_convert(
    kernel: Callable[..., Result], arguments: Sequence[Any], convert: Callable[[], Sequence[Any]]
) -> Result:
    """Calls a compiled function with the arguments as they are, or converted if it rejects them.

    Converting first would check arrays twice that need no conversion. `align` and `reduce` repeat
    these lines, because loops over short texts call them and this function takes 0.3 µs.
    """
    try:
        return kernel(*arguments)
    except SpanError:
        raise
    except (TypeError, ValueError):
        pass
    return kernel(*convert())


class Reason(IntEnum):
    """The reason why a student token has no teacher loss, or MAPPED: one of the teacher tokens that
    it is mapped to has a loss.

    Compared by group, a MAPPED token may have no teacher loss, if another token of its group lacks
    one.
    """

    MAPPED = 0
    """One of its own teacher tokens has a loss; its group may have none."""
    SPECIAL = 1
    """Its span is empty: BOS, EOS, padding, a lone dummy prefix."""
    TRUNCATED = 2
    """It starts at or after the end of the last teacher token, or there is no teacher token."""
    HOLE = 3
    """Its text is in a gap between two teacher tokens."""
    UNSCORED = 4
    """It is mapped, but to no token with a finite loss."""


def align(
    student_spans: ArrayLike,
    teacher_spans: ArrayLike,
    *,
    student_cu_seqlens: ArrayLike | None = None,
    teacher_cu_seqlens: ArrayLike | None = None,
    num_threads: int | None = None,
) -> NDArray[np.int32]:
    """Maps each student token to the teacher tokens that share text with it.

    Args:
        student_spans: (N, 2) integers, half-open `[start, end)`, any unit (bytes in our pipeline).
            An empty span (`start >= end`: special tokens) covers nothing. Any order.
        teacher_spans: (M, 2) integers in the same unit. Non-empty spans must be non-decreasing in
            start and in end; empty ones may be anywhere.
        student_cu_seqlens, teacher_cu_seqlens: (B + 1,) integers each, the boundaries of B texts
            in the flat spans, `[0, ..., N]` and `[0, ..., M]`; both or neither (one text).
        num_threads: upper limit for a batch; default `RAYON_NUM_THREADS`, else the number of cores.
            A batch gets at most one thread per row and per 8,192 tokens of both sides, and a single
            thread below 32,768 tokens.
    Returns: (N, 2) int32, half-open ranges of rows of `teacher_spans` *as given*, from the first to
        the last non-empty span that overlaps the student's; (-1, -1) where there is none. Rows of
        empty teacher spans may lie inside a range: give them a NaN loss.
    Raises: SpanError (a ValueError) for teacher spans out of order, naming batch row, token and
        spans; TypeError for values that are not integers or are masked; ValueError for shapes,
        boundaries and `num_threads`; MemoryError.

    Cost: O(N + M) for sorted spans, O(N log M) for any. int32 and int64 arrays in C order are
    borrowed, not copied; the GIL is released. Source: arXiv 2503.19123, Algorithm 1.
    """
    try:  # arrays that need no conversion, without checking them twice
        mapping: NDArray[np.int32] = _strict_align(
            student_spans, teacher_spans, student_cu_seqlens, teacher_cu_seqlens, num_threads
        )
        return mapping
    except SpanError:
        raise
    except (TypeError, ValueError):
        pass  # the kernel does not take them: convert them, or report what is wrong
    batch = as_batch(student_spans, teacher_spans, student_cu_seqlens, teacher_cu_seqlens)
    return _vocagno.align(*batch, num_threads)


def starts(
    student_spans: ArrayLike,
    teacher_spans: ArrayLike,
    *,
    student_cu_seqlens: ArrayLike | None = None,
    teacher_cu_seqlens: ArrayLike | None = None,
    num_threads: int | None = None,
) -> NDArray[np.int32]:
    """Finds the teacher token that starts at the byte at which each student token starts.

    At such a byte both models predict what comes after the same text (see `vocagno.buckets`).

    A token starts where its span starts if that is not empty, and the non-empty span before it ends
    there or earlier. Special tokens and lone dummy prefixes start nowhere. Of tokens that share the
    span of one character (spans from offsets), only the first starts.

    Args: as for `align`, but non-empty student spans must be in order, too.
    Returns: (N,) int32, rows of `teacher_spans` *as given*, none of them twice; -1 for none.
    Raises: the errors of `align`, for spans of either side.

    Cost: O(N + M). Arrays are borrowed as by `align`, and the GIL is released.
    """
    batch = student_spans, teacher_spans, student_cu_seqlens, teacher_cu_seqlens
    return _call_or_convert(
        _vocagno.starts, (*batch, num_threads), lambda: (*as_batch(*batch), num_threads)
    )


def unmapped_reasons(
    student_spans: ArrayLike,
    teacher_spans: ArrayLike,
    mapping: ArrayLike,
    *,
    losses: ArrayLike | None = None,
    student_cu_seqlens: ArrayLike | None = None,
    teacher_cu_seqlens: ArrayLike | None = None,
) -> NDArray[np.uint8]:
    """Tells why each student token has no teacher loss, or MAPPED if it has one.

    Args: as for `align`; mapping: its result; losses: (M,) teacher losses in nats, without which no
        token is UNSCORED.
    Returns: (N,) uint8, values of `Reason`.
    Raises: ValueError for a range outside the teacher spans of the token's own text; otherwise the
        errors of `align`.

    Cost: O(N + M) for ranges of any length. The GIL is released.
    """
    spans, cu_seqlens = (student_spans, teacher_spans), (student_cu_seqlens, teacher_cu_seqlens)

    def convert() -> Sequence[Any]:
        student, teacher, *boundaries = as_batch(*spans, *cu_seqlens)
        loss_array = None if losses is None else as_losses(losses)
        return student, teacher, as_mapping(mapping), loss_array, *boundaries

    arguments = (*spans, mapping, losses, *cu_seqlens)
    return _call_or_convert(_vocagno.unmapped_reasons, arguments, convert)


class Overlap(NamedTuple):
    """The share of text that each student token has in common with its teacher tokens.

    Both columns are (N,) float64, from 0 to 1. `s` is the student's span, `t` the union of the
    teacher spans in its range. NaN stands for a token without text; `np.nanmean` skips it.
    """

    iou: NDArray[np.float64]
    """|s ∩ t| / |s ∪ t|, the intersection over union."""
    ios: NDArray[np.float64]
    """|s ∩ t| / |s|, the share of the student token that the teacher tokens cover."""


def overlap(
    student_spans: ArrayLike,
    teacher_spans: ArrayLike,
    mapping: ArrayLike,
    *,
    student_cu_seqlens: ArrayLike | None = None,
    teacher_cu_seqlens: ArrayLike | None = None,
) -> Overlap:
    """Measures the quality of a mapping: the text that each student token shares with its range.

    Args: spans and boundaries as for `align`; mapping: (N, 2) ranges of teacher rows of the token's
        own text, from `align`, `chunk_map` (rows of one text) or elsewhere. A range may miss text
        of the token, or be far away from it.
    Returns: IoU and IoS, measured in the unit of the spans; 0 for an unmapped token with text, NaN
        for one without. Empty teacher spans cover nothing; repeated and nested ones count once.
    Raises: SpanError (a ValueError) for teacher spans out of order, naming batch row, token and
        spans, and for a range outside these spans; otherwise the errors of `align`.

    Cost: O(M + N log M) for ranges of any length. int32 and int64 arrays in C order are
    borrowed, not copied; the GIL is released. Source: arXiv 2503.19123, section 2 and Fig. 3.
    """
    spans, cu_seqlens = (student_spans, teacher_spans), (student_cu_seqlens, teacher_cu_seqlens)

    def convert() -> Sequence[Any]:
        student, teacher, *boundaries = as_batch(*spans, *cu_seqlens)
        return student, teacher, as_mapping(mapping), *boundaries

    return Overlap(*_call_or_convert(_vocagno.overlap, (*spans, mapping, *cu_seqlens), convert))


Reduction = Literal["max", "mean", "sum", "min"]


def reduce(losses: ArrayLike, mapping: ArrayLike, how: Reduction = "max") -> NDArray[np.float32]:
    """Reduces the teacher losses over the range of each student token.

    Args:
        losses: (M,) teacher losses in nats, one for each row of the teacher spans that `mapping`
            was made from; float32 and float64 are borrowed. NaN, infinite and masked losses
            (`numpy.ma`) mean "no loss".
        mapping: (N, 2) ranges from `align`.
        how: "max" (the paper's choice), "mean", "sum" or "min".
    Returns: (N,) float32; NaN where the token is unmapped or no loss in its range is finite.
    Raises: ValueError for a range outside the losses (names the token) or an unknown `how`.

    Cost: O(N + total length of the ranges). The GIL is released; Ctrl-C takes effect when the call
    returns. Source: arXiv 2503.19123, Eq. 2 and section 6.3.
    """
    try:  # as in `align`
        reduced: NDArray[np.float32] = _strict_reduce(losses, mapping, how)
        return reduced
    except SpanError:
        raise
    except (TypeError, ValueError):
        pass
    return _vocagno.reduce(as_losses(losses), as_mapping(mapping), how)


def chunk_boundaries(n: SupportsIndex, chunks: SupportsIndex) -> NDArray[np.int64]:
    """Computes boundaries that cut `n` tokens into chunks whose sizes differ by at most one.

    Returns: (chunks + 1,) int64, `i * n // chunks`. Chunk i holds the tokens from boundary i up to
        boundary i + 1; none if these are equal.
    Raises: TypeError for an argument that is not an integer; ValueError for n < 0, for chunks < 1
        or above 2**31 - 1; MemoryError.

    Source: arXiv 2503.19123, section 2.
    """
    return _vocagno.chunk_boundaries(as_count(n, "n", 0), as_count(chunks, "chunks", 1))


def chunk_map(
    n_student: SupportsIndex, n_teacher: SupportsIndex, chunks: SupportsIndex
) -> NDArray[np.int32]:
    """Maps each student token of a text to the teacher tokens of the same chunk.

    `chunk_boundaries` cuts both token sequences, regardless of the text that the tokens cover.
    `reduce(losses, chunk_map(n_student, len(losses), 32))` gives each token the teacher loss of its
    chunk. `overlap` measures how much text the two chunks share.

    Returns: (n_student, 2) int32, half-open ranges of teacher rows; (-1, -1) where the token's
        chunk has no teacher token.
    Raises: TypeError for an argument that is not an integer; ValueError for token counts below 0 or
        above 2**31 - 1, and for chunks < 1; MemoryError.

    Cost: O(n_student) for any number of chunks. Source: arXiv 2503.19123, section 6.1 and Table 2.
    """
    return _vocagno.chunk_map(
        as_count(n_student, "n_student", 0),
        as_count(n_teacher, "n_teacher", 0),
        as_count(chunks, "chunks", 1),
    )


class Groups(NamedTuple):
    """Rows of both sides for each of G groups, in the order of the text. A group has at least one
    token of each side.

    Ranges are half-open rows of the spans *as given*, from the first non-empty span to the last.
    `reduce` takes them: the loss of a group on the student's side is
    `reduce(nll, groups.student, how="sum")`.
    """

    student: NDArray[np.int32]
    """(G, 2) half-open ranges of student rows."""
    teacher: NDArray[np.int32]
    """(G, 2) half-open ranges of teacher rows."""
    cu_seqlens: NDArray[np.int64]
    """(B + 1,) boundaries of the texts in the groups; [0, G] for one text."""

    def excess(self, student_nll: ArrayLike, teacher_nll: ArrayLike) -> NDArray[np.float32]:
        """Computes how far the student's loss exceeds the teacher's on the text of each group.

        It is for analyses: a training step calls `guidance.loss.excess_loss`.

        Args:
            student_nll: (N,) losses of all student tokens, in nats.
            teacher_nll: (M,) losses of all teacher tokens, in nats.
        Returns: (N,) nats per student token: the sum of the student's losses over the group minus
            the sum of the teacher's, divided by the number of its student tokens. NaN for tokens in
            no group, and for groups in which a loss is NaN, infinite or masked.
        Raises: ValueError for losses that are not one-dimensional or too few.

        Losses of empty spans that lie inside a group (special tokens) are counted here; training
        (`guidance.comparison.compared_groups`) skips them.
        """
        student_sums = _sum_losses(student_nll, self.student, "student_nll")
        teacher_sums = _sum_losses(teacher_nll, self.teacher, "teacher_nll")
        rows, sizes = rows_in(self.student)
        group_excess = (student_sums - teacher_sums) / np.maximum(sizes, 1)
        excess = np.full(np.shape(student_nll), np.nan, np.float32)
        excess[rows] = np.repeat(group_excess, sizes)
        return excess


def _sum_losses(losses: ArrayLike, ranges: NDArray[np.int32], name: str) -> NDArray[np.float64]:
    """Sums losses over each of (G, 2) half-open ranges; NaN where a loss is NaN or infinite."""
    values = as_floats(losses, np.float64, name)
    least = ranges[:, 1].max(initial=0)
    if values.ndim != 1 or len(values) < least:
        raise ValueError(
            f"{name}: expected one loss for each token, at least {least}, got {values.shape}"
        )
    is_finite = np.isfinite(values)
    sums = sums_in(np.where(is_finite, values, 0.0), ranges)
    return np.where(sums_in(~is_finite, ranges) == 0, sums, np.nan)


def groups(
    student_spans: ArrayLike,
    teacher_spans: ArrayLike,
    *,
    student_cu_seqlens: ArrayLike | None = None,
    teacher_cu_seqlens: ArrayLike | None = None,
) -> Groups:
    """Groups the tokens of both sides, cutting at every position that no token crosses.

    Tokens that share text, directly or through other tokens, are in one group, with all tokens that
    `align` maps them to. If both sides tile a text, a group ends where a token ends on both sides:
    the alignment of TRL's GOLD, NeMo-RL and ALM. Text that only one side covers is in no group.
    Empty spans (special tokens) are in no group, though their rows may lie inside one.

        groups = vocagno.groups(student.spans, teacher.spans)
        student_loss = vocagno.reduce(student_nll, groups.student, how="sum")
        teacher_loss = vocagno.reduce(teacher_nll, groups.teacher, how="sum")  # of the same text

    Args: as for `align`, but non-empty student spans must be in order, too.
    Returns: `Groups`, the rows of both sides for each group.
    Raises: the errors of `align`, for spans of either side.

    Cost: O(N + M) on the calling thread. int32 and int64 arrays in C order are borrowed, not
    copied; the GIL is released.
    """
    batch = student_spans, teacher_spans, student_cu_seqlens, teacher_cu_seqlens
    return Groups(*_call_or_convert(_vocagno.groups, batch, lambda: as_batch(*batch)))
