"""One text under two tokenizers, and how its links are counted and drawn."""

import re

import numpy as np
import pytest

import vocagno
from families import FAMILIES, HARD_TEXTS
from vocagno import Link, align_text, links
from vocagno.views.texts import PictureError


def test_links_by_hand():
    spans = np.array([[0, 2], [2, 4], [4, 6], [6, 8], [0, 0], [8, 9]])
    mapping = np.array([[0, 1], [0, 1], [1, 3], [3, 6], [-1, -1], [5, 6]], np.int32)
    kinds = [
        Link.MANY_TO_ONE,
        Link.MANY_TO_ONE,
        Link.ONE_TO_MANY,
        Link.ONE_TO_MANY,
        Link.UNMAPPED,
        Link.MANY_TO_ONE,
    ]
    assert links(mapping, spans).tolist() == kinds
    one = np.array([[3, 5]], np.int32)  # row 4 is a special token: it does not count
    assert links(one, spans).tolist() == [Link.ONE_TO_ONE]
    assert links(np.empty((0, 2), np.int32), np.empty((0, 2))).shape == (0,)


def test_links_are_what_brute_force_counts():
    rng = np.random.default_rng(0)
    for _ in range(300):
        cuts = [
            np.append(0, np.sort(rng.choice(30, rng.integers(1, 12), replace=False) + 1))
            for _ in range(2)
        ]
        student, teacher = (np.stack([c[:-1], c[1:]], 1) for c in cuts)
        mapping = vocagno.align(student, teacher)
        for (first, stop), kind in zip(mapping, links(mapping, teacher), strict=True):
            users = sum(a <= first < b for a, b in mapping)
            expected = (
                Link.UNMAPPED
                if first < 0
                else Link.ONE_TO_MANY
                if stop - first > 1
                else Link.MANY_TO_ONE
                if users > 1
                else Link.ONE_TO_ONE
            )
            assert kind == expected


@pytest.mark.parametrize("student", FAMILIES)
def test_every_text_can_be_shown(tokenizers, student):
    pytest.importorskip("rich")
    from vocagno.views.passage import columns
    from vocagno.views.terminal import terminal_lines

    for text in HARD_TEXTS:
        aligned = align_text(
            tokenizers[student], tokenizers["byte-level"], text, special_tokens=True
        )
        assert sum(aligned.counts.values()) == len(aligned.mapping)
        for html in (aligned.html(), aligned._repr_html_()):
            for side in ("student", "teacher"):
                rows = [int(row) for row in re.findall(rf"data-{side}=(\d+)", html)]
                assert sorted(rows) == list(range(len(getattr(aligned, side).ids)))
        for width in (20, 100):
            lines = [line.plain for line in terminal_lines(aligned.passage(""), width)]
            assert max(map(columns, lines), default=0) <= width, text
            assert all(line.isprintable() for line in lines)


def terminal(student, teacher, text):
    from vocagno.views.passage import Passage, StudentToken, Token
    from vocagno.views.terminal import terminal_lines

    def tokens(kind, pieces):
        ends = np.cumsum([len(piece) for piece in pieces]).tolist()
        starts = [0, *ends][: len(ends)]
        return [
            kind(text=piece or "<s>", start=start, end=end)
            for piece, start, end in zip(pieces, starts, ends, strict=True)
        ]

    sides = tokens(StudentToken, student), tokens(Token, teacher)
    mapping = vocagno.align(*([[t.start, t.end] for t in side] for side in sides)).tolist()
    drawn = Passage(title="", text=text, student=sides[0], teacher=sides[1], mapping=mapping)
    return "\n".join(line.plain[2:] for line in terminal_lines(drawn, 60))


def test_links_in_a_terminal():
    pytest.importorskip("rich")
    student, teacher = ["", "one", "tw", "o", "three"], ["one", "two", "th", "ree"]
    assert terminal(student, teacher, "onetwothree") == (
        "<s>│one│tw│o│three\n ×   │  └┬─┘ ┌─┴─┐\n   │one│two │th│ree\n"
    )
    assert terminal(["ab", "cd"], ["a", "bcd"], "abcd") == "ab│cd\n├──┤\na│bcd\n"


@pytest.mark.slow
def test_a_text_too_long_to_draw(tokenizers):
    aligned = align_text(tokenizers["llama"], tokenizers["byte-level"], "a" * 300_000)
    assert len(aligned.as_dict()["mapping"]) == len(aligned.student.ids)
    with pytest.raises(PictureError, match=r"300,000 bytes.*--json"):
        aligned.html()
    assert "No picture: the text has 300,000 bytes" in aligned._repr_html_()
