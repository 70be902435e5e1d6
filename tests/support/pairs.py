"""What must hold of any two tokenizers on any text."""

import numpy as np

import oracle
import vocagno
from families import Unproving


def check_side(spans, tokens, texts):
    """Spans cover every byte in order; only lone dummy prefixes are empty."""
    pieces = spans.pieces()
    added = spans._vocabulary.roles > 0
    for index, text in enumerate(texts):
        rows = tokens.text(index)
        text_spans, ids = tokens.spans[rows], tokens.ids[rows]
        filled = text_spans[:, 0] < text_spans[:, 1]
        if not filled.any():
            continue
        assert (np.diff(text_spans[filled], axis=0) >= 0).all(), (spans.name, text)
        reach = np.maximum.accumulate(np.append(0, text_spans[filled, 1]))
        assert (text_spans[filled, 0] <= reach[:-1]).all(), (spans.name, text)  # no gap
        assert reach[-1] == len(text.encode()), (spans.name, text)
        for row in np.flatnonzero(~filled):
            starts_segment = row == 0 or added[ids[row - 1]]
            assert pieces[ids[row]] == b" ", (spans.name, text, row)
            assert starts_segment, (spans.name, text, row)


def check_mapping(student, teacher, texts, mapping):
    """Equal to the oracle, and every token with text is mapped where the teacher has a token."""
    sizes = np.array([len(text.encode()) for text in texts], np.int64)
    base = np.append(0, np.cumsum(sizes))[:-1]

    def flat(tokens):
        return tokens.spans + np.repeat(base, np.diff(tokens.cu_seqlens))[:, None]

    expected = oracle.align_by_bytes(flat(student), flat(teacher), int(sizes.sum()))
    np.testing.assert_array_equal(mapping, expected)
    has_teacher = np.repeat(np.diff(teacher.cu_seqlens) > 0, np.diff(student.cu_seqlens))
    with_text = student.spans[:, 0] < student.spans[:, 1]
    mapped = mapping[:, 0] >= 0
    np.testing.assert_array_equal(mapped, with_text & has_teacher)


def aligned(student, teacher):
    """The mapping of two `TokenizedTexts`."""
    return vocagno.align(
        student.spans,
        teacher.spans,
        student_cu_seqlens=student.cu_seqlens,
        teacher_cu_seqlens=teacher.cu_seqlens,
    )


def check_pair(student, teacher, texts):
    """Two `TokenSpans` on some texts; gives their tokens and the mapping."""
    left, right = student.encode(texts), teacher.encode(texts)
    check_side(student, left, texts)
    check_side(teacher, right, texts)
    mapping = aligned(left, right)
    check_mapping(left, right, texts, mapping)
    return left, right, mapping


def by_offsets(spans, texts):
    """The same texts without the proof: spans from the tokenizer's own offsets."""
    table = spans._table
    spans._table = Unproving(table)
    try:
        tokens = spans.encode(texts)
    finally:
        spans._table = table
    assert not tokens.proved.any()
    return tokens


def check_both_ways(proved, closed, texts):
    """On proved texts the offsets give the same spans, but for the parts of split characters."""
    for index, text in enumerate(texts):
        if not proved.proved[index]:
            continue
        left, right = proved.spans[proved.text(index)], closed.spans[closed.text(index)]
        data = np.frombuffer(text.encode() + b"\0", np.uint8)
        whole = ((data[left] & 0xC0) != 0x80).all(axis=1)
        filled = left[:, 0] < left[:, 1]
        np.testing.assert_array_equal(filled, right[:, 0] < right[:, 1], err_msg=ascii(text[:60]))
        rows = whole & filled
        np.testing.assert_array_equal(left[rows], right[rows], err_msg=ascii(text[:60]))
