"""`python -m research.paper tokens`: where tokens stand, what is tied to what, the errors."""

import csv
import json

import pytest

from research.paper.teachers import COLUMNS, align_teachers, write_aligned
from shared_data import shared
from vocagno import TokenSpans
from vocagno.errors import InputError
from vocagno.views.layout import lanes, side_by_side
from vocagno.views.passage import glyphs

TEXT = "José has 17 − 4."


@pytest.fixture(scope="module")
def spans(tokenizers):
    return {name: TokenSpans(tokenizers[name]) for name in ("llama", "byte-level", "word-piece")}


def aligned(spans, text=TEXT):
    teachers = {"b$": spans["byte-level"], "w": spans["word-piece"], "same": spans["llama"]}
    return align_teachers(("_s", spans["llama"]), teachers, text)


@pytest.fixture
def run(tokenizer_files, tmp_path, monkeypatch):
    pytest.importorskip("jsonargparse")
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from research.paper.__main__ import main

    monkeypatch.chdir(tmp_path)
    student, teacher = (str(tokenizer_files / f"{side}.json") for side in ("student", "teacher"))
    teachers = ["--teachers", teacher, student]
    return lambda *rest: main(["tokens", student, *teachers, *map(str, rest)])


def test_characters_stand_side_by_side():
    found = side_by_side(glyphs("aé日b"), {0, 1, 2, 3})
    assert found.before == {0: 0, 1: 1, 2: 3, 3: 5, 6: 7, 7: 8}
    assert found.width == 8


@pytest.mark.parametrize(
    ("text", "edges", "starts"),
    [
        ("e\u0301x", {0, 3}, {0: 0, 1: 1, 3: 1, 4: 2}),
        ("e\u0301x", {0, 1, 3}, {0: 0, 1: 1, 3: 2, 4: 3}),
        ("e\u0301x", {0, 2}, {0: 0, 1: 1, 2: 3, 3: 5, 4: 6}),
        ("\u0301", {0, 2}, {0: 0, 2: 1}),
    ],
)
def test_combining_marks(text, edges, starts):
    assert side_by_side(glyphs(text), edges).before == starts


def test_lanes_stack_what_overlaps():
    assert lanes([(0, 1), (1, 4), (1, 4), (3, 5), (4, 6)]) == [0, 0, 1, 2, 0]
    assert lanes([]) == []


def test_the_mapping_as_csv(spans, tmp_path):
    found = aligned(spans)
    write_aligned(tmp_path / "t.csv", found)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == list(COLUMNS)
    assert len(rows) == sum(len(one.mapping) for one in found)
    at = iter(rows)
    for one in found:
        for row, (first, stop) in enumerate(one.mapping.tolist()):
            cells = dict(zip(header, next(at), strict=True))
            assert (cells["student"], cells["teacher"]) == ("_s", one.teacher.tokenizer)
            assert cells["token"] == one.student.tokens[row]
            assert [int(cells["start"]), int(cells["end"])] == one.student.spans[row].tolist()
            if first < 0:
                assert (cells["link"], cells["first"], cells["teacher_tokens"]) == (
                    "unmapped",
                    "",
                    "",
                )
            else:
                assert [int(cells["first"]), int(cells["stop"])] == [first, stop]
                assert json.loads(cells["teacher_tokens"]) == one.teacher.tokens[first:stop]


def test_boxes_and_lines_are_tokens_and_links(spans):
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from research.paper.figures import draw_tokens

    found = aligned(spans)
    (axes,) = draw_tokens(found).axes
    sides = [side for one in found for side in (one.student, one.teacher)]
    with_text = [int((side.spans[:, 0] < side.spans[:, 1]).sum()) for side in sides]
    assert len(axes.patches) == len(axes.texts) == sum(with_text)
    linked = sum(int((one.mapping[:, 1] - one.mapping[:, 0]).sum()) for one in found)
    assert len(axes.lines) == linked
    names = [label.get_text().splitlines() for label in axes.get_yticklabels()]
    assert [name for name, _ in names] == [" _s", r"b\$", " _s", "w", " _s", "same"]
    for (_, counted), side, drawn in zip(names, sides, with_text, strict=True):
        empty = len(side.ids) - drawn
        more = f", {empty} without text" if empty else ""
        assert counted == f"{len(side.ids)} tokens{more}"
    for line in axes.lines:
        (x, other), (upper, lower) = line.get_data()
        assert 0 < x < axes.get_xlim()[1] > other > 0
        assert upper > lower


def test_the_text_in_order_in_each_row(spans):
    """The boxes' labels, from left to right, are the text as its tokens cut it."""
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from research.paper.figures import draw_tokens

    text = "The sum of 17 and 25"
    (axes,) = draw_tokens(
        align_teachers(("s", spans["llama"]), {"t": spans["byte-level"]}, text)
    ).axes
    rows = {}
    for label in axes.texts:
        x, y = label.get_position()
        rows.setdefault(round(y, 3), []).append((x, label.get_text()))
    assert len(rows) == 2
    for row in rows.values():
        assert "".join(label for _, label in sorted(row)).replace("␣", " ") == text


def test_parts_of_a_character_that_share_a_span_are_stacked(spans):
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from families import Unproving
    from research.paper.figures import draw_tokens

    teacher = spans["byte-level"]
    table = teacher._table
    teacher._table = Unproving(table)
    try:
        found = align_teachers(("s", spans["llama"]), {"t": teacher}, "a Ψ b")
    finally:
        teacher._table = table
    boxes = draw_tokens(found).axes[0].patches
    places = {(round(box.get_x(), 3), round(box.get_y(), 3)) for box in boxes}
    assert len(places) == len(boxes)
    assert len({y for _, y in places}) > 2


@pytest.mark.parametrize(("out", "magic"), [("new/t.png", b"\x89PNG"), ("t.svg", b"<?xml")])
def test_figure_and_csv_are_written(run, tmp_path, capsys, out, magic):
    assert run("--out", out, "--text", TEXT, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    before = (tmp_path / found["figure"]).read_bytes()
    assert before.startswith(magic)
    assert [one["teacher"]["tokenizer"] for one in found["teachers"]] == ["teacher", "student"]
    assert found["teachers"][0]["text"] == TEXT
    assert (tmp_path / found["data"]).is_file()
    assert run("--out", out, "--text", TEXT) == 0
    assert (tmp_path / out).read_bytes() == before


def test_the_table(run, spans, capsys):
    assert run("--text", TEXT) == 0
    captured = capsys.readouterr()
    header, student, _, same = (line.split() for line in captured.out.splitlines())
    count = str(len(spans["llama"].encode([TEXT]).ids))
    assert header == ["tokenizer", "tokens", "1:1", "1:N", "N:1"]
    assert student == ["student", count, "-", "-", "-"]
    assert same == ["student", count, count, "0", "0"]
    assert captured.err.split() == ["tokens.svg", "tokens.csv"]


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (["--out", "t.pdf"], "--out: expected a file ending in .png or .svg, got t.pdf"),
        (["--text", ""], "no tokens in '' to draw; give it some text"),
        (["--text", "ab " * 34], "the text takes 102 columns; at most 100 fit in a line"),
        (["--text", "é" * 40], None),
        (["--text", "日"], "日 (U+65E5) is in none of the figure's fonts, DejaVu Sans Mono and"),
        (["--teachers", "none.json"], "none.json: no such file"),
    ],
)
def test_errors_of_the_command(run, tmp_path, capsys, rest, words):
    assert run(*rest) == (2 if words else 0)
    if words:
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert words in error
        assert not list(tmp_path.glob("t*"))


def test_characters_that_are_cut_take_more_columns(spans):
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from research.paper.figures import draw_tokens

    with pytest.raises(InputError, match="the text takes 160 columns; at most 100"):
        draw_tokens(aligned(spans, "Ψ" * 40))


@pytest.mark.slow
def test_the_papers_figure():
    """Fig. 2: "Probability, Uncertainty" in 4, 8, 6 and 7 tokens."""
    names = ("tinyllama", "qwen2.5", "mistral-v0.1", "deepseek-llm")
    student, *teachers = (
        (name, TokenSpans(shared("tokenizers", f"{name}.json.gz"))) for name in names
    )
    found = align_teachers(student, dict(teachers), "Probability, Uncertainty")
    assert [*(len(one.teacher.ids) for one in found), len(found[0].student.ids)] == [4, 8, 6, 7]
    assert [one.mapping.tolist() for one in found] == [
        [[0, 1], [0, 1], [0, 1], [1, 2], [2, 3], [2, 4], [3, 4]],
        [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 7], [7, 8]],
        [[0, 1], [0, 1], [1, 2], [2, 3], [3, 4], [3, 5], [5, 6]],
    ]
    assert all(one.coverage == 1 for one in found)
