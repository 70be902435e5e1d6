"""Losses to weights: which tokens the student trains on (Eq. 4 of arXiv 2503.19123).

B: rows, T: tokens of a row. A token takes part if its label is not -100. Of those, the ones with a
finite teacher loss compete; the others are *unmapped* and go by the policy.
"""

from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.tensors import GuidanceTensors
from vocagno.guidance.units import Units, group_means, window_means
from vocagno.models.losses import IGNORED

SMOOTHING_BYTES = 8
"""Added to the neighbours, with 1 nat each, so that a few hard tokens do not make a short line
noise."""


def known_weights(
    teacher_loss_BT: Tensor, labels_BT: Tensor, units: Units, config: GuidanceConfig
) -> Tensor:
    """(B, T) float32: what a rule with `window_max_loss` knows of the weights before the forward
    pass: 0.0 for noise and for tokens that neither compete nor are included, 1.0 for the others.
    Without a threshold these are the weights.

    Args: as `teacher_loss_of_neighbours`.
    """
    assert config.window_max_loss is not None
    competing_BT, included_BT = roles(teacher_loss_BT, labels_BT, config)
    around_BT = teacher_loss_of_neighbours(teacher_loss_BT, labels_BT, units, config)
    is_noise_BT = around_BT > config.window_max_loss
    return (included_BT | (competing_BT & ~is_noise_BT)).float()


def teacher_loss_of_neighbours(
    teacher_loss_BT: Tensor, labels_BT: Tensor, units: Units, config: GuidanceConfig
) -> Tensor:
    """(B, T) float64: the teacher's loss on the neighbours of each token's group (without groups:
    of the token), in nats a byte; NaN without any. `SMOOTHING_BYTES` are added.

    Args:
        teacher_loss_BT: as `GuidanceTensors.teacher_loss`.
        labels_BT: target ids, -100 where nothing is predicted.
    Raises: ValueError without groups or their losses where the rule needs these.
    """
    if config.unit == "group" or config.needs_group_loss:
        _require(units.groups_BT, "unit: group needs the groups of the tokens")
    if config.needs_group_loss:
        teacher_loss_BT = _require(
            units.group_loss_BT, "window_max_loss needs the losses of the groups"
        )
    counted_BT = teacher_loss_BT.isfinite() & (labels_BT != IGNORED)
    loss_BT = torch.where(counted_BT, teacher_loss_BT, 0.0)
    bytes_BT = torch.where(counted_BT, units.bytes_BT, 0)
    return window_means(loss_BT, bytes_BT, units.groups_BT, units.lines_BT, SMOOTHING_BYTES)


def _require(given: Tensor | None, what: str) -> Tensor:
    if given is None:
        raise ValueError(
            f"guidance.{what}; give what guided_batch makes, use GuidedCollator or "
            "add_teacher_loss, which make them, too, or another rule, such as the paper's, "
            "GuidanceConfig(top_fraction=0.4)"
        )
    return given


_MOST_PARTS = 10**9  # of a fraction: nine decimals are exact, and products with counts fit int64


def kept_count(num_competing: Tensor, top_fraction: float) -> Tensor:
    """How many of the competing tokens of each scope are kept: exactly ceil(top_fraction * n).

    `top_fraction` is read as written: 0.1 of 30 tokens is 3, although the nearest binary fraction
    to 0.1 is a little larger than 0.1.
    """
    written = Fraction(repr(float(top_fraction)))
    share = max(written.limit_denominator(_MOST_PARTS), Fraction(1, _MOST_PARTS))
    products = num_competing.long() * share.numerator
    return (products + share.denominator - 1) // share.denominator


def top(rank_ST: Tensor, competing_ST: Tensor, top_fraction: float) -> Tensor:
    """(S, T) boolean: the competing tokens with the largest rank in each scope; of equal ones the
    earlier come first. A rank of NaN, which follows from a student's loss of NaN, is the largest,
    so that the step's loss is NaN, too."""
    order_ST = _order(rank_ST, competing_ST)
    num_kept_S1 = kept_count(competing_ST.sum(1, keepdim=True), top_fraction)
    place_ST = torch.arange(rank_ST.shape[1], device=rank_ST.device).expand_as(rank_ST)
    return torch.zeros_like(competing_ST).scatter(1, order_ST, place_ST < num_kept_S1)


def least_kept(rank_ST: Tensor, kept_ST: Tensor) -> Tensor:
    """(S,): the smallest rank of the kept tokens of each scope; NaN if none is kept."""
    if not rank_ST.shape[1]:
        return rank_ST.new_full((len(rank_ST),), torch.nan)
    least_S = torch.where(kept_ST & ~rank_ST.isnan(), rank_ST, torch.inf).amin(1)
    return torch.where(least_S < torch.inf, least_S, torch.nan)


def worse_place(rank_ST: Tensor, other_ST: Tensor, competing_ST: Tensor) -> Tensor:
    """(S, T) float64: a rank by two criteria. A token has a place by each (0 is the best), and the
    worse one counts, so a kept token is within the top by both. Equal ones go by `rank_ST`.

    Rho-1 (arXiv 2404.07965) and the paper name token entropy next to the excess loss without
    saying how they combine; this is the intersection of both choices, widened until it is large
    enough.
    """
    first_ST = _places(_order(rank_ST, competing_ST))
    other_ST = other_ST.nan_to_num(nan=-torch.inf)  # unknown is not large
    worse_ST = torch.maximum(first_ST, _places(_order(other_ST, competing_ST)))
    place_ST = -(worse_ST * worse_ST.shape[1] + first_ST).double()  # exact: far below 2^53
    return torch.where(rank_ST.isnan(), torch.nan, place_ST)


def _order(rank_ST: Tensor, competing_ST: Tensor) -> Tensor:
    """The tokens of each scope by falling rank; those that do not compete come last."""
    # Any rank of a competing token is made finite (NaN comes first), so that -inf is below it.
    largest = torch.finfo(rank_ST.dtype).max
    ranked_ST = torch.where(competing_ST, rank_ST.nan_to_num(nan=largest), -torch.inf)
    return ranked_ST.sort(dim=1, descending=True, stable=True).indices


def _places(order_ST: Tensor) -> Tensor:
    """The place of each token in an order of the tokens."""
    place_ST = torch.arange(order_ST.shape[1], device=order_ST.device).expand_as(order_ST)
    return torch.empty_like(order_ST).scatter_(1, order_ST, place_ST)


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
    student_nll_BT: Tensor, labels_BT: Tensor, teacher: GuidanceTensors, config: GuidanceConfig
) -> Choice:
    """Which tokens train the student (Eq. 4), and from which excess loss on.

    Args:
        student_nll_BT: the student's loss on each token, float32 nats.
        labels_BT: target ids, -100 where nothing is predicted.
        config: all but method, normalize and min_coverage.
    Raises: ValueError if the configuration needs something that is not given.

    With the paper's rule (`keeps_quota`) the `ceil(top_fraction * n)` of the `n` competing tokens
    of a scope with the largest excess loss are kept; ties go to the earlier position. Which tokens
    compete follows from the alignment only, and so does how many are kept: `count_kept`. Otherwise
    the smallest excess loss within the quota is the threshold, or `max_threshold` if that is
    smaller, and all units that reach it are kept. The host does not wait.
    """
    shape = _scopes(labels_BT, config)
    if config.has_no_threshold:
        thresholds_S = student_nll_BT.new_full(shape[:1], -torch.inf)
        return Choice(fixed_weights(teacher), thresholds_S)
    competing_BT, included_BT = roles(teacher.teacher_loss, labels_BT, config)
    competing = competing_BT.reshape(shape)
    filled_BT = filled_teacher_loss(teacher, labels_BT, config)
    nll_BT = student_nll_BT.detach()
    if config.unit == "group":
        nll_BT = group_means(
            nll_BT, _require(teacher.groups, "unit: group needs the groups of the tokens")
        )
    excess = excess_loss(nll_BT.reshape(shape), filled_BT.reshape(shape))
    if config.keeps_quota:
        entropy = None if teacher.entropy is None else teacher.entropy.reshape(shape)
        weights, thresholds_S = _quota(excess, competing, entropy, config)
    else:
        thresholds_S = _thresholds(excess, competing, config)
        # Kept where the excess is NaN: a student's loss of NaN must not disappear from the sum.
        weights = (~(excess < thresholds_S[:, None])).float().masked_fill(~competing, 0.0)
        if config.window is not None:
            weights = weights * fixed_weights(teacher).reshape(shape)
    weights_BT = torch.where(included_BT, 1.0, weights.reshape(labels_BT.shape))
    return Choice(weights_BT, thresholds_S)


def fixed_weights(teacher: GuidanceTensors) -> Tensor:
    """(B, T) as `known_weights`. Raises: ValueError without them."""
    return _require(teacher.weight, "window_max_loss needs the weights that are known beforehand")


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
    teacher: GuidanceTensors, labels_BT: Tensor, config: GuidanceConfig
) -> Tensor:
    """(B, T): the teacher loss of each token; with `unmapped: mean` the mean of its scope
    where there is none. Args: as `choose`."""
    teacher_loss_BT = teacher.teacher_loss
    if config.unmapped != "mean":
        return teacher_loss_BT
    shape, scope = _scopes(labels_BT, config), (labels_BT != IGNORED)
    sums = _of_scopes(teacher.teacher_sums, config)
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


class UnitFacts(NamedTuple):
    """Of each token; None where the rule does not look at it, NaN where there is none, and for a
    token that does not compete."""

    excess_BT: Tensor | None
    """The excess loss of its group in nats, for `unit: group`."""
    neighbours_loss_BT: Tensor | None
    """The teacher's smoothed loss on its neighbours in nats a byte, for `window_max_loss`."""


def unit_facts(
    student_nll_BT: Tensor,
    labels_BT: Tensor,
    teacher_loss_BT: Tensor,
    units: Units | None,
    groups_BT: Tensor | None,
    guidance: GuidanceConfig,
) -> UnitFacts:
    """Intermediate values of a choice, with each row as a scope.

    Args:
        student_nll_BT: nats.
        units, groups_BT: None where the rule does not look at them.
        guidance: of a method that ranks tokens; others look at nothing of the kind.
    """
    competing_BT, _ = roles(teacher_loss_BT, labels_BT, guidance)
    of_group_BT = loss_BT = None
    if guidance.unit == "group" and groups_BT is not None:
        of_group_BT = excess_loss(group_means(student_nll_BT, groups_BT), teacher_loss_BT)
    if units is not None:
        loss_BT = teacher_loss_of_neighbours(teacher_loss_BT, labels_BT, units, guidance)
    found = (
        None if values_BT is None else values_BT.masked_fill(~competing_BT, torch.nan)
        for values_BT in (of_group_BT, loss_BT)
    )
    return UnitFacts(*found)
