"""What an alignment costs against tokens of either side, rows and threads, and in memory."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import vocagno
from conftest import tiling_pair
from engines import ALIGNERS, reference_ranges

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize("engine", ["vocagno", "numpy.searchsorted"])
@pytest.mark.parametrize("num_tokens", [4**power for power in range(13)])
def test_student_tokens(benchmark, num_tokens, engine):
    student, teacher = tiling_pair(num_tokens)
    benchmark.group = "scaling: tokens of both sides"
    benchmark.extra_info |= {"tokens": len(student), "engine": engine, "at": num_tokens}
    make, _ = ALIGNERS[engine]
    align, ranges = make(student, teacher, "")
    np.testing.assert_array_equal(ranges(benchmark(align)), reference_ranges(student, teacher))


@pytest.mark.parametrize("num_teacher", [64, 1_024, 16_384, 65_536, 262_144])
def test_teacher_tokens(benchmark, num_teacher):
    """The same text and student; the teacher's tokens are 4,096 bytes long, at last one byte."""
    student = np.stack([np.arange(65_536) * 4, np.arange(65_536) * 4 + 4], 1).astype(np.int32)
    length = 262_144 // num_teacher
    starts = np.arange(num_teacher, dtype=np.int32) * length
    teacher = np.stack([starts, starts + length], 1).astype(np.int32)
    benchmark.group = "scaling: teacher tokens, 65,536 student tokens"
    engine = f"vocagno, {num_teacher:,} teacher tokens"
    benchmark.extra_info |= {"tokens": len(student), "engine": engine, "at": num_teacher}
    result = benchmark(lambda: vocagno.align(student, teacher))
    np.testing.assert_array_equal(result, reference_ranges(student, teacher))


def batch_of(rows):
    pairs = [tiling_pair(2_048)] * rows
    spans = [np.concatenate([pair[side] for pair in pairs]) for side in (0, 1)]
    cu_seqlens = [np.arange(rows + 1) * len(pairs[0][side]) for side in (0, 1)]
    return spans, cu_seqlens


@pytest.mark.parametrize("threads", range(1, CORES + 1))
@pytest.mark.parametrize("rows", [1, 8, 64, 512])
def test_rows_and_threads(benchmark, rows, threads):
    (student, teacher), (student_cu, teacher_cu) = batch_of(rows)
    benchmark.group = "scaling: rows of 2,048 tokens, threads"
    engine = f"vocagno, {rows} rows, {threads} threads"
    benchmark.extra_info |= {"tokens": len(student), "engine": engine, "at": rows}
    result = benchmark(
        lambda: vocagno.align(
            student,
            teacher,
            student_cu_seqlens=student_cu,
            teacher_cu_seqlens=teacher_cu,
            num_threads=threads,
        )
    )
    row = reference_ranges(*tiling_pair(2_048))
    np.testing.assert_array_equal(result[-len(row) :], row + teacher_cu[-2])


MEMORY = """
import json, re
from pathlib import Path
import vocagno
from conftest import tiling_spans
student, teacher = tiling_spans(10_000_000, 0), tiling_spans(10_000_000, 1)
def kilobytes(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
before = kilobytes("VmRSS")
mapping = vocagno.align(student, teacher)
peak = 1024 * (kilobytes("VmHWM") - before)
print(json.dumps({"peak_bytes": peak, "result_bytes": mapping.nbytes}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_peak_memory_of_ten_million_tokens(benchmark):
    """What aligning takes on top of the spans themselves."""
    folder = os.path.dirname(__file__)  # noqa: PTH120 - a string is wanted
    environment = os.environ | {"PYTHONPATH": folder}

    def run():
        done = subprocess.run(
            [sys.executable, "-c", MEMORY],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return json.loads(done.stdout)

    benchmark.group = "memory of 10,000,000 tokens"
    benchmark.extra_info |= benchmark.pedantic(run, rounds=1)
