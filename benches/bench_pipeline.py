"""Text to ids of both tokenizers, mapping and one loss a token, compared with tokenizing only.

Both are run in turn, since rates of shared machines drift; the record holds the median of the
ratios. Real tokenizers and text are needed: trained ones are too small to tell.
"""

import json
import os
import subprocess
import sys

import pytest

from conftest import SHARED

RUN = """
import json, sys, time
import numpy as np
import vocagno
from conftest import latex
student, teacher = (vocagno.TokenSpans(path) for path in sys.argv[1:3])
if sys.argv[3] == "offsets":
    class Unproving:
        def __init__(self, table): self.table, self.close = table, table.close
        def spans(self, *arguments):
            spans, proved = self.table.spans(*arguments)
            return spans, proved & False
    for side in (student, teacher):
        side._table = Unproving(side._table)
texts, losses = latex()[:64], np.random.default_rng(0).exponential(1, 10**6).astype(np.float32)
def tokenizing():
    for side in (student, teacher):
        side._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
def pipeline():
    left, right = student.encode(texts), teacher.encode(texts)
    mapping = vocagno.align(
        left.spans, right.spans,
        student_cu_seqlens=left.cu_seqlens, teacher_cu_seqlens=right.cu_seqlens,
    )
    return left, vocagno.reduce(losses[:len(right.ids)], mapping)
left, reduced = pipeline()
assert np.isfinite(reduced[left.spans[:, 0] < left.spans[:, 1]]).all()
times = {tokenizing: [], pipeline: []}
for _ in range(15):
    for work in times:
        start = time.perf_counter()
        work()
        times[work].append(time.perf_counter() - start)
tokenizing, whole = map(np.array, times.values())
print(json.dumps({
    "tokens": len(left.ids), "tokenizing_ms": 1e3 * np.median(tokenizing),
    "pipeline_ms": 1e3 * np.median(whole), "ratio": np.median(whole / tokenizing),
}))
"""


@pytest.mark.parametrize("path", ["ids", "offsets"])
@pytest.mark.parametrize("threads", [1, 2])
def test_pipeline(benchmark, threads, path):
    folder = SHARED / "tokenizers"
    if not folder.exists():
        pytest.skip("real tokenizers are not next to the project: shared/tokenizers")
    files = [str(folder / f"{name}.json.gz") for name in ("tinyllama", "qwen2.5")]
    environment = os.environ | {
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
        "PYTHONPATH": os.path.dirname(__file__),  # noqa: PTH120 - a string is wanted
    }
    command = [sys.executable, "-c", RUN, *files, path]

    def run():
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    benchmark.group = "text to losses, and tokenizing"
    result = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info |= result | {"threads": threads, "path": path}
