"""When a loop stops: too few teacher losses, and parts that were made for other guidance."""

import pytest

pytest.importorskip("torch")

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError, GuidanceError
from vocagno.guidance.batch import TokenCounts, check_coverage, check_guidance

PAPER = GuidanceConfig(top_fraction=0.4)
GOOD = TokenCounts(
    predicted=1100, with_text=1000, mapped=1000, scorable=1000, scored=1000, special=100
)


@pytest.mark.parametrize(
    "counts",
    [
        GOOD,
        GOOD._replace(scorable=0, scored=0),  # only first tokens of documents
        TokenCounts(predicted=3, special=3),
        TokenCounts(),
    ],
)
def test_covered_text_and_batches_without_text_pass(counts):
    check_coverage(counts, PAPER)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            {"mapped": 950, "hole": 50, "unscored": 60},
            r"only 95.00% of the tokens map to the teacher .*cause: hole \(50",
        ),
        ({"mapped": 900, "hole": 40, "truncated": 60}, r"only 90.00% .*map.* truncated \(60"),
        ({"scored": 900, "unscored": 100}, r"only 90.00% .*have a teacher loss.* unscored \(100"),
    ],
)
def test_too_little_coverage_names_its_main_cause(counts, words):
    counts = GOOD._replace(**counts)
    with pytest.raises(GuidanceError, match=f"^step 7: {words}"):
        check_coverage(counts, PAPER, "step 7")
    check_coverage(counts, GuidanceConfig(min_coverage=0.9, top_fraction=0.4))
    check_coverage(counts, GuidanceConfig(method="cpt"))


def test_scores_of_another_corpus_stop_a_loop():
    with pytest.raises(GuidanceError, match=r"^no text of these 1,100 tokens has scores"):
        check_coverage(TokenCounts(predicted=1100, missing=1100), PAPER)
    check_coverage(GOOD._replace(predicted=1101, missing=1), PAPER)


def test_guidance_that_differs_is_named():
    check_guidance(PAPER, GuidanceConfig(top_fraction=0.4), "both")
    other = GuidanceConfig(top_fraction=0.6, unmapped="mean")
    words = (
        "both: made for guidance.top_fraction 0.4, not 0.6, guidance.unmapped include, not mean;"
    )
    with pytest.raises(ConfigError, match=words):
        check_guidance(PAPER, other, "both")
