"""Alignment and reduction beside every rival, in one run: `make bench`.

Every engine's answer is compared with NumPy's before its time counts. Rows of 2,048 tokens are
real (LaTeX under TinyLlama's and Qwen2.5's tokenizers) where the data lies beside the project.
"""

import numpy as np
import pytest

import vocagno
from conftest import rows_of, text_of, tiling_pair
from engines import ALIGNERS, expected, numpy_columns

SIZES = [1, 32, 2_048, 131_072, 1_000_000, 10_000_000]
ROWS = 64


def named(num_tokens):
    return "1 token" if num_tokens == 1 else f"{num_tokens:,} tokens"


def inputs(num_tokens, benchmark):
    """Spans of both sides and their text; says in the record where they are from."""
    if num_tokens == 2_048:
        student, teacher, source = rows_of(1)[0]
    else:
        student, teacher, source = *tiling_pair(num_tokens), "random"
    benchmark.extra_info |= {"tokens": len(student), "input": source}
    return student, teacher


@pytest.mark.parametrize("engine", ALIGNERS)
@pytest.mark.parametrize("num_tokens", SIZES)
def test_align(benchmark, num_tokens, engine):
    make, most = ALIGNERS[engine]
    if num_tokens > most:
        pytest.skip(f"{engine} would take minutes")
    student, teacher = inputs(num_tokens, benchmark)
    benchmark.group = f"align, {named(num_tokens)}"
    benchmark.extra_info["engine"] = engine
    align, ranges = make(student, teacher, text_of(student, teacher))
    np.testing.assert_array_equal(ranges(benchmark(align)), expected(student, teacher))


@pytest.mark.parametrize("engine", ["vocagno", "numpy"])
@pytest.mark.parametrize("num_tokens", SIZES)
def test_align_and_reduce(benchmark, num_tokens, engine):
    student, teacher = inputs(num_tokens, benchmark)
    benchmark.group = f"align and reduce (max), {named(num_tokens)}"
    losses = np.random.default_rng(2).exponential(2, len(teacher)).astype(np.float32)
    columns = numpy_columns(student, teacher)

    def with_numpy():
        starts, ends, teacher_starts, teacher_ends = columns
        first = np.searchsorted(teacher_ends, starts, side="right")
        stop = np.searchsorted(teacher_starts, ends, side="left")
        padded = np.append(losses, -np.inf)  # reduceat takes no index past the end
        return np.maximum.reduceat(padded, np.stack([first, stop], 1).ravel())[::2]

    def ours():
        return vocagno.reduce(losses, vocagno.align(student, teacher), "max")

    label = {"vocagno": "vocagno", "numpy": "numpy.searchsorted, maximum.reduceat"}[engine]
    benchmark.extra_info["engine"] = label
    result = benchmark(ours if engine == "vocagno" else with_numpy)
    np.testing.assert_array_equal(result, with_numpy())


@pytest.mark.parametrize("engine", [
    "vocagno, 1 thread", "vocagno, 2 threads", "vocagno, 1 thread, out= kept",
    "vocagno, 2 threads, out= kept", "numpy, row by row",
])  # fmt: skip
def test_align_a_batch(benchmark, engine):
    rows = rows_of(ROWS)
    benchmark.group = f"align, {ROWS} rows of 2,048 tokens"
    student, teacher = (np.concatenate([row[side] for row in rows]) for side in (0, 1))
    cu_seqlens = [np.cumsum([0, *(len(row[side]) for row in rows)]) for side in (0, 1)]
    benchmark.extra_info |= {"tokens": len(student), "input": rows[0][2], "engine": engine}
    pairs = [numpy_columns(*row[:2]) for row in rows]

    def with_numpy():
        ranges = [
            (np.searchsorted(te, s, side="right"), np.searchsorted(ts, e, side="left"))
            for s, e, ts, te in pairs
        ]
        return np.concatenate([
            np.stack(pair, 1) + start for pair, start in zip(ranges, cu_seqlens[1], strict=False)
        ])  # fmt: skip

    kept = np.empty((len(student), 2), np.int32) if "out=" in engine else None

    def ours():
        return vocagno.align(
            student, teacher, student_cu_seqlens=cu_seqlens[0], teacher_cu_seqlens=cu_seqlens[1],
            out=kept, num_threads=int(engine.split()[1]),
        )  # fmt: skip

    result = benchmark(with_numpy if engine.startswith("numpy") else ours)
    np.testing.assert_array_equal(result, with_numpy())
