"""Shares, the paper's averages, and results of several evaluations in a folder: none is lost."""

import json

import pytest

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import PAPER
from vocagno.evaluation.judge import Verdict
from vocagno.evaluation.summary import (
    METRICS,
    RESULTS,
    Measured,
    averages,
    by_metric,
    merge_results,
    read_stored,
    results,
    share_of,
)

ABOUT = {"weights": "w", "dtype": "auto", "vocagno": "1"}


def measured(source="here", **right):
    """Results by benchmark: how many of how many are right by the harness, and none by the other
    metric."""
    verdicts = {
        name: [Verdict("", index < first, False, ()) for index in range(count)]
        for name, (first, count) in right.items()
    }
    return Measured(by_metric(verdicts), dict.fromkeys(right, source))


def write(folder, evaluation, **about):
    data = results("m", evaluation.shares, {**ABOUT, **about, "examples": evaluation.examples})
    (folder / RESULTS).write_text(json.dumps(data))
    return data


def test_results_are_read_as_they_were_written(tmp_path):
    evaluation = measured(gsm8k=(481, 1319), svamp=(1, 3), math=(3, 7))
    write(tmp_path, evaluation)
    assert read_stored(tmp_path, ABOUT) == evaluation
    assert read_stored(tmp_path / "none", ABOUT) == measured()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 1319, 99_991])
def test_a_rounded_percentage_gives_the_exact_share(tmp_path, count):
    for right in {0, 1, count // 3, count - 1, count}:
        write(tmp_path, measured(gsm8k=(right, count)))
        stored = read_stored(tmp_path, ABOUT)
        assert stored.shares[METRICS[0]]["gsm8k"] == share_of(right, count)


def test_results_are_added_and_the_one_of_more_items_is_kept():
    before = measured("old", svamp=(1, 3), gsm8k=(5, 10), asdiv=(1, 4))
    now = measured("new", gsm8k=(1, 2), asdiv=(2, 4), minerva_math=(0, 1))
    merged = merge_results(before, now)
    counts = {name: share.count for name, share in merged.shares["harness_match"].items()}
    assert counts == {"gsm8k": 10, "minerva_math": 1, "svamp": 3, "asdiv": 4}
    assert merged.shares["harness_match"]["asdiv"].value == 0.5  # the later of as many
    assert merged.shares["math_verify"].keys() == merged.shares["harness_match"].keys()
    sources = {"gsm8k": "old", "minerva_math": "new", "svamp": "old", "asdiv": "new"}
    assert merged.examples == sources


@pytest.mark.parametrize("name", ABOUT)
def test_results_of_another_model_or_setting_are_not_replaced(tmp_path, name):
    write(tmp_path, measured(gsm8k=(1, 2)), **{name: "other"})
    with pytest.raises(InputError, match=rf"results\.json: .* {name} 'other', not .*another --out"):
        read_stored(tmp_path, ABOUT)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: [],
        lambda data: {"model": "m", "scores": {"GSM8K": 3.0}},
        lambda data: {**data, "about": {**data["about"], "examples": {"svamp": ""}}},
        *(
            lambda data, entry=entry: {**data, "about": {**data["about"], "math_verify": entry}}
            for entry in (
                {"GSM8K": {"count": 0}},
                {"GSM8K": {"percent": "a", "count": 0}},
                {"GSM8K": {"percent": 0, "count": 0}},
                {"GSM8K": {"percent": 900, "count": 5}},
            )
        ),
    ],
)
def test_a_damaged_file_of_results_is_refused(tmp_path, change):
    path, data = tmp_path / RESULTS, write(tmp_path, measured(gsm8k=(1, 2)))
    for text in (json.dumps(change(data)), json.dumps(data)[:-30]):
        path.write_text(text)
        with pytest.raises(InputError, match=r"results\.json: damaged, or not of .*move it away"):
            read_stored(tmp_path, ABOUT)


@pytest.mark.parametrize(("right", "count"), [(0, 0), (1, 0), (2, 1), (-1, 3)])
def test_a_share_of_no_items_or_of_too_many_is_refused(right, count):
    with pytest.raises(ValueError, match=f"right: expected 0 to {count} .* got {right}; omit"):
        share_of(right, count)


def test_averages():
    """Sees a benchmark in a mean whose name leaves it out, and errors added as they are."""
    shares = measured(**{name: (right, 10) for right, name in enumerate(PAPER)}).shares
    by_name = shares["harness_match"]
    assert by_name["gsm_hard"].value == 0.2
    assert by_name["gsm_hard"].error == pytest.approx((0.2 * 0.8 / 9) ** 0.5)
    means = averages(by_name)
    tabulated = [index for index, name in enumerate(PAPER) if name != "gsm_hard"]
    assert means["AVG"].value == pytest.approx(sum(tabulated) / 90)
    assert means["AVG"].count == 90
    assert means["AVG (w/o SAT)"].count == 80
    assert means["AVG (w/o *)"].count == 60
    errors = [by_name[name].error for name in PAPER if name != "gsm_hard"]
    assert means["AVG"].error == pytest.approx(sum(error**2 for error in errors) ** 0.5 / 9)
    assert "AVG (w/o *)" in averages(
        {name: by_name[name] for name in PAPER[:6]} | {"mathqa": by_name["mathqa"]}
    )
    assert averages({"gsm8k": share_of(1, 1)}) == {}
    report = results("m", shares, {})
    assert report["scores"]["GSM-Hard"] == 20.0
    assert report["about"]["harness_match"]["AVG"]["count"] == 90
