"""The reduction on tensors compared with the compiled one: short ranges, and very long ones."""

import numpy as np
import pytest

import vocagno

torch = pytest.importorskip("torch")

from vocagno.alignment.segments import segment_reduce

TOKENS = 16_384
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("engine", ["vocagno.reduce", *(f"vocagno on {d}" for d in DEVICES)])
@pytest.mark.parametrize("how", ["max", "mean", "sum"])
@pytest.mark.parametrize("longest", [4, 4_000])
def test_segments(benchmark, longest, how, engine):
    rng = np.random.default_rng(0)
    first = np.sort(rng.integers(0, TOKENS - longest, TOKENS))
    stop = first + rng.integers(1, longest + 1, TOKENS)
    mapping = np.stack([first, stop], 1).astype(np.int32)
    losses = rng.exponential(1, TOKENS).astype(np.float32)
    benchmark.group = f"reduce on tensors ({how}), ranges of up to {longest:,}"
    benchmark.extra_info |= {"tokens": TOKENS, "engine": engine}
    expected = vocagno.reduce(losses, mapping, how)
    if engine == "vocagno.reduce":
        result = benchmark(vocagno.reduce, losses, mapping, how)
    else:
        device = engine.split()[-1]
        torch.set_num_threads(1)
        tensors = [torch.from_numpy(array).to(device) for array in (losses, mapping)]

        def reduce():
            reduced = segment_reduce(*tensors, how)
            if device == "cuda":
                torch.cuda.synchronize()
            return reduced

        result = benchmark(reduce).cpu().numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-5)
