"""The teacher's losses of the same text: what `unit: group` compares the student's with.

N: student tokens and M: teacher tokens of all pieces of a batch, one after the other.
"""

import numpy as np
from numpy.typing import NDArray

from vocagno.alignment.arrays import rows_in, sums_in
from vocagno.alignment.groups import groups
from vocagno.guidance.mappings import ComparedTokens
from vocagno.guidance.units import NO_GROUP


def compared_groups(
    student: NDArray[np.int32],
    teacher: NDArray[np.int32],
    teacher_nll: NDArray[np.float32],
    is_predicted: NDArray[np.bool_] | None,
    ends_row: NDArray[np.bool_],
    *,
    student_cu_seqlens: NDArray[np.int64],
    teacher_cu_seqlens: NDArray[np.int64],
) -> ComparedTokens:
    """Groups of which both models have the loss of the whole text.

    Args:
        student, teacher: (N, 2) and (M, 2) spans, bytes.
        teacher_nll: (M,) nats; NaN for none.
        is_predicted: (N,) which tokens the student predicts; None for all.
        ends_row: (N,) the last token of each row.

    A group has no teacher loss if one of its teacher tokens has none, if one of its student tokens
    is not predicted (the first of a row, those of a prompt), if it holds the last token of a row,
    whose text may continue in the next one, or if the teacher's text stops inside it.
    """
    cu_seqlens = {
        "student_cu_seqlens": student_cu_seqlens,
        "teacher_cu_seqlens": teacher_cu_seqlens,
    }
    found = groups(student, teacher, **cu_seqlens)
    with_text = student[:, 0] < student[:, 1]
    whole = with_text & ~ends_row
    if is_predicted is not None:
        whole &= is_predicted
    size = sums_in(with_text, found.student)
    is_cut = sums_in(with_text & ~whole, found.student) > 0
    of_teacher = teacher[:, 0] < teacher[:, 1]
    has_loss = np.isfinite(teacher_nll)
    is_known = sums_in(of_teacher & ~has_loss, found.teacher) == 0
    is_known &= ~_stops_early(student, teacher, found.student, found.teacher, teacher_cu_seqlens)
    total = sums_in(np.where(of_teacher & has_loss, teacher_nll, 0), found.teacher)

    compared = np.flatnonzero(is_known & ~is_cut)
    of_token = np.full(len(student), NO_GROUP)
    rows, sizes = rows_in(found.student[compared])
    of_token[rows] = np.repeat(np.arange(len(compared)), sizes)
    of_token[~with_text] = NO_GROUP
    in_group = of_token != NO_GROUP
    number = compared[of_token[in_group]]

    mapping = np.full((len(student), 2), -1, np.int32)
    mapping[in_group] = found.teacher[number]
    loss = np.full(len(student), np.nan, np.float32)
    loss[in_group] = total[number] / size[number]
    return ComparedTokens(mapping, loss, of_token)


def _stops_early(
    student: NDArray[np.int32],
    teacher: NDArray[np.int32],
    student_rows: NDArray[np.int32],
    teacher_rows: NDArray[np.int32],
    teacher_cu_seqlens: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """(G,): whether the last of the teacher's tokens of a text ends inside the group."""
    with_text = np.where(teacher[:, 0] < teacher[:, 1], np.arange(len(teacher)), -1)
    last_so_far = np.maximum.accumulate(with_text)
    stops = teacher_cu_seqlens[1:][np.diff(teacher_cu_seqlens) > 0]
    is_last = np.isin(teacher_rows[:, 1] - 1, last_so_far[stops - 1])
    ends = teacher[teacher_rows[:, 1] - 1, 1] < student[student_rows[:, 1] - 1, 1]
    stops_early: NDArray[np.bool_] = is_last & ends
    return stops_early
