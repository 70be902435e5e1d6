"""Groups of tokens: the smallest runs of both tokenizations that cover the same text."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno import _vocagno
from vocagno._vocagno import SpanError
from vocagno.alignment.arrays import as_batch, as_floats, rows_in, sums_in

_strict_groups: Any = _vocagno.groups  # rejects arguments of any other type


class Groups(NamedTuple):
    """G groups in text order, each with at least one token of each side.

    Ranges are half-open rows of the spans *as given*, from the first non-empty span to the last.
    `reduce` takes them: the loss of a group on the student's side is
    `reduce(nll, groups.student, how="sum")`.
    """

    student: NDArray[np.int32]
    """(G, 2)."""
    teacher: NDArray[np.int32]
    """(G, 2)."""
    cu_seqlens: NDArray[np.int64]
    """(B + 1,) boundaries of the texts in the groups; [0, G] for one text."""

    def excess(self, student_nll: ArrayLike, teacher_nll: ArrayLike) -> NDArray[np.float32]:
        """Excess of the student's loss over the teacher's on the text of each token's group.

        Args:
            student_nll: (N,) losses of all student tokens, in nats.
            teacher_nll: (M,) losses of all teacher tokens, in nats.
        Returns: (N,) nats per student token: the sum of the student's losses over the group minus
            the sum of the teacher's, divided by the number of its student tokens. NaN for tokens in
            no group, and for groups in which a loss is NaN, infinite or masked.
        Raises: ValueError for losses that are not one-dimensional or too few.

        Losses of empty spans that lie inside a group (special tokens) are counted.
        """
        student = _summed(student_nll, self.student, "student_nll")
        teacher = _summed(teacher_nll, self.teacher, "teacher_nll")
        places, count = rows_in(self.student)
        of_group = np.where(count > 0, (student - teacher) / np.maximum(count, 1), np.nan)
        excess = np.full(np.shape(student_nll), np.nan, np.float32)
        excess[places] = np.repeat(of_group, count)
        return excess


def _summed(losses: ArrayLike, ranges: NDArray[np.int32], name: str) -> NDArray[np.float64]:
    """(G,) sums over half-open ranges, NaN where a loss is NaN or infinite."""
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
        own = vocagno.reduce(student_nll, groups.student, how="sum")
        other = vocagno.reduce(teacher_nll, groups.teacher, how="sum")  # of the same text

    Args: as for `align`, but non-empty student spans must be in order, too.
    Returns: `Groups`, the rows of both sides for each group.
    Raises: as `align`, for spans of either side.

    Cost: O(N + M) on the calling thread. int32 and int64 arrays in C order are borrowed, not
    copied; the GIL is released.
    """
    given = student_spans, teacher_spans, student_cu_seqlens, teacher_cu_seqlens
    try:  # arrays that need no conversion, without checking them twice
        return Groups(*_strict_groups(*given))
    except SpanError:
        raise
    except (TypeError, ValueError):
        pass  # the kernel does not take them: convert them, or report what is wrong
    return Groups(*_vocagno.groups(*as_batch(*given)))
