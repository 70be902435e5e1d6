"""The bytes of candidates in a store: frames of some thousand tokens, each compressed by itself.

M: teacher tokens of a document, K: candidates of a token.
"""

from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.teacher.candidates import MAX_IDS, NONE, Candidates

BLOCK_TOKENS = 8_192
"""Tokens of an encoded frame: a piece of a long document decodes only the frames it needs."""
CANDIDATE_BYTES = 2.0
"""Approximate stored size of one candidate (SmolLM2-135M, 16 candidates of each token)."""
_WIDE, _WITH_ENTROPY = 1, 2
"""Flags of a frame."""


def encode(candidates: Candidates) -> bytes:
    """Encodes candidates as a byte of flags and a zstd frame.

    Flags: 1: ids need more than 16 bits; 2: there are entropies. The frame holds the low 16 bits of
    the ids, and their high bits if flag 1 is set; the codes as differences along K, candidate by
    candidate; the real tokens, encoded like the ids; and the entropies.

    Raises: ValueError for an id of more than 24 bits, or one without a code.
    """
    ids, codes = candidates.ids, candidates.codes
    columns = [np.where(codes == NONE, 0, ids), candidates.tokens]
    if (
        any(((column < 0) | (column >= MAX_IDS)).any() for column in columns)
        or (ids[codes == NONE] >= 0).any()
    ):
        raise ValueError("candidates: an id is out of range, or has no code")
    is_wide = any((column >= 1 << 16).any() for column in columns)
    coded_ids, coded_tokens = (
        column.astype("<u2").tobytes() + (column >> 16).astype(np.uint8).tobytes() * is_wide
        for column in columns
    )
    # Likeliest first, codes ascend along K: their differences are small numbers, which zstd packs
    # well.
    differences = np.diff(codes, axis=1, prepend=np.uint8(0))
    entropy = b"" if candidates.entropy is None else candidates.entropy.tobytes()
    content = coded_ids + differences.T.tobytes() + coded_tokens + entropy
    frame: bytes = _codec().compress(content, asbytes=True)
    return bytes([is_wide * _WIDE | bool(entropy) * _WITH_ENTROPY]) + frame


def decode(data: bytes | NDArray[np.uint8], num_tokens: int, count: int) -> Candidates:
    """Decodes what `encode` made of M tokens with K candidates."""
    is_wide, has_entropy = bool(data[0] & _WIDE), bool(data[0] & _WITH_ENTROPY)
    size, width = num_tokens * count, 3 if is_wide else 2
    length = width * (size + num_tokens) + size + has_entropy * num_tokens
    content = _codec().decompress(pa.py_buffer(data)[1:], length, asbytes=True)

    def read_ids(start: int, size: int) -> NDArray[np.int32]:
        ids = np.frombuffer(content, "<u2", size, start).astype(np.int32)
        if is_wide:
            ids |= np.frombuffer(content, np.uint8, size, start + 2 * size).astype(np.int32) << 16
        return ids

    differences = np.frombuffer(content, np.uint8, size, width * size).reshape(count, num_tokens)
    codes = np.ascontiguousarray(np.cumsum(differences, 0, np.uint8).T)
    ids = np.where(codes == NONE, -1, read_ids(0, size).reshape(num_tokens, count))
    tokens = read_ids(width * size + size, num_tokens)
    entropy = None
    if has_entropy:
        entropy = np.frombuffer(content, np.uint8, num_tokens, length - num_tokens).copy()
    # Whether the ids were sampled is the same in all of a store, so its manifest says it, and no
    # frame.
    return Candidates(tokens, ids.astype(np.int32), codes, entropy=entropy)


@cache
def _codec() -> pa.Codec:
    return pa.Codec("zstd", compression_level=9)


def frames_of(candidates: Candidates) -> list[bytes]:
    """A document's candidates, encoded in frames of 8,192 tokens."""
    starts = range(0, len(candidates.tokens), BLOCK_TOKENS)
    return [encode(candidates[start : start + BLOCK_TOKENS]) for start in starts]


def candidates_in(
    data: NDArray[np.uint8], sizes: NDArray[np.int32], num_tokens: int, count: int, rows: slice
) -> Candidates:
    """Decodes the candidates of some tokens of a document from its concatenated frames.
    Args: sizes: bytes of each frame. num_tokens, count: M and K of the document."""
    ends = np.cumsum(sizes, dtype=np.int64)
    first, stop = rows.start // BLOCK_TOKENS, -(-rows.stop // BLOCK_TOKENS)
    parts = [Candidates.none(0, count)]
    for number in range(first, stop if rows.start < rows.stop else first):
        size = min(BLOCK_TOKENS, num_tokens - number * BLOCK_TOKENS)
        parts.append(decode(data[ends[number] - sizes[number] : ends[number]], size, count))
    start = rows.start - first * BLOCK_TOKENS
    return Candidates.concatenate(parts)[start : start + rows.stop - rows.start]
