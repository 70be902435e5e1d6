"""One text under two tokenizers, or with the teacher's choice: what is counted, said and drawn."""

import io
import re
from bisect import bisect
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import vocagno
from families import FAMILIES, HARD_TEXTS
from pages import cut, passage
from vocagno import Link, align_text, links
from vocagno.config.guidance import GuidanceConfig
from vocagno.views.html import render_page
from vocagno.views.passage import Passage, StudentToken, Token, add_verdicts, columns
from vocagno.views.texts import GuidedText, PictureError


def test_each_token_has_its_kind_of_link():
    spans = np.array([[0, 2], [2, 4], [4, 6], [6, 8], [0, 0], [8, 9]])
    mapping = np.array([[0, 1], [0, 1], [1, 3], [3, 6], [-1, -1], [5, 6]], np.int32)
    kinds = [Link.MANY_TO_ONE] * 2 + [Link.ONE_TO_MANY] * 2 + [Link.UNMAPPED, Link.MANY_TO_ONE]
    assert links(mapping, spans).tolist() == kinds
    token_mapping = np.array([[3, 5]], np.int32)  # row 4 is a special token: it does not count
    assert links(token_mapping, spans).tolist() == [Link.ONE_TO_ONE]
    assert links(np.empty((0, 2), np.int32), np.empty((0, 2))).shape == (0,)


def test_losses_of_both_sides_are_of_the_same_bytes():
    """By hand: `ab` has no loss of the teacher, `cde` is one group, special tokens do not count."""
    student = [(0, 0, None), (0, 2, 9.0), (2, 3, 1.0), (3, 5, 2.0), (5, 6, 0.5), (6, 6, 7.0)]
    teacher = [(0, 2, None), (2, 4, 0.25), (4, 5, 0.75), (5, 6, 2.0)]
    both = [
        [kind(text="", start=start, end=end, nll=nll) for start, end, nll in side]
        for kind, side in ((StudentToken, student), (Token, teacher))
    ]
    sides = dict(zip(("student", "teacher"), both, strict=True))
    shown = Passage(title="", text="abcdef", **sides, mapping=[(-1, -1)] * 6)
    guided = GuidedText("small", "large", GuidanceConfig(top_fraction=0.4), shown)
    assert guided.nats_per_byte == (3.5 / 4, 3.0 / 4)
    assert guided.as_dict()["nats_per_byte"] == {"student": 0.875, "teacher": 0.75}
    cells = re.findall(r"<td[^>]*>([\d.]+)</td>", guided.html())
    assert [cells[1:3], cells[4:6]] == [["3.900", "0.875"], ["1.000", "0.750"]]
    nothing = replace(shown, teacher=[])
    assert replace(guided, passage=nothing).nats_per_byte is None


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
            expected = Link.MANY_TO_ONE if users > 1 else Link.ONE_TO_ONE
            expected = Link.ONE_TO_MANY if stop - first > 1 else expected
            assert kind == (Link.UNMAPPED if first < 0 else expected)


@pytest.mark.slow
@pytest.mark.parametrize("student", FAMILIES)
def test_every_text_can_be_shown(tokenizers, student):
    pytest.importorskip("rich")
    from vocagno.views.terminal import terminal_lines

    for text in HARD_TEXTS:
        sides = tokenizers[student], tokenizers["byte-level"]
        aligned = align_text(*sides, text, special_tokens=True)
        assert sum(aligned.counts.values()) == len(aligned.mapping)
        for html in (aligned.html(), aligned._repr_html_()):
            for side in ("student", "teacher"):
                rows = [int(row) for row in re.findall(rf"data-{side}=(\d+)", html)]
                assert sorted(rows) == list(range(len(getattr(aligned, side).ids)))
        for width in (20, 100):
            lines = [line.plain for line in terminal_lines(aligned.passage(""), width)]
            assert max(map(columns, lines), default=0) <= width, text
            assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("student", "teacher", "picture"),
    [
        (
            ["", "one", "tw", "o", "three"],
            ["one", "two", "th", "ree"],
            "<s>│one│tw│o│three\n ×   │  └┬─┘ ┌─┴─┐\n   │one│two │th│ree\n",
        ),
        (["ab", "cd"], ["a", "bcd"], "ab│cd\n├──┤\na│bcd\n"),
    ],
)
def test_links_in_a_terminal(student, teacher, picture):
    pytest.importorskip("rich")
    from vocagno.views.terminal import terminal_lines

    text = "".join(student)
    drawn = passage(text, cut(text, *student), cut(text, *teacher))
    assert "\n".join(line.plain[2:] for line in terminal_lines(drawn, 60)) == picture


@pytest.mark.slow
def test_a_text_too_long_to_draw(tokenizers):
    aligned = align_text(tokenizers["llama"], tokenizers["byte-level"], "a" * 300_000)
    assert len(aligned.as_dict()["mapping"]) == len(aligned.student.ids)
    with pytest.raises(PictureError, match=r"300,000 bytes.*--json"):
        aligned.html()
    assert "No picture: the text has 300,000 bytes" in aligned._repr_html_()


LOSSES = {"a": (1.0, 3.5), "b": (2.0, 3.0), "c": (3.0, 2.5)}
"""Of student and teacher; "d" has none of the teacher's. Excess: -2.5, -1.0, +0.5."""


def guided(
    weights, threshold, *, groups=None, heard=None, reasons=None, teacher_starts="abcd", **options
):
    """`<s>`, a, b, c, d and `</s>` with the weights of the last five."""
    guidance = GuidanceConfig(**{"top_fraction": 0.4} | options)
    groups, heard, reasons = groups or {}, heard or {}, reasons or {}
    student = [StudentToken(text="<s>", start=0, end=0, weight=0.0, reason="special")]
    for at, (name, weight) in enumerate(zip("abcd", weights, strict=False)):
        nll, teacher_loss = LOSSES.get(name, (4.0, None))
        reason = reasons.get(name, "mapped" if teacher_loss else "unscored")
        losses = {"nll": nll, "teacher_loss": teacher_loss, "neighbours_loss": heard.get(name)}
        choice = {"unit_excess": groups.get(name), "weight": weight, "reason": reason}
        student.append(StudentToken(text=name, start=at, end=at + 1, **losses, **choice))
    end = {"nll": 5.0, "weight": weights[-1], "reason": "special"}
    student.append(StudentToken(text="</s>", start=4, end=4, **end))
    starts = [*map("abcd".index, teacher_starts), 4]
    teacher = [
        Token(text="abcd"[at:end], start=at, end=end, nll=LOSSES.get("abcd"[at], (0, None))[1])
        for at, end in pairwise(starts)
    ]
    owners = [bisect(starts, at) - 1 for at in range(4)]
    mapping = [(-1, -1), *((owner, owner + 1) for owner in owners), (-1, -1)]
    sides = {"student": student, "teacher": teacher}
    passage = Passage(title="", text="abcd", **sides, threshold=threshold, mapping=mapping)
    return GuidedText("s", "t", guidance, add_verdicts(passage, guidance))


def table(renderable, width=100):
    """The lines of the terminal."""
    rich = pytest.importorskip("rich.console")
    console = rich.Console(width=width, file=io.StringIO(), highlight=False)
    console.print(renderable)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


THRESHOLD = {"top_fraction": None, "max_threshold": -1.0}
MATCHING = {"top_fraction": None, "teacher_starts": "abd"}
OF_TOKENS = {"top_fraction": None, "unit": "token"}
DISTILLING = {"method": "distill", "window_max_loss": 2.75}
LINE = {"window": "line", "window_max_loss": 2.75}


def case(weights, whys, heard=None, **options):
    """A rule of these options, its weights of a, b, c, d and `</s>`, the losses that it hears of
    lines, and why. The last two do not compete, and are included unless told."""
    reasons = whys.split(", ")
    return weights, options, heard or {}, reasons + ["included"] * (5 - len(reasons))


CASES = {
    "quota": case([0, 0, 1, 1, 1], "below, below, top"),
    "threshold": case([0, 1, 1, 1, 1], "below, reaches, reaches", **THRESHOLD),
    "mean of a threshold": case(
        [0, 1, 1, 0, 1], "below, reaches, reaches, below, reaches", **THRESHOLD, unmapped="mean"
    ),
    # One loss is above the limit, the other at it.
    "noise of a line": case(
        [0, 1, 1, 1, 1], "noise, not noise, not noise", {"a": 3.0, "b": 2.75}, **OF_TOKENS, **LINE
    ),
    "noise and a threshold": case(
        [0, 0, 1, 1, 1], "below, noise, reaches", {"b": 3.0}, **THRESHOLD, **LINE
    ),
    "towards likelihoods": case([1, 1, 1, 1, 1], "behind, behind, ahead", **MATCHING, method="alm"),
    "towards distributions": case(
        [1, 0, 1, 1, 1], "start, noise, no start", {"b": 3.0}, **MATCHING, **DISTILLING
    ),
}


def test_a_rule_of_one_s_own_says_whether_not_why():
    shown = guided([1, 0, 1, 0, 1], None).passage
    guidance = GuidanceConfig(top_fraction=0.4)
    object.__setattr__(guidance, "method", "attainable")
    whys = [token.why for token in add_verdicts(shown, guidance).student]
    assert whys == ["not predicted", "kept", "dropped", "kept", "dropped", "kept"]


@pytest.mark.parametrize(("weights", "options", "heard", "whys"), CASES.values(), ids=CASES.keys())
def test_a_verdict_is_one_word(weights, options, heard, whys):
    guided_text = guided(weights, -1.0, heard=heard, **options)
    tokens = guided_text.as_dict()["tokens"]
    assert [token["why"] for token in tokens] == ["not predicted", *whys]
    assert [token["lacks"] for token in tokens] == [*[None] * 4, "unscored", "special"]
    assert [token["kept"] for token in tokens] == [False, *map(bool, weights)]
    assert guided_text.counts["competing"] == 5 - whys.count("included")
    assert all(guided_text.counts[verdict] == whys.count(verdict) for verdict in whys)
    lines, page = table(guided_text), guided_text.html()
    for token, line in zip(tokens, lines[1:], strict=False):
        verdict = ", ".join(filter(None, (token["why"], token["lacks"])))
        sign = "·" if verdict == "not predicted" else "●" if token["kept"] else "○"
        assert line.rstrip().endswith(f"{sign} {verdict}")
        assert f"{'kept' if token['kept'] else 'dropped'} ({verdict})" in page
    assert [token["neighbours_loss"] for token in tokens[1:3]] == [heard.get(name) for name in "ab"]


def test_counts_threshold_and_rule_are_said():
    guided_text = guided([0, 1, 1, 1, 1], -1.0, **THRESHOLD)
    assert guided_text.threshold == -1
    counts = {"tokens": 6, "predicted": 5, "kept": 4, "competing": 3}
    verdicts = {"reaches": 2, "below": 1, "included": 2, "excluded": 0}
    assert guided_text.counts == counts | verdicts
    kept = "4 of 5 predicted tokens are kept."
    verdicts_said = "Verdicts: reaches 2, below 1, included 2. Threshold: -1.000 nats."
    assert guided_text.summary() == f"{kept} {verdicts_said}"
    rule = {"aggregation": "max", "unmapped": "include", "max_threshold": -1}
    assert guided_text.as_dict()["guidance"] == {"top_fraction": None, **rule}
    assert "Rule: aggregation max, unmapped include, max_threshold -1.0." in guided_text.html()


def test_a_page_shows_the_losses_of_groups():
    """b and c are a group: (2 + 3 - 5.5) / 2 nats a token; d is in one that is cut."""
    of_groups = {"groups": {"a": -2.5, "b": -0.25, "c": -0.25}, "reasons": {"d": "partial"}}
    rule = {"unit": "group", "unmapped": "exclude", **THRESHOLD}
    guided_text = guided([0, 1, 1, 0, 0], -1.0, **rule, **of_groups)
    tokens = guided_text.as_dict()["tokens"]
    assert [token["why"] for token in tokens[1:]] == ["below", *["reaches"] * 2, *["excluded"] * 2]
    assert [token["excess"] for token in tokens] == [None, -2.5, -0.25, -0.25, None, None]
    assert [token["lacks"] for token in tokens] == [*[None] * 4, "partial", "special"]
    assert "aggregation" not in guided_text.as_dict()["guidance"]
    mapping = [*guided_text.passage.mapping[:4], (-1, -1), (-1, -1)]
    page = replace(guided_text, passage=replace(guided_text.passage, mapping=mapping)).html()
    assert re.search(r"data-student=2 .*?<small>2.00</small><small>−0.25</small>", page, re.DOTALL)
    # The mean of the student's losses over the group is what the teacher's is taken from.
    assert "student loss 2.000, of its group 2.750" in page
    assert 'class="tok student off unmapped" data-student=4' in page
    assert "no group with all losses" in page
    lines = table(guided_text)
    assert lines[0].split()[-2:] == ["group", "excess"]
    assert "-0.25" in lines[3]


def test_a_page_of_several_rules_has_one_legend():
    rules = {}, {"unit": "group", **THRESHOLD}
    passages = [guided([0, 0, 1, 1, 1], None, **rule).passage for rule in rules]
    page = render_page(title="", summary_rows=[], passages=passages)
    assert page.count("The losses, in nats") == 1
    assert page.count("4 teacher tokens · 3 kept") == 2
