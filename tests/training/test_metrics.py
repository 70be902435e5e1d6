"""The log of a window, and what a run says of it."""

import pytest

torch = pytest.importorskip("torch")

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import GuidanceError
from vocagno.guidance.methods import method_of
from vocagno.guidance.totals import LossSums, TokenCounts
from vocagno.training.metrics import (
    StepRecord,
    ThresholdWatch,
    Window,
    unusual_selection,
)


def window_of(kept, counts):
    """One step, on whose device `kept` tokens are kept."""
    window = Window(torch.device("cpu"), method_of(GuidanceConfig(top_fraction=0.4)))
    one = torch.tensor(1.0)
    sums = LossSums(one, one, one, one, one, torch.tensor(float(kept))).tensor()
    window.records.append(StepRecord(6, TokenCounts(**counts), one, sums, []))
    return window


def entry_of(**counts):
    window = window_of(counts["kept"], counts)
    return window.entry(7, window.sums())


GOOD = {
    "predicted": 1100,
    "kept": 440,
    "with_text": 1000,
    "mapped": 1000,
    "scorable": 1000,
    "scored": 1000,
    "special": 100,
}


def test_a_window_that_drops_most_of_the_text_says_so():
    guidance = GuidanceConfig(window_max_loss=1.0)
    entry = {"step": 10, "kept_fraction": 0.4, "unmapped": {}}
    assert "only 40% of the tokens are kept" in unusual_selection(entry, guidance)
    assert unusual_selection(entry | {"kept_fraction": 0.9}, guidance) is None
    quota = GuidanceConfig(window_max_loss=1.0, top_fraction=0.4)  # drops most by itself
    assert unusual_selection(entry, quota) is None


def test_a_threshold_above_zero_is_said_once():
    watch = ThresholdWatch(GuidanceConfig(top_fraction=0.4), steps=100)
    assert watch.look({"step": 10, "threshold": 2.0}) is None  # at the start it always is
    assert "+1.25 nats" in watch.look({"step": 30, "threshold": 1.25})
    assert watch.look({"step": 40, "threshold": 1.25}) is None
    for guidance, threshold in (
        (GuidanceConfig(top_fraction=0.4), -0.1),
        (GuidanceConfig(top_fraction=0.4), None),
        (GuidanceConfig(max_threshold=1.0, top_fraction=0.4), 1.0),
    ):
        assert ThresholdWatch(guidance, 100).look({"step": 30, "threshold": threshold}) is None


def test_text_that_a_live_teacher_cannot_read_is_said():
    guidance = GuidanceConfig(top_fraction=0.4)
    assert (
        unusual_selection(entry_of(**GOOD | {"predicted": 1110, "missing": 10}), guidance) is None
    )
    words = unusual_selection(entry_of(**GOOD | {"predicted": 1375, "missing": 275}), guidance)
    assert words is not None
    assert "step 7: 20% of the tokens are in text without scores" in words


def test_a_good_window_is_covered():
    entry = entry_of(**GOOD)
    assert entry["coverage"] == entry["scored"] == 1.0


def test_a_device_that_keeps_other_tokens_is_seen():
    window = window_of(439, GOOD)
    with pytest.raises(GuidanceError, match=r"step 7: 439 tokens were kept where .* says 440"):
        window.entry(7, window.sums())


def test_far_more_tokens_than_were_asked_for():
    few = entry_of(**GOOD)
    assert unusual_selection(few, GuidanceConfig(top_fraction=0.4)) is None
    many = entry_of(**GOOD | {"predicted": 2000, "kept": 400 + 1000, "special": 1000})
    words = unusual_selection(many, GuidanceConfig(top_fraction=0.4))
    assert words is not None
    assert "70% of the tokens are kept, not 40%: 50% have no teacher loss" in words
    assert "special), and guidance.unmapped is include" in words
    assert unusual_selection(many, GuidanceConfig(method="cpt")) is None
    assert unusual_selection(many | {"unmapped": {}}, GuidanceConfig(top_fraction=0.4)) is None
    words = unusual_selection(many | {"tokens": 0}, GuidanceConfig(top_fraction=0.4))
    assert "have no teacher loss" in words
