"""The teacher's losses of the same text: what `unit: group` compares the student's with.

N: student tokens and M: teacher tokens of all pieces of a batch, one after the other.
"""

import numpy as np
from numpy.typing import NDArray

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
    (own_first, own_stop), (first, stop) = found.student.T, found.teacher.T
    with_text = student[:, 0] < student[:, 1]
    whole = with_text & ~ends_row
    if is_predicted is not None:
        whole &= is_predicted
    size = _sums(with_text, own_first, own_stop)
    is_cut = _sums(with_text & ~whole, own_first, own_stop) > 0
    of_teacher = teacher[:, 0] < teacher[:, 1]
    has_loss = np.isfinite(teacher_nll)
    is_known = _sums(of_teacher & ~has_loss, first, stop) == 0
    is_known &= ~_stops_early(student, teacher, found.student, found.teacher, teacher_cu_seqlens)
    total = _sums(np.where(of_teacher & has_loss, teacher_nll, 0), first, stop)

    compared = np.flatnonzero(is_known & ~is_cut)
    of_token = np.full(len(student), NO_GROUP)
    rows = _within(own_first[compared], own_stop[compared])
    of_token[rows] = np.repeat(np.arange(len(compared)), (own_stop - own_first)[compared])
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


def _sums(
    values: NDArray[np.generic], first: NDArray[np.int32], stop: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Sums over half-open ranges."""
    running = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    sums: NDArray[np.float64] = running[stop] - running[first]
    return sums


def _within(first: NDArray[np.int32], stop: NDArray[np.int32]) -> NDArray[np.int64]:
    """The rows of all ranges, one range after the other."""
    sizes = (stop - first).astype(np.int64)
    before = np.cumsum(sizes) - sizes
    rows: NDArray[np.int64] = np.arange(sizes.sum()) + np.repeat(first - before, sizes)
    return rows
