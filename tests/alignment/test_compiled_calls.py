"""The compiled functions beside other threads and processes, and where memory ends: an error by
name, never a wrong number, a panic or an abort."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import vocagno
from compiled_calls import calls_of_a_batch, tiling

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="forks and limits of POSIX")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")


def run_alone(script, **environment):
    """A process of its own, which may import from support: what it prints."""
    paths = map(str, (Path(vocagno.__file__).parents[1], Path(__file__).parents[1] / "support"))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr[-2000:]}"
    return done.stdout.split()


def refusal(call):
    """What a call says that it refuses, None if it does not."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


def test_boundaries_that_change_during_a_call_do_no_harm():
    """They are read once: a call takes one state of them, or refuses it."""
    rows, width, times = 2_000, 4, 50
    spans = np.tile(tiling(width), (rows, 1))
    good = np.arange(0, rows * width + 1, width)
    mapping = vocagno.align(spans, spans, student_cu_seqlens=good, teacher_cu_seqlens=good)
    cu_seqlens, bad = good.copy(), good.copy()
    bad[rows // 2 : -1] = 1 << 40
    ids, texts = np.zeros(len(spans), np.int32), ["a" * width] * rows
    calls = calls_of_a_batch(spans, mapping, cu_seqlens, ids, texts)
    # One copy without the GIL, which overwrites the boundaries again and again, fast.
    states = np.concatenate([np.tile(state, (times, 1)) for state in (bad, good) * 4])
    over = np.lib.stride_tricks.as_strided(cu_seqlens, states.shape, (0, cu_seqlens.itemsize))
    done = threading.Event()

    def change():
        while not done.is_set():
            np.copyto(over, states)

    thread = threading.Thread(target=change)
    thread.start()
    outcomes = {name: [0, 0] for name in calls}  # taken, refused
    start = time.monotonic()
    try:
        while time.monotonic() < start + 0.7 or not all(map(all, outcomes.values())):
            assert time.monotonic() < start + 30, outcomes  # both states are met long before
            for name, call in calls.items():
                refused = refusal(call)
                assert refused is None or "cu_seqlens" in refused
                outcomes[name][refused is not None] += 1
    finally:
        done.set()
        thread.join()


MEMORY = """
import resource
import numpy as np
import vocagno
from compiled_calls import calls_of_a_batch, tiling

N = 1_000_000
spans, cu_seqlens = tiling(N), np.array([0, N])
spans[N // 2] = 0  # an empty span: its neighbours are copied to a table
mapping = np.repeat(np.arange(N, dtype=np.int32), 2).reshape(-1, 2) + np.array([0, 1], np.int32)
losses, ids = np.full(N, np.nan, np.float32), np.zeros(N, np.int32)
calls = calls_of_a_batch(spans, mapping, cu_seqlens, ids, ["a" * N])
whole = [N // 3, N]
calls |= {
    "align alone": lambda: vocagno.align(spans, spans),
    "reduce": lambda: vocagno.reduce(losses, mapping),
    "reasons by counts": lambda: vocagno._vocagno.unmapped_reasons(
        spans, spans, np.broadcast_to(np.array([0, 1], np.int32) * N, (N, 2)).copy(), losses,
        None, None,
    ),
    "chunk_map": lambda: vocagno.chunk_map(N, N, 3),
    "chunk_boundaries": lambda: vocagno.chunk_boundaries(N, N),
    "many texts": lambda: vocagno._vocagno.PieceTable([b"a"], [0], "none").spans(
        ids[:0], np.zeros(N + 1, np.int64), texts, 1
    ),
    "table": lambda: vocagno._vocagno.PieceTable(pieces, roles, "none"),
}
texts, pieces, roles = [""] * N, [b"abc"] * N, [0] * N
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
for name, call in calls.items():
    outcomes = set()
    for room in (0.5, 3, 6, 9, 13, 18, 25, 40, 200):
        resource.setrlimit(resource.RLIMIT_AS, (used + int(room * 2**20), hard))
        try:
            call()
        except MemoryError:
            outcomes.add("MemoryError")
        except vocagno.SpanError:
            outcomes.add("SpanError")
        else:
            outcomes.add("result")
    print(name.replace(" ", "-"), "+".join(sorted(outcomes)))
"""


@pytest.mark.slow
@LINUX
def test_no_memory_for_a_result_is_an_error():
    # What is freed goes back to the system, so that the limit is felt by every call.
    printed = run_alone(MEMORY, MALLOC_MMAP_THRESHOLD_="65536")
    outcomes = dict(zip(printed[::2], printed[1::2], strict=True))
    assert len(outcomes) == 16
    assert set(outcomes.values()) == {"MemoryError+result"}, outcomes


THREADS = """
import time
from pathlib import Path
import numpy as np
import vocagno
from compiled_calls import tiling

def named():
    tasks = Path("/proc/self/task").iterdir()
    return {task for task in tasks if (task / "comm").read_text().startswith("vocagno")}

def threads():
    before = named()
    time.sleep(0.1)  # a thread that was just started has no name yet
    return threads() if named() != before else before

def align(rows, width, num_threads):
    spans, cu_seqlens = np.tile(tiling(width), (rows, 1)), np.arange(0, rows * width + 1, width)
    vocagno.align(
        spans, spans, student_cu_seqlens=cu_seqlens, teacher_cu_seqlens=cu_seqlens,
        num_threads=num_threads,
    )
    return threads()

print(len(align(4_000, 16, 1)), len(align(4_000, 4, 16)))  # told so; too little to do
many = align(16, 10_000, 16)
print(len(many))
calls = [(15, 10_000, 16), (16, 10_000, 2), (8, 10_000, 10**9), (4_000, 16, 10**9)]
print(all(align(*call) == many for call in calls * 3))
"""


@pytest.mark.slow
@LINUX
def test_no_more_threads_than_have_work_and_none_built_again():
    """128,000 tokens in 4,000 rows are work for 15 threads, however many they might have."""
    assert run_alone(THREADS) == ["0", "0", "16", "True"]


@pytest.mark.parametrize("number", [0, -1, 2**63, 2**70, -(2**70)])
def test_a_number_of_threads_that_is_none_is_refused(number):
    words = f"num_threads: expected None or 1 to .*, got {number}"
    for call in (vocagno.align, vocagno.starts):
        with pytest.raises(ValueError, match=words):
            call(tiling(3), tiling(3), num_threads=number)
        with pytest.raises(TypeError):
            call(tiling(3), tiling(3), num_threads="2")
