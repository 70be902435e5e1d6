"""Losses to weights: which tokens the student trains on (Eq. 4 of arXiv 2503.19123).

B: rows, T: tokens of a row. A token takes part if its label is not -100. Of those, the ones with a
finite teacher loss compete; the others are *unmapped* and go by the policy.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.noise import is_noise_by_teacher
from vocagno.guidance.ranking import kept_count, least_kept, top, worse_place
from vocagno.guidance.units import Units, group_means
from vocagno.models.causal import IGNORED


def excess_loss(student_nll_BT: Tensor, teacher_loss_BT: Tensor) -> Tensor:
    """How far the student is behind the teacher on each token, in nats; NaN without a teacher loss.

    `student_nll_BT` is detached: no gradient flows through a rank. An infinite teacher loss
    counts as none.
    """
    teacher_BT = torch.where(teacher_loss_BT.isfinite(), teacher_loss_BT, torch.nan)
    return student_nll_BT.detach() - teacher_BT


class Choice(NamedTuple):
    """Weights and thresholds; nothing here carries a gradient."""

    weights_BT: Tensor
    """Float32, 0.0 or 1.0."""
    thresholds_S: Tensor | None
    """Of each scope, in nats: the excess loss that a unit had to reach, minus infinity for any; NaN
    where none competes, and for a `criterion` that ranks by more than the excess loss. None for
    chunks."""


def choose(
    student_nll_BT: Tensor,
    teacher_loss_BT: Tensor,
    labels_BT: Tensor,
    config: GuidanceConfig,
    entropy_BT: Tensor | None = None,
    teacher_sums_B2: Tensor | None = None,
    units: Units | None = None,
) -> Choice:
    """Which tokens train the student (Eq. 4), and from which excess loss on.

    Args:
        student_nll_BT: the student's loss on each token, float32 nats.
        teacher_loss_BT: the teacher loss of each token, NaN where unmapped: aggregated (Eq. 2); or,
            for `unit: group`, the teacher's sum over the group divided by its student tokens.
        labels_BT: target ids, -100 where nothing is predicted.
        config: all but method, normalize and min_coverage.
        entropy_BT: of the teacher's distribution for each token, nats, for the `criterion` that
            looks at it.
        teacher_sums_B2: as `row_sums`, for `unmapped: mean`. Default: the mean is that of the
            aggregated losses, which under `max` is higher and counts long teacher tokens often.
        units: as `Criteria`.
    Raises: ValueError if the configuration needs something that is not given.

    With the paper's rule (`keeps_quota`) the `ceil(top_fraction * n)` of the `n` competing tokens
    of a scope with the largest excess loss are kept; ties go to the earlier position. Which tokens
    compete follows from the alignment only, and so does how many are kept: `count_kept`. Otherwise
    the smallest excess loss within the quota is the threshold, or `max_threshold` if that is
    smaller, and all units that reach it are kept. The host does not wait.
    """
    units = units or Units()
    competing_BT, included_BT = roles(teacher_loss_BT, labels_BT, config)
    shape = _scopes(labels_BT, config)
    competing = competing_BT.reshape(shape)
    teacher = filled_teacher_loss(teacher_loss_BT, labels_BT, config, teacher_sums_B2)
    nll_BT = student_nll_BT.detach()
    if config.unit == "group":
        if units.groups_BT is None:
            raise ValueError(
                "guidance.unit: group needs the groups of the tokens; give the criteria that "
                "guided_batch makes, or another rule, such as the paper's, "
                "GuidanceConfig(top_fraction=0.4)"
            )
        nll_BT = group_means(nll_BT, units.groups_BT)
    excess = excess_loss(nll_BT.reshape(shape), teacher.reshape(shape))
    if config.keeps_quota:
        entropy = None if entropy_BT is None else entropy_BT.reshape(shape)
        weights, thresholds_S = _quota(excess, competing, entropy, config)
    else:
        thresholds_S = _thresholds(excess, competing, config)
        # Kept where the excess is NaN: a student's loss of NaN must not disappear from the sum.
        weights = (~(excess < thresholds_S[:, None])).float()
        if config.window is not None:
            is_noise_BT = is_noise_by_teacher(teacher_loss_BT, labels_BT, units, config)
            weights = weights.masked_fill(is_noise_BT.view(shape), 0.0)
        weights = weights.masked_fill(~competing, 0.0)
    weights_BT = torch.where(included_BT, 1.0, weights.reshape(labels_BT.shape))
    return Choice(weights_BT, thresholds_S)


def _quota(
    excess: Tensor, competing: Tensor, entropy: Tensor | None, config: GuidanceConfig
) -> tuple[Tensor, Tensor]:
    """Weights and (S,) thresholds of the paper's rule; NaN thresholds if more than the excess loss
    ranks."""
    assert config.top_fraction is not None
    if config.criterion == "excess":
        kept = top(excess, competing, config.top_fraction)
        return kept.float(), least_kept(excess, kept)
    if entropy is None:
        raise ValueError("guidance.criterion: excess_and_entropy needs the teacher's entropies")
    kept = top(worse_place(excess, -entropy, competing), competing, config.top_fraction)
    return kept.float(), excess.new_full((len(excess),), torch.nan)


def _thresholds(excess: Tensor, competing: Tensor, config: GuidanceConfig) -> Tensor:
    """(S,): the smallest excess loss within the quota of each scope, at most `max_threshold`;
    without either, minus infinity."""
    if config.top_fraction is None:
        return excess.new_full((len(excess),), config.threshold_without_quota)
    thresholds_S = least_kept(excess, top(excess, competing, config.top_fraction))
    if config.max_threshold is not None:
        thresholds_S = thresholds_S.clamp_max(config.max_threshold)  # NaN stays
    return thresholds_S


def roles(
    teacher_loss_BT: Tensor, labels_BT: Tensor, config: GuidanceConfig
) -> tuple[Tensor, Tensor]:
    """Which tokens compete for being kept, and which are kept without competing (booleans), where
    tokens are ranked."""
    valid_BT = labels_BT != IGNORED
    scored_BT = valid_BT & teacher_loss_BT.isfinite()
    if config.unmapped == "mean":
        return valid_BT, torch.zeros_like(valid_BT)
    return scored_BT, valid_BT & ~scored_BT & (config.unmapped == "include")


def quota_of_roles(competing_BT: Tensor, included_BT: Tensor, config: GuidanceConfig) -> Tensor:
    """How many tokens the paper's rule keeps, known before any forward pass."""
    assert config.top_fraction is not None
    competing = competing_BT.reshape(_scopes(competing_BT, config)).sum(1)
    return kept_count(competing, config.top_fraction).sum() + included_BT.sum()


def _scopes(tokens_BT: Tensor, config: GuidanceConfig) -> tuple[int, ...]:
    """The shape in which each row is a scope."""
    return tuple(tokens_BT.shape) if config.scope == "sequence" else (1, -1)


def _of_scopes(teacher_sums_B2: Tensor | None, config: GuidanceConfig) -> Tensor | None:
    if teacher_sums_B2 is None or config.scope == "sequence":
        return teacher_sums_B2
    return teacher_sums_B2.sum(0, keepdim=True)


def filled_teacher_loss(
    teacher_loss_BT: Tensor,
    labels_BT: Tensor,
    config: GuidanceConfig,
    teacher_sums_B2: Tensor | None = None,
) -> Tensor:
    """(B, T): the teacher loss of each token; with `unmapped: mean` the mean of its scope
    where there is none. Args: as `choose`."""
    if config.unmapped != "mean":
        return teacher_loss_BT
    shape, scope = _scopes(labels_BT, config), (labels_BT != IGNORED)
    sums = _of_scopes(teacher_sums_B2, config)
    filled = fill_with_mean(teacher_loss_BT.reshape(shape), scope.reshape(shape), sums)
    return filled.view(labels_BT.shape)


def fill_with_mean(teacher: Tensor, competing: Tensor, sums: Tensor | None) -> Tensor:
    """Puts the mean of a scope's teacher losses where there is none (section 6.2: that of "all
    teacher token losses within a batch").

    Args:
        sums: (scopes, 2) sums and counts of the teacher's own tokens; without them the mean is of
            what `teacher` holds.

    Where a scope has no scored token at all, any one value ranks its tokens alike: 0.
    """
    scored = competing & teacher.isfinite()
    if sums is None:
        total = torch.where(scored, teacher, 0.0).sum(1, keepdim=True)
        count = scored.sum(1, keepdim=True)
    else:
        total, count = sums[:, :1], sums[:, 1:]
    return torch.where(scored, teacher, total / count.clamp_min(1))
