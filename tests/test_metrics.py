"""The guard: when a run stops, and which reason it names."""

import pytest

pytest.importorskip("torch")

from vocagno.config import GuidanceConfig
from vocagno.training.data import COUNTS
from vocagno.training.metrics import GuidanceError, check_window
from vocagno.training.metrics import Window as MetricsWindow


def entry_of(**counts):
    import torch

    window = MetricsWindow(torch.device("cpu"))
    window.add_step(dict.fromkeys(COUNTS, 0) | counts, torch.tensor(1.0))
    return window.entry(7, dict.fromkeys(("nll", "kept_nll", "excess", "teacher"), 1.0))


GOOD = {"predicted": 1100, "kept": 440, "with_text": 1000, "mapped": 1000, "scorable": 1000,
        "scored": 1000, "special": 100}  # fmt: skip


def test_a_good_window_passes():
    entry = entry_of(**GOOD)
    assert entry["coverage"] == entry["scored"] == 1.0
    check_window(entry, GuidanceConfig())


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"mapped": 950, "hole": 50, "unscored": 60}, r"coverage is 95.00%.*most .* hole \(50"),
        ({"mapped": 900, "hole": 40, "truncated": 60}, r"coverage is 90.00%.*truncated \(60"),
        ({"scored": 900, "unscored": 100}, r"scored is 90.00%.*unscored \(100"),
    ],
)
def test_too_little_names_the_reason_that_matters(counts, words):
    with pytest.raises(GuidanceError, match=f"step 7: {words}"):
        check_window(entry_of(**GOOD | counts), GuidanceConfig())
    check_window(entry_of(**GOOD | counts), GuidanceConfig(min_coverage=0.9))


def test_first_tokens_alone_are_nobodys_fault():
    check_window(entry_of(**GOOD | {"scorable": 0, "scored": 0}), GuidanceConfig())


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_none_stops_naive_training_too(loss):
    entry = entry_of(**GOOD) | {"loss": loss}
    with pytest.raises(GuidanceError, match="step 7: loss is"):
        check_window(entry, GuidanceConfig(method="cpt"))
