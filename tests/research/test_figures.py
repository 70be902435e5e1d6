"""The figures of `research.paper`: bars, boxes, lines and panels are the numbers."""

import pytest

from families import TEXTS, Unproving
from research.paper.granularity import granularity
from research.paper.teachers import align_teachers
from vocagno import TokenSpans, vocabulary_overlap
from vocagno.errors import InputError
from vocagno.views.layout import lanes, side_by_side
from vocagno.views.passage import glyphs

pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")

from research.paper.figures import draw_granularity, draw_tokens, draw_vocabulary_overlap


@pytest.fixture(scope="module")
def spans(tokenizers):
    return {name: TokenSpans(tokenizers[name]) for name in ("llama", "byte-level", "word-piece")}


def aligned(spans, text="José has 17 − 4."):
    teachers = {"b$": spans["byte-level"], "w": spans["word-piece"], "same": spans["llama"]}
    return align_teachers(("_s", spans["llama"]), teachers, text)


@pytest.mark.parametrize(
    ("text", "edges", "starts"),
    [
        ("aé日b", {0, 1, 2, 3}, {0: 0, 1: 1, 2: 3, 3: 5, 6: 7, 7: 8}),
        ("e\u0301x", {0, 3}, {0: 0, 1: 1, 3: 1, 4: 2}),
        ("e\u0301x", {0, 1, 3}, {0: 0, 1: 1, 3: 2, 4: 3}),
        ("e\u0301x", {0, 2}, {0: 0, 1: 1, 2: 3, 3: 5, 4: 6}),
        ("\u0301", {0, 2}, {0: 0, 2: 1}),
    ],
)
def test_characters_stand_side_by_side(text, edges, starts):
    columns = side_by_side(glyphs(text), edges)
    assert (columns.before, columns.width) == (starts, max(starts.values()))


def test_lanes_stack_what_overlaps():
    assert lanes([(0, 1), (1, 4), (1, 4), (3, 5), (4, 6)]) == [0, 0, 1, 2, 0]
    assert lanes([]) == []


def test_bars_are_shares(spans):
    teachers = {"other": spans["byte-level"], "same$": spans["llama"]}
    overlaps = {n: vocabulary_overlap(spans["llama"], teacher) for n, teacher in teachers.items()}
    (panel,) = draw_vocabulary_overlap("llama", overlaps).axes
    widths = [[bar.get_width() for bar in bars] for bars in panel.containers]
    shares = ("string_share", "teacher_byte_share", "student_byte_share")
    assert widths == [[getattr(overlap, name) for overlap in overlaps.values()] for name in shares]
    assert widths[0][1] == 1
    assert [label.get_text() for label in panel.get_yticklabels()] == ["other", r"same\$"]


def test_boxes_and_lines_are_tokens_and_links(spans):
    pairs = aligned(spans)
    (axes,) = draw_tokens(pairs).axes
    sides = [side for pair in pairs for side in (pair.student, pair.teacher)]
    with_text = [int((side.spans[:, 0] < side.spans[:, 1]).sum()) for side in sides]
    assert len(axes.patches) == len(axes.texts) == sum(with_text)
    linked = sum(int((pair.mapping[:, 1] - pair.mapping[:, 0]).sum()) for pair in pairs)
    assert len(axes.lines) == linked
    names = [label.get_text().splitlines() for label in axes.get_yticklabels()]
    assert [name for name, _ in names] == [" _s", r"b\$", " _s", "w", " _s", "same"]
    for (_, counted), side, drawn in zip(names, sides, with_text, strict=True):
        empty = len(side.ids) - drawn
        suffix = f", {empty} without text" if empty else ""
        assert counted == f"{len(side.ids)} tokens{suffix}"
    for line in axes.lines:
        (x, other), (upper, lower) = line.get_data()
        assert 0 < x < axes.get_xlim()[1] > other > 0
        assert upper > lower


def test_labels_from_left_to_right_are_the_text(spans):
    text = "The sum of 17 and 25"
    sides = ("s", spans["llama"]), {"t": spans["byte-level"]}
    (axes,) = draw_tokens(align_teachers(*sides, text)).axes
    rows = {}
    for label in axes.texts:
        x, y = label.get_position()
        rows.setdefault(round(y, 3), []).append((x, label.get_text()))
    assert len(rows) == 2
    for row in rows.values():
        assert "".join(label for _, label in sorted(row)).replace("␣", " ") == text


def test_parts_of_a_character_that_share_a_span_are_stacked(spans, monkeypatch):
    teacher = spans["byte-level"]
    monkeypatch.setattr(teacher, "_table", Unproving(teacher._table))
    pairs = align_teachers(("s", spans["llama"]), {"t": teacher}, "a Ψ b")
    boxes = draw_tokens(pairs).axes[0].patches
    places = {(round(box.get_x(), 3), round(box.get_y(), 3)) for box in boxes}
    assert len(places) == len(boxes)
    assert len({y for _, y in places}) > 2


def test_characters_that_are_cut_take_more_columns(spans):
    draw_tokens(align_teachers(("s", spans["llama"]), {"t": spans["llama"]}, "é" * 40))
    with pytest.raises(InputError, match="the text takes 160 columns; at most 100"):
        draw_tokens(aligned(spans, "Ψ" * 40))


def test_each_panel_shows_the_shares_of_the_levels(spans):
    overlaps = [
        granularity(spans["llama"], spans[teacher], [TEXTS], seq_len=8)
        for teacher in ("byte-level", "llama")
    ]
    figure = draw_granularity(overlaps)
    for panel, share in zip(figure.axes, ("iou", "ios"), strict=True):
        chunks = panel.lines[0]
        assert chunks.get_xdata().tolist() == [0, 1, 2, 3]
        values = [getattr(level, share) for level in overlaps[0].levels]
        assert [*chunks.get_ydata(), *panel.lines[1].get_ydata()] == values
        names = [label.get_text() for label in panel.get_xticklabels()]
        assert names == ["1", "2", "4", "8", "token"]
