"""Documents for a live teacher, and their pieces."""

import numpy as np

from families import HARD_TEXTS, TEXTS

SEQ_LEN = 32


DOCUMENTS = [*TEXTS, *HARD_TEXTS, "日本語" * 40, "".join(TEXTS), "x"]
"""Shorter and much longer than a row, with characters of several tokens."""


def pieces(row):
    """Of each piece of a row: its tokens, its text, and where that begins; straight from bytes."""
    ends = np.cumsum(row.num_tokens)
    for document, stop, count in zip(row.documents, ends, row.num_tokens, strict=True):
        spans = row.spans[stop - count : stop]
        raw = DOCUMENTS[document].encode()
        first, end = int(spans[:, 0].min()), int(spans[:, 1].max())
        while first > 0 and raw[first] & 0xC0 == 0x80:
            first -= 1
        while end < len(raw) and raw[end] & 0xC0 == 0x80:
            end += 1
        yield spans, raw[first:end].decode(), first
