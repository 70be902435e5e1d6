"""Coded spans come back as they were, at one byte a token where they tile."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from vocagno.data.store.shards import PieceSpans, decode_spans, encode_spans


def same(spans, decoded):
    """Equal wherever there is text; an empty span stays empty."""
    empty = spans[:, 0] >= spans[:, 1]
    np.testing.assert_array_equal(decoded[:, 0] >= decoded[:, 1], empty)
    np.testing.assert_array_equal(decoded[~empty], spans[~empty])


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(-3, 400)), max_size=20))
@example([(0, 254), (254, 255), (509, 256)])  # about the length that stands for "see long_lengths"
def test_any_spans_come_back(pairs):
    spans = np.array([(start, start + size) for start, size in pairs], np.int32).reshape(-1, 2)
    same(spans, decode_spans(encode_spans(spans)))


@given(st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=8), max_size=6), st.data())
def test_tiling_pieces_cost_one_byte_a_token(sizes, data):
    firsts = [data.draw(st.integers(0, 1000)) for _ in sizes]
    spans = [
        (first + sum(piece[:i]), first + sum(piece[: i + 1]))
        for first, piece in zip(firsts, sizes, strict=True)
        for i in range(len(piece))
    ]
    spans = np.array(spans, np.int32).reshape(-1, 2)
    pieces = PieceSpans([len(piece) for piece in sizes], firsts)
    coded = encode_spans(spans, pieces)
    assert coded.starts.size == 0
    assert coded.long_lengths.size == sum(size >= 255 for piece in sizes for size in piece)
    same(spans, decode_spans(coded, pieces))
