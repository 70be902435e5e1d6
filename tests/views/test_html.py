"""The HTML page: every token is drawn once, and nothing in a text can become markup."""

import re

import pytest

from pages import CASES, Balanced, cut, passage
from vocagno.views.html import render_page, table_of
from vocagno.views.passage import Passage, StudentToken, Token, columns, visible


def page(*passages):
    return render_page(title="t", summary_rows=[], passages=passages)


def body(html):
    """The drawn passages alone: the page without its style and legend."""
    return html.split("<section>", 1)[1]


@pytest.mark.parametrize("drawn", CASES.values(), ids=CASES.keys())
def test_every_token_is_drawn_once(drawn):
    html = page(drawn)
    for name, tokens in (("student", drawn.student), ("teacher", drawn.teacher)):
        rows = [int(row) for row in re.findall(rf"data-{name}=(\d+)", html)]
        assert sorted(rows) == list(range(len(tokens)))
    lines = re.findall(r"<line class=(\w+) ", html)
    mapped = [stop - first for first, stop in drawn.mapping if first >= 0]
    assert lines == ["on"] * (sum(mapped) if drawn.text else 0)
    parser = Balanced()
    parser.feed(html)
    assert not parser.open
    assert not re.search(r"<(script|link|img|iframe)|https?:|url\(|@import", html)


def test_nothing_in_a_text_becomes_markup():
    evil = "<script>alert('&')</script>\"><img src=x>"
    drawn = passage(evil, cut(evil, evil), cut(evil, evil))
    head = {"title": evil, "introduction": evil, "summary_rows": [{evil: evil, "b": evil}]}
    html = render_page(**head, passages=[drawn])
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;" in html


def test_a_table_has_the_columns_of_all_its_rows():
    html = table_of("L", [{"run": "one", "a": "1"}, {"run": "two", "b": "2", "a": "3"}])
    assert re.findall(r"<th scope=col>(.*?)</th>", html) == ["run", "a", "b"]
    lines = re.findall(r"<tr>(<th scope=row>.*?)</tr>", html)
    cells = [re.findall(r">([^<]*)</t[hd]>", line) for line in lines]
    assert cells == [["one", "1", ""], ["two", "3", "2"]]
    assert table_of("L", []) == ""


def test_marks_take_no_column():
    cells = pytest.importorskip("rich.cells")
    for text in ("ที่นี่", "हिन्दी", "e\u0301", "日本", "abc"):
        assert columns(text) == cells.cell_len(text)


@pytest.mark.slow
def test_a_token_over_thousands_is_drawn_in_linear_time():
    size = 20_000
    drawn = passage("a" * size, [(0, size)], [(i, i + 1) for i in range(size)])
    assert page(drawn).count("data-teacher=") == size


def test_hidden_characters_are_shown():
    assert visible("a b\n\t\r\x00\x7f") == "a␣b⏎⇥␍␀␡"
    assert visible("\u202e\u200b\u00a0\ufeff") == "⟨202E⟩⟨200B⟩⟨A0⟩⟨FEFF⟩"
    assert visible("é½π数🙂") == "é½π数🙂"
    html = page(CASES["one token"])
    for hidden in "\u202e\x00\t":
        assert hidden not in html


def test_a_byte_token_is_drawn_as_hexadecimal():
    html = body(page(passage("½", cut("½", 1, 1), cut("½", "½"))))
    assert re.findall(r"<bdo dir=ltr>(.*?)</bdo>", html)[:3] == ["C2", "BD", "½"]


def test_kept_and_dropped_differ_in_borders_and_lines_and_kept_ones_in_depth():
    text = "ab"
    kept = body(page(passage(text, cut(text, "ab"), cut(text, "ab"), excess=1.5)))
    dropped = body(page(passage(text, cut(text, "ab"), cut(text, "ab"), weight=0.0)))
    assert 'class="tok student on level3"' in kept
    assert "<line class=on" in kept
    assert 'class="tok student off"' in dropped
    assert "<line class=off" in dropped


def test_unmapped_tokens_are_marked_without_colour():
    html = body(page(CASES["bos, eos, padding"]))
    assert len(re.findall(r'class="tok student \w+ unmapped"', html)) == 2
    assert html.count('class="tok teacher unmapped"') == 2
    assert html.count("∅") == 4


def test_a_token_without_finite_losses_has_no_excess():
    for nll, teacher_loss in ((None, 1.0), (1.0, None), (1.0, float("nan")), (float("inf"), 1.0)):
        token = StudentToken(text="a", start=0, end=1, nll=nll, teacher_loss=teacher_loss)
        assert token.excess is None


def test_a_loss_that_is_not_a_number_is_a_dash():
    token = StudentToken(text="a", start=0, end=1, nll=float("nan"), teacher_loss=1.0, weight=0.0)
    other = Token(text="a", start=0, end=1, nll=1.0)
    drawn = Passage(title="", text="a", student=[token], teacher=[other], mapping=[(0, 1)])
    html = body(page(drawn))
    assert re.findall(r"<small>(.*?)</small>", html) == ["–", "–", "1.00"]


def test_wrong_input_is_refused_by_name():
    token = StudentToken(text="a", start=0, end=9)
    with pytest.raises(ValueError, match=r"student token 0: span \[0, 9\).* 1 bytes"):
        Passage(title="", text="a", student=[token], teacher=[], mapping=[(-1, -1)])
    with pytest.raises(ValueError, match="mapping"):
        Passage(title="", text="a", student=[], teacher=[], mapping=[(0, 1)])
