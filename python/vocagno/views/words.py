"""Verdicts on student tokens: one word each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.passage import Passage, StudentToken

Why = Literal[
    "top",
    "below",
    "reaches",
    "noise",
    "not noise",
    "included",
    "excluded",
    "not predicted",
]
"""The deciding fact. top, below: the token competes for a quota, and its excess loss is among the
largest or not. reaches, below: its excess loss reaches the threshold or not. noise: its neighbours
decide, whatever its own losses. not noise: under a rule without a threshold. included, excluded: it
has no teacher loss, and such tokens are kept or dropped. not predicted: it is the first token."""

COMPETING: Sequence[Why] = ("top", "below", "reaches", "noise", "not noise")
"""Verdicts on tokens of which the excess loss decides, or that of the neighbours."""


def whys(guidance: GuidanceConfig) -> tuple[Why, ...]:
    """The verdicts on predicted tokens that are possible under a rule."""
    noise: tuple[Why, ...] = () if guidance.window is None else ("noise",)
    if guidance.has_quota_alone:
        return "top", "below", "included", "excluded"
    if guidance.has_no_threshold:
        return "not noise", *noise, "below", "included", "excluded"
    return "reaches", "below", *noise, "included", "excluded"


def judged(passage: Passage, guidance: GuidanceConfig) -> Passage:
    """A passage that was ranked under `guidance`, with the verdict on each student token."""
    student = [
        replace(token, why=_why(token, guidance, kept=passage.is_kept(row)))
        for row, token in enumerate(passage.student)
    ]
    return replace(passage, student=student)


def _why(token: StudentToken, guidance: GuidanceConfig, *, kept: bool) -> Why:
    if token.nll is None:
        return "not predicted"
    if token.teacher_loss is None and guidance.unmapped != "mean":
        return "included" if kept else "excluded"
    if guidance.has_quota_alone:
        return "top" if kept else "below"
    if _is_noise(token, guidance):
        return "noise"
    if kept:
        return "not noise" if guidance.has_no_threshold else "reaches"
    return "below"


def _is_noise(token: StudentToken, guidance: GuidanceConfig) -> bool:
    loss, most = token.neighbours_loss, guidance.window_max_loss
    return loss is not None and most is not None and loss > most
