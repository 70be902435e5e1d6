"""Verdicts on student tokens: whether each is trained on, and why, in words."""

from dataclasses import dataclass
from typing import Literal

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.passage import Passage, StudentToken
from vocagno.views.rules import excess_of, is_quota, percent, threshold_that_applied

Why = Literal[
    "top",
    "below",
    "reaches",
    "weighted",
    "noise",
    "not noise",
    "included",
    "excluded",
    "not predicted",
]
"""The deciding fact. top, below: the token competes for a quota, and its excess loss is among the
largest or not. reaches, below: its excess loss reaches the threshold or not. weighted: its weight
grows with its excess loss. noise: its neighbours decide, whatever its own losses. not noise: under
a rule without a threshold. included, excluded: it has no teacher loss, and such tokens are kept or
dropped. not predicted: it is the first token."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a student token is trained on, and why."""

    token: StudentToken
    kept: bool
    """With soft weights: the weight is at least halfway from `min_weight` to 1."""
    why: Why
    noise: str | None = None
    """Why the token is noise, if it is."""
    threshold: float | None = None
    """The excess loss to be reached, in nats; None if it is not known."""

    @property
    def lacks(self) -> str | None:
        """Why a predicted token has no teacher loss, as `StudentToken.reason`; None if it has."""
        token = self.token
        return token.reason if token.nll is not None and token.teacher_loss is None else None

    @property
    def competed(self) -> bool:
        """Whether the excess loss decides, or that of the neighbours."""
        return self.why in ("top", "below", "reaches", "weighted", "noise", "not noise")

    @property
    def short(self) -> str:
        """A word or two, for a column."""
        return f"{self.why}, {self.lacks}" if self.lacks else self.why

    def words(self, guidance: GuidanceConfig) -> str:
        """The verdict as a sentence without its full stop."""
        if self.why == "not predicted":
            return "not predicted: it is the first token"
        outcome = "kept" if self.kept else "dropped"
        if not self.competed:
            policy = f"and such tokens are {self.why}"
            return f"{outcome}: {_LACKS[self.lacks or 'special']}, {policy}"
        if guidance.weight != "hard":
            outcome = f"weight {self.token.weight:.2f}"
        elif guidance.min_weight and not self.kept:
            outcome = f"dropped, weight {self.token.weight:.2f}"
        if self.why == "noise":
            return f"{outcome}: noise, {self.noise}"
        place = self._place(guidance)
        if self.lacks:
            place = f"{_LACKS[self.lacks]}; with the mean teacher loss instead, {place}"
        return f"{outcome}: {place}"

    def _place(self, guidance: GuidanceConfig) -> str:
        """The excess loss against the quota or the threshold."""
        if is_quota(guidance):
            place = f"among the top {percent(guidance)} by excess loss"
            return f"not {place}" if self.why == "below" else place
        if self.why == "not noise":
            return "its neighbours show no noise"
        excess = self.token.excess
        # A token without a teacher loss belongs to no group.
        subject = "its excess loss" if self.lacks else excess_of(guidance)
        if guidance.has_no_threshold or (excess is None and not self.lacks):
            return f"{subject} is NaN or infinite"
        threshold = threshold_that_applied(guidance, self.threshold)
        if self.why != "weighted":
            return f"{subject} {'reaches' if self.kept else 'does not reach'} {threshold}"
        if excess is None or self.threshold is None:
            return f"by the distance of {subject} from {threshold}"
        distance = excess - self.threshold
        side = "below" if distance < 0 else "above"
        return f"{subject} is {abs(distance):.3f} nats {side} {threshold}"


_LACKS = {
    "special": "it covers no text",
    "truncated": "it is after the teacher's last token",
    "hole": "no teacher token covers its text",
    "unscored": "the teacher has no loss there",
    "partial": "its group is known only in part: cut by an end of the row, or a teacher loss is "
    "missing",
}


def whys(guidance: GuidanceConfig) -> tuple[Why, ...]:
    """The verdicts on predicted tokens that are possible under a rule."""
    noise: tuple[Why, ...] = () if guidance.window is None else ("noise",)
    if is_quota(guidance):
        return "top", "below", "included", "excluded"
    if guidance.has_no_threshold:
        return "not noise", *noise, "below", "included", "excluded"
    if guidance.weight == "hard":
        return "reaches", "below", *noise, "included", "excluded"
    return "weighted", *noise, "included", "excluded"


def verdicts(passage: Passage, guidance: GuidanceConfig) -> list[Verdict]:
    """One for each student token of a passage that was ranked under `guidance`."""
    found = []
    for row, token in enumerate(passage.student):
        kept, noise = passage.is_kept(row), _noise(token, guidance)
        why = _why(token, guidance, kept=kept, is_noise=noise is not None)
        found.append(Verdict(token, kept, why, noise, passage.threshold))
    return found


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
    if kept:
        return "not noise" if guidance.has_no_threshold else "reaches"
    return "below"


def _noise(token: StudentToken, guidance: GuidanceConfig) -> str | None:
    """Why a token is noise; None if it is not."""
    loss, most = token.neighbours_loss, guidance.window_max_loss
    if loss is not None and most is not None and loss > most:
        return f"on its neighbours the teacher loses {loss:.3f} nats a byte, more than {most:g}"
    mean, least = token.neighbours_excess, guidance.window_threshold
    if mean is not None and least is not None and mean < least:
        return f"its neighbours' mean excess loss of {mean:+.3f} is below {least:g}"
    return None
