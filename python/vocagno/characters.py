"""Token spans in bytes as spans in characters, the paper's unit, over texts laid end to end."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vocagno.token_spans import TokenizedTexts


def in_characters(tokens: TokenizedTexts, texts: Sequence[str]) -> NDArray[np.int64]:
    """Spans of the tokens in characters of `"".join(texts)`.

    Returns: (n, 2) int64, half-open. A token that is a part of a character gets the whole of it,
        so that parts share one span, as in the offsets of tokenizers; empty spans stay empty.
    """
    encoded = [text.encode() for text in texts]
    data = np.frombuffer(b"".join(encoded), np.uint8)
    is_inside = (data & 0xC0) == 0x80  # a character starts at every other byte
    before = np.append(0, np.cumsum(~is_inside))  # characters that start before each byte
    sizes = [len(text) for text in encoded]
    first_byte = np.append(0, np.cumsum(sizes))[:-1]
    spans = tokens.spans + np.repeat(first_byte, np.diff(tokens.cu_seqlens))[:, None]
    characters: NDArray[np.int64] = before[spans].astype(np.int64, copy=False)
    filled = np.flatnonzero(spans[:, 0] < spans[:, 1])
    characters[filled, 0] -= is_inside[spans[filled, 0]]
    return characters
