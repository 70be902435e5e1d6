"""Codes spans as one byte per token: the lengths, if the tokens tile their text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ESCAPE = 255  # a length of 255 bytes or more; the value is in `long_lengths`


@dataclass(frozen=True, slots=True)
class CodedSpans:
    """The spans of n tokens."""

    lengths: NDArray[np.uint8]
    """(n,) number of bytes of each token; 255 means "see long_lengths"."""
    long_lengths: NDArray[np.int32]
    """One for each escaped length, in order."""
    starts: NDArray[np.int32]
    """(n,) if the spans do not tile (two tokens share bytes), else (0,)."""


@dataclass(frozen=True, slots=True)
class PieceSpans:
    """Runs of consecutive tokens, each from one document."""

    num_tokens: Sequence[int] | NDArray[np.int32]
    first_bytes: Sequence[int] | NDArray[np.int32]
    """The byte at which the text of each piece begins in its document."""


def encode_spans(spans: NDArray[np.int32], pieces: PieceSpans | None = None) -> CodedSpans:
    """Codes (n, 2) spans of one whole document, or of pieces.

    The position of an empty span is not stored.
    """
    sizes = np.maximum(spans[:, 1] - spans[:, 0], 0)
    escaped = sizes >= _ESCAPE
    tiled = _tiled_starts(sizes, pieces)
    starts = np.where(sizes > 0, spans[:, 0], tiled)
    return CodedSpans(
        np.where(escaped, _ESCAPE, sizes).astype(np.uint8),
        sizes[escaped].astype(np.int32),
        np.empty(0, np.int32) if np.array_equal(starts, tiled) else starts.astype(np.int32),
    )


def decode_spans(coded: CodedSpans, pieces: PieceSpans | None = None) -> NDArray[np.int32]:
    """Decodes the (n, 2) spans, given the same pieces."""
    sizes = coded.lengths.astype(np.int32)
    if coded.long_lengths.size:
        sizes[coded.lengths == _ESCAPE] = coded.long_lengths
    spans = np.empty((len(sizes), 2), np.int32)
    starts, ends = spans[:, 0], spans[:, 1]
    if coded.starts.size or pieces is not None:
        starts[:] = coded.starts if coded.starts.size else _tiled_starts(sizes, pieces)
        np.add(starts, sizes, out=ends)
    else:  # a whole document, the usual case
        np.cumsum(sizes, out=ends)
        np.subtract(ends, sizes, out=starts)
    return spans


def _tiled_starts(sizes: NDArray[np.int32], pieces: PieceSpans | None) -> NDArray[np.int32]:
    """The start of each token if it directly follows the previous one."""
    before = np.cumsum(sizes, dtype=np.int64) - sizes
    if pieces is not None and len(sizes):
        counts = np.asarray(pieces.num_tokens)
        heads = np.cumsum(counts) - counts  # the first token of each piece
        shift = np.asarray(pieces.first_bytes) - before[heads]
        before = before + np.repeat(shift, counts)
    return before.astype(np.int32)
