"""The rule of a `GuidanceConfig` in words: excess loss, threshold and neighbours."""

from vocagno.config.guidance import GuidanceConfig

_ROUNDING = 1e-6
"""Thresholds are compared in float32."""


def is_quota(guidance: GuidanceConfig) -> bool:
    """Whether a fixed number of the largest excess losses is kept (Eq. 4)."""
    return guidance.has_quota_alone


def percent(guidance: GuidanceConfig) -> str:
    """The share of the competing tokens that is kept."""
    assert guidance.top_fraction is not None
    return f"{100 * guidance.top_fraction:.6g} %"


def excess_of(guidance: GuidanceConfig) -> str:
    """The loss that is compared with the threshold."""
    return "the excess loss of its group" if guidance.unit == "group" else "its excess loss"


def threshold_that_applied(guidance: GuidanceConfig, threshold: float | None) -> str:
    """The threshold of a scope, named after the option that set it.

    Args:
        threshold: in nats; None if it is not known.
    """
    cap = guidance.max_threshold
    if cap is not None and (
        guidance.top_fraction is None or threshold is None or threshold >= cap - _ROUNDING
    ):
        return f"the threshold of {cap:g}"
    quota = f"the threshold of the top {percent(guidance)}"
    return quota if threshold is None else f"{quota}, {threshold:+.3f}"


def threshold_of_any(guidance: GuidanceConfig) -> str:
    """The threshold of every scope."""
    if guidance.top_fraction is None:
        assert guidance.max_threshold is not None
        return f"the threshold of {guidance.max_threshold:g} nats"
    quota = f"the threshold of the top {percent(guidance)}"
    if guidance.max_threshold is None:
        return quota
    return f"{quota}, or {guidance.max_threshold:g} nats where that is less"


def rule(guidance: GuidanceConfig) -> str:
    """The rule as sentences; not for a quota (`is_quota`)."""
    if guidance.has_no_threshold:
        sentences = ["A token with a teacher loss is kept unless it is noise."]
    else:
        threshold = threshold_of_any(guidance)
        sentences = [f"A token is kept if {excess_of(guidance)} reaches {threshold}."]
    if guidance.window is not None:
        sign = signs_of_noise(guidance, "its")
        sentences.append(f"A token is noise, and dropped, if {sign}.")
        sentences.append(f"Its neighbours are {neighbours(guidance)}.")
    return " ".join(sentences)


def signs_of_noise(guidance: GuidanceConfig, whose: str) -> str:
    """The condition on the neighbours under which a token is noise."""
    most = guidance.window_max_loss
    assert most is not None
    return f"the teacher loses more than {most:g} nats a byte on {whose} neighbours"


def neighbours(guidance: GuidanceConfig) -> str:
    """The other tokens of its line."""
    unit = "its group" if guidance.unit == "group" else "it"
    return f"the tokens of its line without {unit}"
