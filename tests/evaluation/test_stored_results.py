"""Results of several evaluations of one model in a folder: added to each other, none lost."""

import json

import pytest

from vocagno.errors import InputError
from vocagno.evaluation.judging import Verdict
from vocagno.evaluation.stored_results import RESULTS, Measured, merged, read_stored
from vocagno.evaluation.summary import METRICS, by_metric, results, share_of

ABOUT = {"weights": "w", "dtype": "auto", "vocagno": "1"}


def measured(source="here", **right):
    """Results by benchmark: how many of how many are right by the harness, and none by the other
    metric."""
    verdicts = {
        name: [Verdict("", one < first, False, ()) for one in range(count)]
        for name, (first, count) in right.items()
    }
    return Measured(by_metric(verdicts), dict.fromkeys(right, source))


def write(folder, found, **about):
    data = results("m", found.found, {**ABOUT, **about, "examples": found.examples})
    (folder / RESULTS).write_text(json.dumps(data))
    return data


def test_what_was_written_is_read_again(tmp_path):
    found = measured(gsm8k=(481, 1319), svamp=(1, 3), math=(3, 7))
    write(tmp_path, found)
    assert read_stored(tmp_path, ABOUT) == found
    assert read_stored(tmp_path / "none", ABOUT) == measured()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 1319, 99_991])
def test_a_rounded_percentage_gives_the_exact_share(tmp_path, count):
    for right in {0, 1, count // 3, count // 2, count - 1, count}:
        write(tmp_path, measured(gsm8k=(right, count)))
        stored = read_stored(tmp_path, ABOUT)
        assert stored.found[METRICS[0]]["gsm8k"] == share_of(right, count)


def test_results_are_added_and_the_one_of_more_items_is_kept():
    before = measured("old", svamp=(1, 3), gsm8k=(5, 10), asdiv=(1, 4))
    now = measured("new", gsm8k=(1, 2), asdiv=(2, 4), minerva_math=(0, 1))
    found = merged(before, now)
    assert {name: share.count for name, share in found.found["harness_match"].items()} == {
        "gsm8k": 10,
        "minerva_math": 1,
        "svamp": 3,
        "asdiv": 4,
    }
    assert found.found["harness_match"]["asdiv"].value == 0.5  # the later of as many
    assert found.found["math_verify"].keys() == found.found["harness_match"].keys()
    assert found.examples == {
        "gsm8k": "old",
        "minerva_math": "new",
        "svamp": "old",
        "asdiv": "new",
    }


@pytest.mark.parametrize("name", ABOUT)
def test_results_of_another_model_or_setting_are_not_replaced(tmp_path, name):
    write(tmp_path, measured(gsm8k=(1, 2)), **{name: "other"})
    with pytest.raises(InputError, match=rf"results\.json: .* {name} 'other', not .*another --out"):
        read_stored(tmp_path, ABOUT)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: [],
        lambda data: 5,
        lambda data: {"model": "m", "scores": {"GSM8K": 3.0}},
        lambda data: {**data, "about": {**data["about"], "examples": 5}},
        lambda data: {**data, "about": {**data["about"], "examples": {"svamp": ""}}},
        lambda data: {**data, "about": {**data["about"], "math_verify": {"GSM8K": {"count": 0}}}},
        lambda data: {
            **data,
            "about": {**data["about"], "math_verify": {"GSM8K": {"percent": "a", "count": 0}}},
        },
        lambda data: {
            **data,
            "about": {**data["about"], "math_verify": {"GSM8K": {"percent": 0, "count": 0}}},
        },
        lambda data: {
            **data,
            "about": {**data["about"], "math_verify": {"GSM8K": {"percent": 900, "count": 5}}},
        },
    ],
)
def test_a_file_of_something_else_is_not_replaced(tmp_path, change):
    data = write(tmp_path, measured(gsm8k=(1, 2)))
    (tmp_path / RESULTS).write_text(json.dumps(change(data)))
    with pytest.raises(InputError, match=r"results\.json: damaged, or not of .*move it away"):
        read_stored(tmp_path, ABOUT)


def test_a_file_that_is_cut_is_not_replaced(tmp_path):
    write(tmp_path, measured(gsm8k=(1, 2)))
    path = tmp_path / RESULTS
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"results\.json: damaged"):
        read_stored(tmp_path, ABOUT)
