"""The rule of a `GuidanceConfig` in words: excess loss, threshold, neighbours and weight."""

from vocagno.config.guidance import GuidanceConfig

_ROUNDING = 1e-6
"""Thresholds are compared in float32."""


def is_quota(guidance: GuidanceConfig) -> bool:
    """Whether a fixed number of the largest excess losses is kept (Eq. 4)."""
    return guidance.has_quota_alone


def least_kept(guidance: GuidanceConfig) -> float:
    """The smallest weight that is shown as kept: halfway from that of dropped tokens to 1."""
    return (1 + guidance.min_weight) / 2


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
    least = f"{guidance.min_weight:g}"
    if guidance.has_no_threshold:
        sentences = ["A token with a teacher loss is kept unless it is noise."]
    elif guidance.weight == "hard":
        threshold = threshold_of_any(guidance)
        sentences = [f"A token is kept if {excess_of(guidance)} reaches {threshold}."]
    else:
        sentences = [
            f"The weight of a token is {_formula(guidance)}, where {excess_of(guidance)} is x nats "
            f"above {threshold_of_any(guidance)}."
        ]
    if guidance.weight == "hard" and guidance.min_weight:
        sentences.append(f"Dropped tokens have the weight {least}.")
    if guidance.window is not None:
        outcome = "dropped" if guidance.weight == "hard" else f"of weight {least}"
        signs = signs_of_noise(guidance, "its")
        sentences.append(f"A token is noise, and {outcome}, if {signs}.")
        sentences.append(f"Its neighbours are {neighbours(guidance)}.")
    return " ".join(sentences)


def signs_of_noise(guidance: GuidanceConfig, whose: str) -> str:
    """The conditions on the neighbours under which a token is noise."""
    signs = []
    if (most := guidance.window_max_loss) is not None:
        signs.append(f"the teacher loses more than {most:g} nats a byte on {whose} neighbours")
    if (least := guidance.window_threshold) is not None:
        signs.append(f"the mean excess loss of {whose} neighbours is below {least:g} nats")
    return " or ".join(signs)


def neighbours(guidance: GuidanceConfig) -> str:
    """The tokens in the window."""
    unit = "its group" if guidance.unit == "group" else "it"
    if guidance.window == "line":
        return f"the tokens of its line without {unit}"
    tokens = "1 token" if guidance.window == 1 else f"{guidance.window} tokens"
    return f"{tokens} before {unit} and as many after it"


def _formula(guidance: GuidanceConfig) -> str:
    """The weight of a token x nats above the threshold."""
    scale, least = guidance.weight_scale, guidance.min_weight
    x = "x" if scale == 1 else f"x / {scale:g}"
    formula = f"1 / (1 + exp(−{x}))" if guidance.weight == "sigmoid" else f"min(1, exp({x}))"
    return f"{least:g} + {1 - least:g} · {formula}" if least else formula
