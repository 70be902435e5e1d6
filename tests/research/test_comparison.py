"""The runs of a study as tables: seed by seed, with columns for what was measured."""

import csv
import math
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from research.study.comparison import Spread, compare_variants, markdown
from research.study.measured import Confidence, Measured, write_runs
from research.study.plan import Plan


def measured(variant, seed, loss=2.0, **fields):
    entropy = fields.pop("entropy", None)
    if entropy is not None:
        sure = 0.25, 0.125, 0.75, 1.0 + seed + entropy
        fields["confidence"] = Confidence(9, 9, 2.0, entropy, *sure)
    return replace(Measured(variant, seed, loss, None, 0.4, 100, None, None), **fields)


def plan_of(*names, **against):
    variants = {name: {"against": against[name]} if name in against else {} for name in names}
    return Plan(config="unused", baseline=names[0], tables={}, variants=variants)


def test_only_seeds_that_both_have_are_compared():
    plan = plan_of("a", "b", "c", "d", c="b")
    runs = [
        measured("a", 0, 1.0),
        measured("a", 1, 2.0),
        measured("b", 1, 1.5),
        measured("b", 2, 9.0),
        measured("c", 2, 10.0, exact_answers=0.25),
    ]
    rows = compare_variants(plan, runs, plan.variants)
    assert [row.variant for row in rows] == ["a", "b", "c"]
    assert [row.against for row in rows] == [None, "a", "b"]
    assert rows[1].difference == Spread((-0.5,))
    assert rows[2].difference == Spread((1.0,))
    assert rows[2].exact_answers == Spread((25.0,))
    assert math.isnan(rows[2].difference.deviation)
    text = markdown("t", rows).splitlines()
    assert text[3] == "| b | 2 | 5.2500 ± 5.3033 | a: -0.5000 | - | 40.0% | - | - |"
    assert text[4] == "| c | 1 | 10.0000 | b: +1.0000 | 25.0 | 40.0% | - | - |"


def test_names_do_not_break_the_table():
    plan = plan_of("a|b", "c\nd")
    rows = compare_variants(plan, [measured(name, 0, 1.0) for name in plan.variants], plan.variants)
    lines = markdown("title | two", rows).splitlines()
    assert lines[0].startswith(r"| title \| two | seeds |")
    assert lines[2].startswith(r"| a\|b | 1 |")
    assert lines[3].startswith(r"| c d | 1 | 1.0000 | a\|b: +0.0000 |")


def test_seeds_that_diverged_are_shown_as_such():
    for values in ((math.nan, 1.0), (math.inf, 1.0), (math.inf, -math.inf)):
        assert Spread(values).text(".4f") == "nan ± nan"


def test_columns_of_what_was_measured(tmp_path):
    plan = plan_of("a", "b", "c, too")
    asked = {"answers_at": ((1, 0.5),), "exact_answers": 0.5}
    runs = [
        measured("a", 0, **asked, steps_to_80=200, entropy=1.0),
        measured("a", 1, **asked, steps_to_80=300, entropy=1.5),
        measured("b", 0, **asked, steps_to_80=400),
        measured("b", 1, **asked, entropy=2.0),
        measured("c, too", 0, **asked),
        measured("c, too", 1),
    ]
    rows = compare_variants(plan, runs, plan.variants)
    assert rows[1].confidence.difference == Spread((0.5,))  # of seed 1
    header, _, *lines = markdown("t", rows).splitlines()
    assert "entropy | best guess right (%) | temperature | loss with it | difference" in header
    assert "1.250 ± 0.354 | 25.0 ± 0.0 | 0.750 ± 0.000 | 2.7500 ± 1.0607 | - |" in lines[0]
    assert "2.000 | 25.0 | 0.750 | 4.0000 | a: +0.5000 |" in lines[1]
    assert "a: +0.0000 ± 0.0000 | - | - | - | - | a: - |" in lines[2]
    steps = [line.split(" | ")[10] for line in (header, *lines)]
    assert steps == ["steps to 80 %", "250 ± 71", "400 (1 of 2)", "never"]
    write_runs(tmp_path / "runs.csv", runs)
    header, first, *_, last = (tmp_path / "runs.csv").read_text().splitlines()
    assert header.endswith(
        ",steps_to_80,confidence_wanted,confidence_tokens,confidence_loss,confidence_entropy,"
        "confidence_best_guess_right,confidence_best_guess_probability,confidence_temperature,"
        "confidence_tempered_loss"
    )
    assert first == "a,0,2.0,0.5,0.4,100,,,200,9,9,2.0,1.0,0.25,0.125,0.75,2.0"
    assert last == '"c, too",1,2.0,,0.4,100,,,,,,,,,,,'


def test_other_held_out_text_has_columns_of_its_own(tmp_path):
    """What a run makes worse would otherwise be averaged into what it makes better."""
    plan = plan_of("a", "b")
    start = {"other_start_losses": {"code": 2.5}}
    runs = [
        measured("a", 0, 1.0, other_losses={"code": 3.0}, **start),
        measured("b", 0, 1.5, other_losses={"code": 2.75}, **start),
    ]
    header, _, first, second = markdown("t", compare_variants(plan, runs, plan.variants)).split(
        "\n"
    )[:4]
    assert "| difference from | code (start 2.5000) | code: difference from |" in header
    assert "| 1.0000 | - | 3.0000 | - |" in first
    assert "| 1.5000 | a: +0.5000 | 2.7500 | a: -0.2500 |" in second
    # A corpus may have the name of a column: those of the main corpus stay.
    named_loss = measured("a", 0, 1.25, other_losses={"loss": 9.0}, start_loss=3.0)
    write_runs(tmp_path / "runs.csv", [named_loss])
    (row,) = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert (row["held_out_loss"], row["start_loss"], row["other_loss"]) == ("1.25", "3.0", "9.0")
    write_runs(tmp_path / "runs.csv", runs)
    header, first, second = (tmp_path / "runs.csv").read_text().splitlines()
    assert header.endswith(",other_start_code,other_code")
    assert first.endswith(",2.5,3.0")
    assert second.endswith(",2.5,2.75")
