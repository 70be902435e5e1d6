"""How many tokens' logits exist at a time."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

CHUNK_ELEMENTS = 1 << 24
"""Logits per chunk on a CPU: 64 MiB in float32, unless `LEAST_ROWS` need more."""
CUDA_CHUNK_ELEMENTS = 1 << 26
"""The same on a GPU: fewer products, and fewer additions to the gradient of the weights."""
LEAST_ROWS = 256
"""Minimum number of tokens per chunk: with fewer, reading the weights limits the product."""
_MORE_ROWS = 32
"""A chunk on a CPU may be larger by 1 / `_MORE_ROWS` if that saves a chunk: each chunk, even a
small one, reads the weights and adds to their gradient."""
TILE_ROWS = 128
"""Rows of a product that a GPU computes together; the rows of a chunk are a multiple."""


def chunk_rows(vocabulary_size: int, device: torch.device) -> int:
    """Number of rows of logits per chunk on a device."""
    if device.type != "cuda":
        return max(LEAST_ROWS, CHUNK_ELEMENTS // vocabulary_size)
    rows = CUDA_CHUNK_ELEMENTS // vocabulary_size
    return max(LEAST_ROWS, rows - rows % TILE_ROWS)


def most_rows(vocabulary_size: int, device: torch.device) -> int:
    """The rows of the longest chunk, unless `ends` lie farther apart."""
    size = chunk_rows(vocabulary_size, device)
    return size + 2 * (size // _MORE_ROWS)  # twice: chunks that end at `ends` are uneven


def chunks(
    num_rows: int,
    vocabulary_size: int,
    device: torch.device,
    ends: Sequence[int] | NDArray[np.int64] | None = None,
) -> Iterator[slice]:
    """Chunks of rows whose logits exist together: equal sizes on a CPU, whole tiles on a GPU.

    Args:
        ends: places at which a chunk may end, increasing, the last one `num_rows`; default: all. A
            chunk is longer if there is no such place within its size.
    """
    size = chunk_rows(vocabulary_size, device)
    count = math.ceil(num_rows / (size + size // _MORE_ROWS))
    number_of = itertools.count(1)
    start = 0
    while start < num_rows:
        if device.type == "cuda":
            stop = min(start + size, num_rows)
        elif (stop := next(number_of) * num_rows // count) <= start:
            continue  # the previous chunk was longer
        if ends is not None:
            number = bisect_right(ends, stop)
            before = ends[number - 1] if number else 0
            stop = int(before if before > start else ends[number])
        yield slice(start, stop)
        start = stop
