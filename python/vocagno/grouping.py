"""What two tokenizers agree on: the smallest runs of both sides that cover the same text."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno import _vocagno
from vocagno._vocagno import SpanError
from vocagno.arrays import as_cu_seqlens, as_span_pair

_strict_groups: Any = _vocagno.groups  # refuses what does not fit, whatever it is


class Groups(NamedTuple):
    """G groups in the order of the text, each with a token of both sides at least.

    Ranges are half-open rows of the spans *as given*, from the first non-empty one to the last, and
    fit `reduce`: the loss of a group on either side is `reduce(nll, groups.student, how="sum")`.
    """

    student: NDArray[np.int32]
    """(G, 2)."""
    teacher: NDArray[np.int32]
    """(G, 2)."""
    cu_seqlens: NDArray[np.int64]
    """(B + 1,): which groups are of which text; [0, G] for one."""


def groups(
    student_spans: ArrayLike,
    teacher_spans: ArrayLike,
    *,
    student_cu_seqlens: ArrayLike | None = None,
    teacher_cu_seqlens: ArrayLike | None = None,
) -> Groups:
    """Groups the tokens of both sides between the places that no token of either lies across.

    Tokens that share text, directly or by way of others, are in one group, with all that `align`
    maps them to. Where both sides tile a text, groups end wherever a token ends on both: the
    alignment of TRL's GOLD, NeMo-RL and ALM. Text that only one side has is in no group, and empty
    spans (special tokens) are in none, though their rows may lie inside one.

        groups = vocagno.groups(student.spans, teacher.spans)
        own = vocagno.reduce(student_nll, groups.student, how="sum")
        other = vocagno.reduce(teacher_nll, groups.teacher, how="sum")  # of the same text

    Args: as for `align`, but the student's spans that are not empty must be in order, too.
    Returns: `Groups`, rows of both sides for each group.
    Raises: as `align`, for spans of either side.

    Cost: O(N + M) on the calling thread. int32 and int64 arrays in C order are borrowed, not
    copied; the GIL is released.
    """
    try:  # arrays that fit as they are, without looking at them twice
        return Groups(
            *_strict_groups(student_spans, teacher_spans, student_cu_seqlens, teacher_cu_seqlens)
        )
    except SpanError:
        raise
    except (TypeError, ValueError):
        pass  # not what the kernel takes: convert it, or say what is wrong
    student, teacher = as_span_pair(student_spans, teacher_spans)
    return Groups(
        *_vocagno.groups(
            student,
            teacher,
            as_cu_seqlens(student_cu_seqlens, "student_cu_seqlens"),
            as_cu_seqlens(teacher_cu_seqlens, "teacher_cu_seqlens"),
        )
    )
