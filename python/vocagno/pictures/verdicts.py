"""Why each student token trains or not: what the weights say, in words."""

from dataclasses import dataclass
from typing import Literal

from vocagno.guidance_config import GuidanceConfig
from vocagno.pictures.passage import Passage, StudentToken

Why = Literal["top", "below", "included", "excluded", "not predicted"]
"""What settled it. top, below: the token competed, and its excess loss is among the largest or
not; included, excluded: it has no teacher loss, and such tokens are kept or dropped; not predicted:
it is the first, with nothing before it to predict it from."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one student token: whether it trains, and why."""

    kept: bool
    why: Why
    lacks: str | None
    """Why there is no teacher loss (special, truncated, hole, unscored); None if there is one."""

    @property
    def competed(self) -> bool:
        """Whether it was ranked by its excess loss."""
        return self.why in ("top", "below")

    @property
    def short(self) -> str:
        """A word or two, for a column."""
        return f"{self.why}, {self.lacks}" if self.lacks else self.why

    def words(self, guidance: GuidanceConfig) -> str:
        """The verdict as a sentence without its full stop."""
        outcome = "kept" if self.kept else "dropped"
        if self.why == "not predicted":
            return "not predicted: nothing stands before it"
        if not self.competed:
            policy = f"and such tokens are {self.why}"
            return f"{outcome}: {_LACKS[self.lacks or 'special']}, {policy}"
        place = f"among the top {percent(guidance)} by excess loss"
        if self.why == "below":
            place = f"not {place}"
        if self.lacks:
            place = f"{_LACKS[self.lacks]}; with the mean teacher loss instead, {place}"
        return f"{outcome}: {place}"


_LACKS = {
    "special": "it covers no text",
    "truncated": "it stands behind the teacher's last token",
    "hole": "no teacher token covers its text",
    "unscored": "the teacher has no loss there",
}


def percent(guidance: GuidanceConfig) -> str:
    """The share of the competing tokens that is kept."""
    assert guidance.top_fraction is not None
    return f"{100 * guidance.top_fraction:.6g} %"


def verdicts(passage: Passage, guidance: GuidanceConfig) -> list[Verdict]:
    """One for each student token of a passage that was ranked under `guidance`."""
    return [_verdict(token, guidance) for token in passage.student]


def _verdict(token: StudentToken, guidance: GuidanceConfig) -> Verdict:
    kept = token.weight > 0
    if token.nll is None:
        return Verdict(kept, "not predicted", None)
    lacks = token.reason if token.teacher_loss is None else None
    if lacks is None or guidance.unmapped == "mean":
        return Verdict(kept, "top" if kept else "below", lacks)
    return Verdict(kept, "included" if kept else "excluded", lacks)
