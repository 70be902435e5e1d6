"""How `benches/peers.py` counts the answers of aligners."""

import pytest

from peers import ALIGNERS, count, readings

SIDES = [[b"", b"ab", b"c", b"d"], [b"a", b"bc", b"d"]]  # the first token is a dummy prefix


@pytest.mark.parametrize(
    ("links", "counts"),
    [
        ([([1, 2], [0, 1]), ([3], [2])], [3, 0, 0]),
        ([([1], [0]), ([1], [1]), ([2], [1]), ([3], [2])], [3, 0, 0]),  # through each other
        ([([0, 1, 2], [0, 1]), ([0], [2])], [2, 0, 0]),  # what has no text joins nothing
        ([([1, 2, 3], [0, 1, 2])], [0, 3, 0]),
        ([([1], [0]), ([2], [1]), ([3], [2])], [1, 0, 2]),
        ([([2, 3], [])], [0, 0, 0]),
    ],
    ids=str,
)
def test_links_are_counted_as_right_coarser_or_wrong(links, counts):
    assert count(links, SIDES).tolist() == counts


def test_our_aligners_make_no_wrong_or_coarser_link():
    """With trained tokenizers of other families, on texts that both keep."""
    counted = 0
    for student, teacher in readings([], ["naïve 😊 café", " 17 and 25", "e\u0301 \u1112\u1161"]):
        sides = [side.bytes_of_tokens() for side in (student, teacher)]
        if None in sides:
            continue
        for name in ("vocagno, `groups`", "vocagno, `align`"):
            align, links = ALIGNERS[name][1](student, teacher)
            assert count(links(align()), sides).tolist() == [sum(map(bool, sides[0])), 0, 0]
            counted += 1
    assert counted > 50
