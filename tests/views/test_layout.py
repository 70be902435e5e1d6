"""The layout of pictures: each token is placed once, in order, and has the lines of the mapping."""

from itertools import combinations

import pytest

from pages import CASES, cut, passage
from vocagno.views.layout import in_rows, over_whole_text, side_by_side, token_edges
from vocagno.views.passage import columns, glyphs


def widths(drawn):
    return [[max(1, columns(drawn.label(token))) for token in side] for side in drawn.sides]


def whole(drawn):
    if not drawn.text:
        return []
    edges = token_edges([*drawn.student, *drawn.teacher])
    return [over_whole_text(drawn, side_by_side(glyphs(drawn.text), edges))]


LAYOUTS = {"rows": lambda drawn: list(in_rows(drawn, widths(drawn))), "whole text": whole}


@pytest.mark.parametrize("drawn", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("name", LAYOUTS)
def test_tokens_and_lines_of_each_layout(drawn, name):
    """Sees a token that is lost or drawn over another one, and a line between other tokens."""
    blocks = LAYOUTS[name](drawn)
    for side, tokens in (("student", drawn.student), ("teacher", drawn.teacher)):
        rows = sorted(token.row for block in blocks for token in getattr(block, side))
        with_text = [row for row, token in enumerate(tokens) if token.start < token.end]
        assert rows == (with_text if name == "whole text" else list(range(len(tokens))))
        for block in blocks:
            for token in getattr(block, side):
                assert 0 <= token.left < token.right <= block.width
            taken = [(token.lane, token.left, token.right) for token in getattr(block, side)]
            for (lane, left, right), (other, start, end) in combinations(taken, 2):
                assert lane != other or end <= left or right <= start
    ties = [(line.student.row, line.teacher.row) for block in blocks for line in block.lines]
    mapped = [(row, other) for row, ends in enumerate(drawn.mapping) for other in range(*ends)]
    assert sorted(ties) == mapped if drawn.text else not ties


def test_blocks_end_where_both_tokenizers_cut():
    text = "one two\nthree"
    pieces = ["on", "e", " two", "\n", "three"], ["one", " two", "\nthr", "ee"]
    drawn = passage(text, *(cut(text, *side) for side in pieces))
    blocks = list(in_rows(drawn, widths(drawn)))
    sizes = [(len(block.student), len(block.teacher)) for block in blocks]
    assert sizes == [(2, 1), (1, 1), (2, 2)]
    assert [block.width for block in blocks] == [4, 4, 7]  # a column between two tokens
    assert [(token.left, token.right) for token in blocks[0].student] == [(0, 2), (3, 4)]
    ends = passage("a\nb", cut("a\nb", "a\n", "b"), cut("a\nb", "a\n", "b"))
    assert [block.ends_line for block in in_rows(ends, widths(ends))] == [True, False]


def test_the_shorter_side_is_centred():
    drawn = passage("abcd", cut("abcd", "a", "bcd"), cut("abcd", "abcd"))
    (centred,) = in_rows(drawn, [[1, 3], [4]])
    assert [(token.left, token.right) for token in centred.student] == [(0, 1), (2, 5)]
    assert [(token.left, token.right) for token in centred.teacher] == [(0, 4)]
    (wide,) = in_rows(drawn, [[2, 4], [3]])
    assert [(token.left, token.right) for token in wide.teacher] == [(2, 5)]
    assert [line.student.middle for line in wide.lines] == [1, 5]
    assert [line.is_kept for line in wide.lines] == [True, True]
