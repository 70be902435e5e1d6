"""Why each student token trains or not: what the weights say, in words."""

from dataclasses import dataclass
from typing import Literal

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.passage import Passage, StudentToken
from vocagno.views.rules import excess_of, is_quota, percent, threshold_that_applied

Why = Literal[
    "top", "below", "reaches", "weighted", "noise", "included", "excluded", "not predicted"
]
"""What settled it. top, below: the token competed for a quota, and its excess loss is among the
largest or not; reaches, below: its excess loss reaches the threshold or not; weighted: its weight
grows with its excess loss; noise: its neighbours say so, whatever its own losses; included,
excluded: it has no teacher loss, and such tokens are kept or dropped; not predicted: it is the
first, with nothing before it to predict it from."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one student token: whether it trains, and why."""

    kept: bool
    """With soft weights: the weight is at least halfway from `min_weight` to 1."""
    why: Why
    lacks: str | None
    """Why there is no teacher loss (special, truncated, hole, unscored, partial); None if there is
    one."""
    weight: float
    excess: float | None = None
    """Of the token, or of its group, in nats."""
    noise: str | None = None
    """Why the token is noise, if it is."""
    threshold: float | None = None
    """The excess loss to be reached, in nats; None if it is not known."""

    @property
    def competed(self) -> bool:
        """Whether it was judged by its excess loss, or that of its neighbours."""
        return self.why in ("top", "below", "reaches", "weighted", "noise")

    @property
    def short(self) -> str:
        """A word or two, for a column."""
        return f"{self.why}, {self.lacks}" if self.lacks else self.why

    def words(self, guidance: GuidanceConfig) -> str:
        """The verdict as a sentence without its full stop."""
        if self.why == "not predicted":
            return "not predicted: nothing stands before it"
        outcome = "kept" if self.kept else "dropped"
        if not self.competed:
            policy = f"and such tokens are {self.why}"
            return f"{outcome}: {_LACKS[self.lacks or 'special']}, {policy}"
        if guidance.weight != "hard":
            outcome = f"weight {self.weight:.2f}"
        elif guidance.min_weight and not self.kept:
            outcome = f"dropped, weight {self.weight:.2f}"
        if self.why == "noise":
            return f"{outcome}: noise, {self.noise}"
        place = self._in_quota(guidance) if is_quota(guidance) else self._by_threshold(guidance)
        if self.lacks:
            place = f"{_LACKS[self.lacks]}; with the mean teacher loss instead, {place}"
        return f"{outcome}: {place}"

    def _in_quota(self, guidance: GuidanceConfig) -> str:
        place = f"among the top {percent(guidance)} by excess loss"
        return f"not {place}" if self.why == "below" else place

    def _by_threshold(self, guidance: GuidanceConfig) -> str:
        if guidance.has_no_threshold:
            return "its neighbours show no noise"
        threshold = threshold_that_applied(guidance, self.threshold)
        # A token without a teacher loss belongs to no group.
        subject = "its excess loss" if self.lacks else excess_of(guidance)
        if self.excess is None and not self.lacks:
            return f"{subject} is NaN or infinite"
        if self.why != "weighted":
            return f"{subject} {'reaches' if self.kept else 'does not reach'} {threshold}"
        if self.excess is None or self.threshold is None:
            return f"by the distance of {subject} from {threshold}"
        distance = self.excess - self.threshold
        side = "below" if distance < 0 else "above"
        return f"{subject} is {abs(distance):.3f} nats {side} {threshold}"


_LACKS = {
    "special": "it covers no text",
    "truncated": "it stands behind the teacher's last token",
    "hole": "no teacher token covers its text",
    "unscored": "the teacher has no loss there",
    "partial": "its group is known only in part: cut by an end of the row, or a teacher loss is "
    "missing",
}


def whys(guidance: GuidanceConfig) -> tuple[Why, ...]:
    """The verdicts on predicted tokens that the rule may give."""
    noise: tuple[Why, ...] = () if guidance.window is None else ("noise",)
    if is_quota(guidance):
        return "top", "below", "included", "excluded"
    if guidance.weight == "hard":
        return "reaches", "below", *noise, "included", "excluded"
    return "weighted", *noise, "included", "excluded"


def verdicts(passage: Passage, guidance: GuidanceConfig) -> list[Verdict]:
    """One for each student token of a passage that was ranked under `guidance`."""
    return [
        _verdict(token, guidance, passage.threshold, kept=passage.is_kept(row))
        for row, token in enumerate(passage.student)
    ]


def _verdict(
    token: StudentToken, guidance: GuidanceConfig, threshold: float | None, *, kept: bool
) -> Verdict:
    lacks = token.reason if token.nll is not None and token.teacher_loss is None else None
    noise = _noise(token, guidance)
    why = _why(token, guidance, kept=kept, is_noise=noise is not None)
    return Verdict(kept, why, lacks, token.weight, token.excess, noise, threshold)


def _why(token: StudentToken, guidance: GuidanceConfig, *, kept: bool, is_noise: bool) -> Why:
    if token.nll is None:
        return "not predicted"
    if token.teacher_loss is None and guidance.unmapped != "mean":
        return "included" if kept else "excluded"
    if is_quota(guidance):
        return "top" if kept else "below"
    if is_noise:
        return "noise"
    if guidance.weight != "hard":
        return "weighted"
    return "reaches" if kept else "below"


def _noise(token: StudentToken, guidance: GuidanceConfig) -> str | None:
    """What says that a token is noise; None if nothing does."""
    loss, most = token.neighbours_loss, guidance.window_max_loss
    if loss is not None and most is not None and loss > most:
        return f"on its neighbours the teacher loses {loss:.3f} nats a byte, more than {most:g}"
    mean, least = token.neighbours_excess, guidance.window_threshold
    if mean is not None and least is not None and mean < least:
        return f"its neighbours' mean excess loss of {mean:+.3f} is below {least:g}"
    return None
