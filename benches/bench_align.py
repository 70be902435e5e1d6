"""Alignment and reduction compared with every rival, in one run: `make bench`.

Every engine's answer is compared with NumPy's before its time counts. Rows of 2,048 tokens are
real (LaTeX under TinyLlama's and Qwen2.5's tokenizers) where the data is next to the project.
"""

from itertools import cycle

import numpy as np
import pytest

import vocagno
from conftest import rows_of, text_of, tiling_pair
from engines import ALIGNERS, numpy_columns, numpy_ranges, reference_ranges

SIZES = [1, 32, 2_048, 131_072, 1_000_000, 10_000_000]
ROWS = 64
TURNS = 16


def size_label(num_tokens):
    return "1 token" if num_tokens == 1 else f"{num_tokens:,} tokens"


def inputs(num_tokens, benchmark):
    """Spans of both sides; says in the record where they are from. Of real rows there are some, to
    be taken in turn: the branch predictor would learn a single one by heart."""
    is_row = num_tokens == 2_048
    rows = rows_of(TURNS) if is_row else [(*tiling_pair(num_tokens), "random")]
    benchmark.extra_info |= {"tokens": len(rows[0][0]), "input": rows[0][2]}
    return [row[:2] for row in rows]


def in_turn(works):
    """One function that does the next work each time, and then begins again."""
    following = cycle(works)
    return lambda: next(following)()


@pytest.mark.parametrize("engine", ALIGNERS)
@pytest.mark.parametrize("num_tokens", SIZES)
def test_align(benchmark, num_tokens, engine):
    make, most = ALIGNERS[engine]
    if num_tokens > most:
        pytest.skip(f"{engine} would take minutes")
    pairs = inputs(num_tokens, benchmark)
    benchmark.group = f"align, {size_label(num_tokens)}"
    benchmark.extra_info["engine"] = engine
    made = [make(*pair, text_of(*pair)) for pair in pairs]
    for (align, ranges), pair in zip(made, pairs, strict=True):
        np.testing.assert_array_equal(ranges(align()), reference_ranges(*pair))
    benchmark(in_turn([align for align, _ in made]))


@pytest.mark.parametrize("engine", ["vocagno", "numpy"])
@pytest.mark.parametrize("num_tokens", SIZES)
def test_align_and_reduce(benchmark, num_tokens, engine):
    pairs = inputs(num_tokens, benchmark)
    benchmark.group = f"align and reduce (max), {size_label(num_tokens)}"

    def with_numpy(student, teacher, losses):
        columns = numpy_columns(student, teacher)

        def reduce():
            padded = np.append(losses, -np.inf)  # reduceat takes no index past the end
            return np.maximum.reduceat(padded, np.stack(numpy_ranges(*columns), 1).ravel())[::2]

        return reduce

    def ours(student, teacher, losses):
        return lambda: vocagno.reduce(losses, vocagno.align(student, teacher), "max")

    rng = np.random.default_rng(2)
    arguments = [(*pair, rng.exponential(2, len(pair[1])).astype(np.float32)) for pair in pairs]
    for argument in arguments:
        np.testing.assert_array_equal(ours(*argument)(), with_numpy(*argument)())
    make = {"vocagno": ours, "numpy": with_numpy}[engine]
    label = {"vocagno": "vocagno", "numpy": "numpy.searchsorted, maximum.reduceat"}[engine]
    benchmark.extra_info["engine"] = label
    benchmark(in_turn([make(*argument) for argument in arguments]))


@pytest.mark.parametrize(
    "engine",
    [
        "vocagno, 1 thread",
        "vocagno, 2 threads",
        "numpy, row by row",
    ],
)
def test_align_a_batch(benchmark, engine):
    rows = rows_of(ROWS)
    benchmark.group = f"align, {ROWS} rows of 2,048 tokens"
    student, teacher = (np.concatenate([row[side] for row in rows]) for side in (0, 1))
    cu_seqlens = [np.cumsum([0, *(len(row[side]) for row in rows)]) for side in (0, 1)]
    benchmark.extra_info |= {"tokens": len(student), "input": rows[0][2], "engine": engine}
    pairs = [numpy_columns(*row[:2]) for row in rows]

    def with_numpy():
        ranges = [numpy_ranges(*columns) for columns in pairs]
        return np.concatenate(
            [np.stack(pair, 1) + start for pair, start in zip(ranges, cu_seqlens[1], strict=False)]
        )

    def ours():
        return vocagno.align(
            student,
            teacher,
            student_cu_seqlens=cu_seqlens[0],
            teacher_cu_seqlens=cu_seqlens[1],
            num_threads=int(engine.split()[1]),
        )

    result = benchmark(with_numpy if engine.startswith("numpy") else ours)
    np.testing.assert_array_equal(result, with_numpy())
