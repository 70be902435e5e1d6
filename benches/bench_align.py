"""Alignment and reduction beside NumPy: `make bench`.

Every engine's answer is compared with NumPy's before its time counts. The rival is
`numpy.searchsorted` in its best form: contiguous int32 starts and ends, made beforehand.
"""

import numpy as np
import pytest

import vocagno
from conftest import tiling_spans

SIZES = [32, 2_048, 1_000_000]


class NumPyAligner:
    """Two binary searches a token over arrays that are contiguous already."""

    def __init__(self, student, teacher):
        self.starts, self.ends = (np.ascontiguousarray(column) for column in student.T)
        self.teacher_starts, self.teacher_ends = (
            np.ascontiguousarray(column) for column in teacher.T
        )

    def align(self):
        first = np.searchsorted(self.teacher_ends, self.starts, side="right")
        stop = np.searchsorted(self.teacher_starts, self.ends, side="left")
        return first, stop

    def align_and_reduce(self, losses):
        """The maximum over each range; every range holds a token, since the spans tile."""
        first, stop = self.align()
        pairs = np.stack([first, stop], 1).ravel()
        padded = np.append(losses, -np.inf)  # reduceat takes no index past the end
        return np.maximum.reduceat(padded, pairs)[::2]


def inputs(num_tokens):
    """Student and teacher spans of one text, cut to the same length, and teacher losses."""
    student, teacher = tiling_spans(num_tokens, 0), tiling_spans(num_tokens, 1)
    end = min(student[-1, 1], teacher[-1, 1])
    student, teacher = student[student[:, 1] <= end], teacher[teacher[:, 0] < end]
    losses = np.random.default_rng(2).exponential(2, len(teacher)).astype(np.float32)
    return student, teacher, losses


@pytest.mark.parametrize("engine", ["vocagno", "numpy"])
@pytest.mark.parametrize("num_tokens", SIZES)
def test_align(benchmark, num_tokens, engine):
    benchmark.group = f"align, {num_tokens:,} tokens"
    student, teacher, _ = inputs(num_tokens)
    rival = NumPyAligner(student, teacher)
    if engine == "numpy":
        result = np.stack(benchmark(rival.align), 1)
    else:
        result = benchmark(vocagno.align, student, teacher)
    np.testing.assert_array_equal(result, np.stack(rival.align(), 1))
    benchmark.extra_info["student_tokens_per_s"] = round(len(student) / benchmark.stats["median"])


@pytest.mark.parametrize("engine", ["vocagno", "numpy"])
@pytest.mark.parametrize("num_tokens", SIZES)
def test_align_and_reduce(benchmark, num_tokens, engine):
    benchmark.group = f"align and reduce (max), {num_tokens:,} tokens"
    student, teacher, losses = inputs(num_tokens)
    rival = NumPyAligner(student, teacher)
    if engine == "numpy":
        result = benchmark(rival.align_and_reduce, losses)
    else:
        result = benchmark(lambda: vocagno.reduce(losses, vocagno.align(student, teacher), "max"))
    np.testing.assert_array_equal(result, rival.align_and_reduce(losses))
    benchmark.extra_info["student_tokens_per_s"] = round(len(student) / benchmark.stats["median"])
