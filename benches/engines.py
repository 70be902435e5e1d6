"""The aligners of the benchmarks: ours, the rivals, and the limit (copying the same bytes).

Every engine gets its input in its own best form, made beforehand: contiguous int32 columns for
`searchsorted`, strings for a diff, lists of pairs for a walk in Python.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vocagno


def numpy_columns(student: Any, teacher: Any) -> tuple[Any, Any, Any, Any]:
    starts, ends = (np.ascontiguousarray(column) for column in student.T)
    teacher_starts, teacher_ends = (np.ascontiguousarray(column) for column in teacher.T)
    return starts, ends, teacher_starts, teacher_ends


def numpy_ranges(starts: Any, ends: Any, teacher_starts: Any, teacher_ends: Any) -> tuple[Any, Any]:
    """Finds the first row and the stop of each token, from `numpy_columns`: what is timed as
    NumPy."""
    first = np.searchsorted(teacher_ends, starts, side="right")
    return first, np.searchsorted(teacher_starts, ends, side="left")


def reference_ranges(student: Any, teacher: Any) -> Any:
    """The ranges that every engine must give, by NumPy."""
    return np.stack(numpy_ranges(*numpy_columns(student, teacher)), 1)


def ours(student: Any, teacher: Any, text: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: vocagno.align(student, teacher), lambda answer: answer


def with_numpy(student: Any, teacher: Any, text: str) -> Any:
    columns = numpy_columns(student, teacher)
    return lambda: numpy_ranges(*columns), lambda answer: np.stack(answer, 1)


def with_torch(student: Any, teacher: Any, text: str) -> Any:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    columns = [torch.from_numpy(column) for column in numpy_columns(student, teacher)]
    starts, ends, teacher_starts, teacher_ends = columns

    def align() -> Any:
        first = torch.searchsorted(teacher_ends, starts, right=True)
        return first, torch.searchsorted(teacher_starts, ends, right=False)

    return align, lambda answer: np.stack([column.numpy() for column in answer], 1)


def with_spacy(student: Any, teacher: Any, text: str) -> Any:
    """A diff of the tokens' strings."""
    spacy_alignments = pytest.importorskip("spacy_alignments")
    sides = [[text[start:end] for start, end in spans] for spans in (student, teacher)]

    def ranges(answer: Any) -> Any:
        return np.array([[rows[0], rows[-1] + 1] for rows in answer[0]])

    return lambda: spacy_alignments.get_alignments(*sides), ranges


def with_trl(student: Any, teacher: Any, text: str) -> Any:
    """The alignment of TRL's GOLD trainer, its own function: groups that end together."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    gold = pytest.importorskip("trl.experimental.gold.gold_trainer")
    sides = [list(map(tuple, spans.tolist())) for spans in (student, teacher)]

    def ranges(answer: Any) -> Any:
        """Our own ranges, if each lies in its group; a group holds nothing finer."""
        mapping = reference_ranges(student, teacher)
        for student_rows, teacher_rows in zip(*answer, strict=True):
            assert (mapping[student_rows, 0] >= teacher_rows[0]).all()
            assert (mapping[student_rows, 1] <= teacher_rows[-1] + 1).all()
        return mapping

    return lambda: gold.ULDLoss._align_by_byte_offsets(*sides), ranges


def copying(student: Any, teacher: Any, text: str) -> Any:
    """Reads what an aligner must read, writes what it must write."""
    source, target = np.concatenate([student, teacher]), np.empty_like(student)
    read = np.empty_like(source)
    answer = reference_ranges(student, teacher)

    def copy() -> Any:
        np.copyto(read, source)
        np.copyto(target, student)

    return copy, lambda _: answer


ALIGNERS = {
    "vocagno": (ours, 10**9),
    "numpy.searchsorted": (with_numpy, 10**9),
    "torch.searchsorted": (with_torch, 10**9),
    "TRL GOLD": (with_trl, 200_000),
    "spacy-alignments": (with_spacy, 10_000),
    "copy": (copying, 10**9),
}
"""Each with the largest number of tokens that it is asked to align."""
