"""Statistics of an alignment: what they refuse."""

import pytest

import vocagno

SPANS = [[0, 2], [2, 4]]


@pytest.mark.parametrize(
    ("mapping", "spans", "words"),
    [
        ([[0, 3]], SPANS, "mapping: expected ranges of the 2 rows of teacher_spans"),
        ([[1, 1]], SPANS, "mapping: expected ranges"),
        ([0, 1, 2], SPANS, r"mapping: expected shape \(n, 2\)"),
        ([[0, 1]], [0, 2, 4], r"teacher_spans: expected shape \(n, 2\)"),
    ],
)
def test_links_of_wrong_arguments_name_them(mapping, spans, words):
    assert vocagno.links([[0, 1], [0, 2], [-1, -1]], SPANS).tolist() == [3, 2, 0]
    with pytest.raises(ValueError, match=words):
        vocagno.links(mapping, spans)
