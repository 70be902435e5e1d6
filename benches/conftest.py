"""Inputs of the benchmarks: spans like those of two tokenizers on one text."""

import numpy as np


def tiling_spans(num_tokens, seed):
    """(n, 2) int32 spans that follow one another, 1 to 9 bytes each, 4 on average."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(np.minimum(1 + rng.geometric(0.32, num_tokens), 9))
    return np.stack([ends - np.diff(ends, prepend=0), ends], 1).astype(np.int32)
