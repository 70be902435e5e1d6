"""Equal chunks of tokens on both sides: a mapping that ignores the text, unlike `align`."""

from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from vocagno import _vocagno
from vocagno.alignment.arrays import as_count


def chunk_boundaries(n: SupportsIndex, chunks: SupportsIndex) -> NDArray[np.int64]:
    """Boundaries that cut `n` tokens into chunks whose sizes differ by at most one.

    Returns: (chunks + 1,) int64, `i * n // chunks`. Chunk i holds the tokens from boundary i up to
        boundary i + 1; none if these are equal.
    Raises: TypeError for an argument that is not an integer; ValueError for n < 0, for chunks < 1
        or above 2**31 - 1; MemoryError.

    Source: arXiv 2503.19123, section 2.
    """
    return _vocagno.chunk_boundaries(as_count(n, "n", 0), as_count(chunks, "chunks", 1))


def chunk_map(
    n_student: SupportsIndex, n_teacher: SupportsIndex, chunks: SupportsIndex
) -> NDArray[np.int32]:
    """Maps each student token of a text to the teacher tokens of the same chunk.

    `chunk_boundaries` cuts both token sequences, regardless of the text that the tokens cover.
    `reduce(losses, chunk_map(n_student, len(losses), 32))` gives each token the teacher loss of its
    chunk. `overlap` measures how much text the two chunks share.

    Returns: (n_student, 2) int32, half-open ranges of teacher rows; (-1, -1) where the token's
        chunk has no teacher token.
    Raises: TypeError for an argument that is not an integer; ValueError for token counts below 0 or
        above 2**31 - 1, and for chunks < 1; MemoryError.

    Cost: O(n_student) for any number of chunks. Source: arXiv 2503.19123, section 6.1 and Table 2.
    """
    return _vocagno.chunk_map(
        as_count(n_student, "n_student", 0),
        as_count(n_teacher, "n_teacher", 0),
        as_count(chunks, "chunks", 1),
    )
