"""What pictures say of each rule of the choice, with losses and weights that are written here."""

import csv
import io
import json
import math
import re
from dataclasses import replace

import pytest

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.guided_text import GuidedText
from vocagno.views.page import render_page
from vocagno.views.passage import Passage, StudentToken, Token

LOSSES = {"a": (1.0, 3.5), "b": (2.0, 3.0), "c": (3.0, 2.5)}
"""Of student and teacher; "d" has none of the teacher's. Excess: -2.5, -1.0, +0.5."""


def guided(
    weights, threshold, *, groups=None, neighbours=None, heard=None, reasons=None, **options
):
    """`<s>`, a, b, c, d and `</s>` with the weights of the last five."""
    guidance = GuidanceConfig(**{"top_fraction": 0.4} | options)
    groups, neighbours, heard = groups or {}, neighbours or {}, heard or {}
    reasons = reasons or {}
    student = [StudentToken(text="<s>", start=0, end=0, weight=0.0, reason="special")]
    for at, (name, weight) in enumerate(zip("abcd", weights, strict=False)):
        nll, teacher_loss = LOSSES.get(name, (4.0, None))
        student.append(
            StudentToken(
                text=name,
                start=at,
                end=at + 1,
                nll=nll,
                teacher_loss=teacher_loss,
                weight=weight,
                reason=reasons.get(name, "mapped" if teacher_loss else "unscored"),
                unit_excess=groups.get(name),
                neighbours_excess=neighbours.get(name),
                neighbours_loss=heard.get(name),
            )
        )
    student.append(
        StudentToken(text="</s>", start=4, end=4, nll=5.0, weight=weights[-1], reason="special")
    )
    teacher = [
        Token(text=name, start=at, end=at + 1, nll=LOSSES.get(name, (0, None))[1])
        for at, name in enumerate("abcd")
    ]
    passage = Passage(
        title="",
        text="abcd",
        student=student,
        teacher=teacher,
        threshold=threshold,
        mapping=[(-1, -1), *((at, at + 1) for at in range(4)), (-1, -1)],
        least_kept=(1 + guidance.min_weight) / 2,
    )
    return GuidedText("s", "t", guidance, passage)


def words(found):
    """Of a, b, c, d."""
    return [verdict.words(found.guidance) for verdict in found.verdicts[1:5]]


def table(found, width=100):
    """The lines of the terminal."""
    console = pytest.importorskip("rich.console").Console(
        width=width, file=io.StringIO(), highlight=False
    )
    console.print(found)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


def cells(found, row):
    """The small numbers in a student token of the page, by their class."""
    token = re.search(rf"data-student={row} .*?</bdo>(.*?)</span>", found.html(), re.DOTALL)[1]
    return dict(re.findall(r"<small class=(\w+)>(.*?)</small>", token))


INCLUDED = "kept: the teacher has no loss there, and such tokens are included"
THRESHOLD = {"top_fraction": None, "max_threshold": -1.0}


def test_a_threshold():
    found = guided([0, 1, 1, 1, 1], -1.0, **THRESHOLD)
    assert words(found) == [
        "dropped: its excess loss does not reach the threshold of -1",
        "kept: its excess loss reaches the threshold of -1",
        "kept: its excess loss reaches the threshold of -1",
        INCLUDED,
    ]
    assert found.threshold == -1
    assert found.counts == {
        "tokens": 6,
        "predicted": 5,
        "kept": 4,
        "competing": 3,
        "reaches": 2,
        "below": 1,
        "included": 2,
        "excluded": 0,
    }
    assert found.summary() == (
        "4 of 5 predicted tokens are kept. 3 compete, of which 2 reach the threshold of -1 nats; "
        "2 without a teacher loss are included."
    )
    assert found.as_dict()["guidance"] == {
        "top_fraction": None,
        "aggregation": "max",
        "unmapped": "include",
        "max_threshold": -1,
    }
    page = found.html()
    assert "A token is kept if its excess loss reaches the threshold of -1 nats." in page
    assert "top 40" not in page
    assert not re.search("class=weight>", page)


@pytest.mark.parametrize(
    ("cap", "threshold", "weights", "applied"),
    [
        (-2.0, -2.0, [0, 1, 1, 1, 1], "the threshold of -2"),
        (0.25, -1.0, [0, 1, 1, 1, 1], "the threshold of the top 60 %, -1.000"),
        (-2.7, -2.700000047683716, [1, 1, 1, 1, 1], "the threshold of -2.7"),  # in float32
    ],
)
def test_a_quota_with_a_cap_names_the_one_that_applied(cap, threshold, weights, applied):
    found = guided(weights, threshold, top_fraction=0.6, max_threshold=cap)
    outcomes = {1: "kept: its excess loss reaches", 0: "dropped: its excess loss does not reach"}
    assert words(found)[:3] == [f"{outcomes[weight]} {applied}" for weight in weights[:3]]
    assert f"reach {applied} nats" in found.summary()
    assert f"the threshold of the top 60 %, or {cap:g} nats where that is less" in found.html()


def test_groups():
    """b and c are a group: (2 + 3 - 5.5) / 2 nats a token; d is in one that is cut."""
    found = guided(
        [0, 1, 1, 0, 0],
        -1.0,
        unit="group",
        unmapped="exclude",
        **THRESHOLD,
        groups={"a": -2.5, "b": -0.25, "c": -0.25},
        reasons={"d": "partial"},
    )
    assert words(found) == [
        "dropped: the excess loss of its group does not reach the threshold of -1",
        "kept: the excess loss of its group reaches the threshold of -1",
        "kept: the excess loss of its group reaches the threshold of -1",
        "dropped: its group is known only in part: cut by an end of the row, or a teacher loss is "
        "missing, and such tokens are excluded",
    ]
    tokens = found.as_dict()["tokens"]
    assert [token["excess"] for token in tokens] == [None, -2.5, -0.25, -0.25, None, None]
    assert [token["lacks"] for token in tokens] == [*[None] * 4, "partial", "special"]
    assert "3 compete by the excess losses of their groups, of which 2 reach" in found.summary()
    # The mean of the student's losses over the group is what the teacher's is taken from.
    assert cells(found, 2) == {
        "loss": "2.00",
        "mean": "⌀2.75",
        "teachers": "−3.00",
        "excess": "−0.25",
    }
    page = found.html()
    assert "teacher&#x27;s loss (group)" in page
    assert "A token is kept if the excess loss of its group reaches the threshold of -1" in page
    assert "(the max of" not in page
    assert "aggregation" not in found.as_dict()["guidance"]
    lines = table(found)
    assert lines[0].split()[-2:] == ["group", "excess"]
    assert "-0.25" in lines[3]


def test_neighbours_that_say_noise():
    found = guided(
        [0, 0, 1, 1, 1],
        -1.0,
        **THRESHOLD,
        window=1,
        window_threshold=-1.5,
        neighbours={"a": -1.0, "b": -1.75, "c": -1.0},
    )
    assert [verdict.short for verdict in found.verdicts[1:4]] == ["below", "noise", "reaches"]
    assert words(found)[1] == (
        "dropped: noise, its neighbours' mean excess loss of -1.750 is below -1.5"
    )
    assert found.counts["noise"] == found.counts["below"] == found.counts["reaches"] == 1
    assert found.counts["competing"] == 3
    assert (
        "1 reach the threshold of -1 nats and are not noise; 1 is noise: the mean excess loss of "
        "their neighbours is below -1.5 nats"
    ) in found.summary()
    tokens = found.as_dict()["tokens"]
    assert [token["neighbours_excess"] for token in tokens[1:4]] == [-1, -1.75, -1]
    page = found.html()
    assert "excess of its neighbours" in page
    assert "<td>−1.750</td>" in page
    assert "Its neighbours are 1 token before it and as many after it." in page


def test_a_teacher_that_loses_much_on_the_neighbours():
    """Above the limit, not at it; the same token may be noise by its neighbours' excess, too."""
    found = guided(
        [0, 1, 0, 1, 1],
        -1.0,
        **THRESHOLD,
        window="line",
        window_max_loss=2.75,
        window_threshold=0.0,
        heard={"a": 3.0, "b": 2.75, "c": 2.5},
        neighbours={"a": -0.5, "b": 0.0, "c": -0.5},
    )
    assert words(found)[:3] == [
        "dropped: noise, on its neighbours the teacher loses 3.000 nats a byte, more than 2.75",
        "kept: its excess loss reaches the threshold of -1",
        "dropped: noise, its neighbours' mean excess loss of -0.500 is below 0",
    ]
    assert found.counts["noise"] == 2
    signs = (
        "the teacher loses more than 2.75 nats a byte on {0} neighbours or the mean excess loss of "
        "{0} neighbours is below 0 nats"
    )
    assert f"2 are noise: {signs.format('their')};" in found.summary()
    page = found.html()
    assert f"A token is noise, and dropped, if {signs.format('its')}." in page
    assert "Its neighbours are the tokens of its line without it." in page
    assert "<td>2.750</td><td>+0.000</td>" in page
    assert "teacher loss on its neighbours 3.000 nats a byte" in page
    lines = list(csv.DictReader(io.StringIO(found.csv())))
    assert [line["neighbours_loss"] for line in lines[1:4]] == ["3.0", "2.75", "2.5"]


def test_soft_weights_are_numbers():
    """sigmoid((excess + 1) / 2), a tenth at least: (1 + 9 / (1 + e^0.75)) / 10 and so on."""
    low, high = (0.1 + 0.9 / (1 + math.exp(-z)) for z in (-0.75, 0.75))
    found = guided(
        [low, 0.55, high, 1, 1],
        -1.0,
        **THRESHOLD,
        weight="sigmoid",
        weight_scale=2.0,
        min_weight=0.1,
    )
    assert words(found) == [
        "weight 0.39: its excess loss is 1.500 nats below the threshold of -1",
        "weight 0.55: its excess loss is 0.000 nats above the threshold of -1",
        "weight 0.71: its excess loss is 1.500 nats above the threshold of -1",
        INCLUDED,
    ]
    assert [verdict.kept for verdict in found.verdicts] == [False, False, True, True, True, True]
    assert found.weight == pytest.approx(0.1 + 0.9 + 0.55 + 0.1 + 2)  # low + high = 0.2 + 0.9
    assert found.summary().startswith(
        "The weights of 5 predicted tokens add up to 3.65; 4 of them are 0.55 or more. 3 compete, "
        "with weights (sigmoid) by the distance from the threshold of -1 nats; 2 without"
    )
    data = found.as_dict()
    assert [token["weight"] for token in data["tokens"]] == [0, low, 0.55, high, 1, 1]
    assert data["weight"] == found.weight
    assert [token["why"] for token in data["tokens"][1:4]] == ["weighted"] * 3
    lines = list(csv.DictReader(io.StringIO(found.csv())))
    assert [float(line["weight"]) for line in lines] == [0, low, 0.55, high, 1, 1]
    page = found.html()
    assert "0.1 + 0.9 · 1 / (1 + exp(−x / 2)), where its excess loss is x nats above" in page
    assert [cells(found, row)["weight"] for row in (1, 2, 3)] == ["×0.39", "×0.55", "×0.71"]
    assert "<td class=weight>0.39</td>" in page
    assert "weight 0.39 (mapped)" in page  # of what pointing tells
    for width in (44, 70, 100):
        drawn = table(found, width)
        assert [re.search(r"[●○] 0\.\d\d", line)[0] for line in drawn[2:5]] == [
            "○ 0.39",
            "● 0.55",
            "● 0.71",
        ]
    assert "● ━ weight 0.55 or more   ○ ╌ less" in "\n".join(drawn)


def test_a_power_has_noise_without_weight():
    found = guided(
        [math.exp(-1.5), 1, 0, 1, 1],
        -1.0,
        **THRESHOLD,
        weight="power",
        window="line",
        window_threshold=0.0,
        neighbours={"a": 0.5, "b": 0.0, "c": -0.5},
    )
    assert words(found)[:3] == [
        "weight 0.22: its excess loss is 1.500 nats below the threshold of -1",
        "weight 1.00: its excess loss is 0.000 nats above the threshold of -1",
        "weight 0.00: noise, its neighbours' mean excess loss of -0.500 is below 0",
    ]
    assert "The weight of a token is min(1, exp(x))" in found.html()
    assert "A token is noise, and of weight 0, if the mean excess loss" in found.html()


def test_dropped_tokens_may_have_a_weight():
    found = guided([0.25, 1, 1, 1, 1], -1.0, **THRESHOLD, min_weight=0.25)
    assert words(found)[:2] == [
        "dropped, weight 0.25: its excess loss does not reach the threshold of -1",
        "kept: its excess loss reaches the threshold of -1",
    ]
    assert (found.counts["kept"], found.weight) == (4, 4.25)
    assert "2 reach the threshold of -1 nats; the others have the weight 0.25" in found.summary()
    assert "Dropped tokens have the weight 0.25." in found.html()
    assert "○ 0.25 below" in table(found)[2]
    assert json.loads(json.dumps(found.as_dict()))["tokens"][1]["kept"] is False


def test_the_mean_teacher_loss_under_a_threshold():
    found = guided([0, 1, 1, 0, 1], -1.0, **THRESHOLD, unmapped="mean", unit="group")
    assert words(found)[3] == (
        "dropped: the teacher has no loss there; with the mean teacher loss instead, its excess "
        "loss does not reach the threshold of -1"
    )
    soft = guided([0.2, 0.5, 0.8, 0.6, 1], -1.0, **THRESHOLD, unmapped="mean", weight="sigmoid")
    assert words(soft)[3] == (
        "weight 0.60: the teacher has no loss there; with the mean teacher loss instead, by the "
        "distance of its excess loss from the threshold of -1"
    )


def test_a_page_of_several_rules_has_a_legend_for_each():
    rules = {
        "paper <1>": GuidanceConfig(top_fraction=0.4),
        "groups": GuidanceConfig(unit="group", **THRESHOLD),
    }
    passages = [guided([0, 0, 1, 1, 1], None).passage]
    page = render_page(title="", summary_rows=[], passages=passages, guidance=rules)
    assert re.findall("<h3>(The choice.*?)</h3>", page) == [
        "The choice, paper &lt;1&gt;",
        "The choice, groups",
    ]
    assert "The largest ones are kept for training, the rest is only read." in page
    assert "the excess loss of its group reaches the threshold of -1 nats" in page


def test_pages_of_a_run_follow_the_rule():
    def drawn(found):
        return render_page(
            title="", summary_rows=[], passages=[found.passage], guidance=found.guidance
        )

    quota = drawn(guided([0, 0, 1, 1, 1], 0.5))
    assert quota == drawn(guided([0, 0, 1, 1, 1], None))
    assert "The largest ones are kept for training, the rest is only read." in quota
    assert "4 teacher tokens · 3 kept" in quota
    page = drawn(guided([0.2, 0.5, 0.8, 1, 1], -1.0, **THRESHOLD, weight="sigmoid"))
    assert "The largest ones are kept" not in page
    assert "The weight of a token is 1 / (1 + exp(−x))" in page
    assert "weights add up to 3.5, 4 of 0.5 or more" in page
    groups = guided(
        [0, 1, 1, 1, 1],
        -1.0,
        unit="group",
        **THRESHOLD,
        reasons={"d": "partial"},
        groups={"a": -2.5, "b": -0.25, "c": -0.25},
    )
    mapping = [*groups.passage.mapping[:4], (-1, -1), (-1, -1)]
    page = drawn(replace(groups, passage=replace(groups.passage, mapping=mapping)))
    assert "The excess loss of a group, the fewest tokens of both sides" in page
    assert 'class="chip student unscored" data-student=4' in page  # it shares text
    assert "excess -0.250 nats" in page
    assert "student loss 2.000, of its group 2.750" in page


def test_the_figure_has_weights_as_numbers():
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from vocagno.paper.figures.tokens import draw_guidance

    found = guided([0.2, 0.5, 0.83, 1, 1], -1.0, **THRESHOLD, weight="sigmoid")
    figure = draw_guidance(found.passage)
    (axes,) = figure.axes
    numbers = [text.get_text() for text in axes.texts if text.get_fontsize() < 6]
    assert numbers == [".2", ".5", ".83", "1"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["weight 0.5 or more", "weight below 0.5"]
    assert [line.get_linestyle() for line in axes.lines] == ["--", "-", "-", "-"]
    (axes,) = draw_guidance(guided([0, 1, 1, 1, 1], -1.0, **THRESHOLD).passage).axes
    assert not [text for text in axes.texts if text.get_fontsize() < 6]
