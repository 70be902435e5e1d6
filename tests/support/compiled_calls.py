"""Calls of the compiled functions."""

import numpy as np

import vocagno


def tiling(tokens, width=1):
    ends = np.arange(width, width * tokens + 1, width, dtype=np.int32)
    return np.stack([ends - width, ends], 1)


def calls_of_a_batch(spans, mapping, cu_seqlens, ids, texts):
    """Every compiled function that takes row boundaries."""
    kernel = vocagno._vocagno
    table = kernel.PieceTable([b"a"], [0], "none")
    sides = (spans, spans)
    both = (cu_seqlens, cu_seqlens)
    losses = np.ones(len(spans), np.float32)
    return {
        "align": lambda: kernel.align(*sides, *both, 1),
        "reasons": lambda: kernel.unmapped_reasons(*sides, mapping, losses, *both),
        "overlap": lambda: kernel.overlap(*sides, mapping, *both),
        "groups": lambda: kernel.groups(*sides, *both),
        "starts": lambda: kernel.starts(*sides, *both, 1),
        "spans": lambda: table.spans(ids, cu_seqlens, texts, 1),
        "decode": lambda: table.decode(ids, cu_seqlens, False),
        "close": lambda: table.close(spans, ids, cu_seqlens, texts),
        "chars_to_bytes": lambda: kernel.chars_to_bytes(spans, cu_seqlens, texts),
    }
