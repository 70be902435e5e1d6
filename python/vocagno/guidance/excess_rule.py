"""Rules that rank tokens by their excess loss: the paper's quota, and thresholds.

Four properties of `GuidanceConfig` tell the rules apart; those that are true:

- default (`window_max_loss`): ignores_excess, takes_one_pass, has_line_rule
- `top_fraction` (the paper's): keeps_quota
- `max_threshold`: takes_one_pass
- `max_threshold` and `window_max_loss`: takes_one_pass, has_line_rule
- `top_fraction` and `max_threshold`: none; the quota's threshold is at most `max_threshold`

A fixed threshold is `threshold_without_quota`, which is -inf under the default rule.

B: rows, T: tokens of a row, S: scopes in which tokens compete, a row or all rows (then T is the
number of tokens of a scope), C: tokens of a chunk.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.batch import GuidedBatch
from vocagno.guidance.comparison import safe_cuts
from vocagno.guidance.line_rule import (
    number_runs,
    require_value,
    rest_of_line_loss,
    roles_by_teacher_loss,
    sums_of_runs,
    weights_of_batch,
)
from vocagno.guidance.loss import Choice, excess_loss
from vocagno.models.head import ChunkEnds
from vocagno.models.losses import IGNORED

_MOST_PARTS = 10**9
"""The largest denominator of a share of tokens: nine decimals are exact, and products with counts
of tokens fit int64."""


def quota(num_competing: Tensor, top_fraction: float) -> Tensor:
    """Counts the tokens that are kept of n competing ones in each scope: ceil(top_fraction * n),
    the "top-k %" of Eq. 4 (arXiv 2503.19123).

    `top_fraction` is read as written: 0.1 of 30 tokens is 3, although the nearest binary fraction
    to 0.1 is a little larger than 0.1.
    """
    written = Fraction(repr(float(top_fraction)))
    share = max(written.limit_denominator(_MOST_PARTS), Fraction(1, _MOST_PARTS))
    products = num_competing.long() * share.numerator  # whole numbers: no rounding of a product
    return (products + share.denominator - 1) // share.denominator


def top(rank_ST: Tensor, competing_ST: Tensor, top_fraction: float) -> Tensor:
    """(S, T) boolean: the competing tokens with the largest rank in each scope; of equal ones the
    earlier come first. A rank of NaN, which follows from a student's loss of NaN, is the largest,
    so that the step's loss is NaN, too."""
    order_ST = _order(rank_ST, competing_ST)
    num_kept_S1 = quota(competing_ST.sum(1, keepdim=True), top_fraction)
    place_ST = torch.arange(rank_ST.shape[1], device=rank_ST.device).expand_as(rank_ST)
    return torch.zeros_like(competing_ST).scatter(1, order_ST, place_ST < num_kept_S1)


def least_kept(rank_ST: Tensor, kept_ST: Tensor) -> Tensor:
    """(S,): the smallest rank of the kept tokens of each scope; NaN if none is kept."""
    if not rank_ST.shape[1]:  # `amin` would raise
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
    """Orders the tokens of each scope by falling rank; those that do not compete come last."""
    # Any rank of a competing token is made finite (NaN comes first), so that -inf is below it.
    largest = torch.finfo(rank_ST.dtype).max
    ranked_ST = torch.where(competing_ST, rank_ST.nan_to_num(nan=largest), -torch.inf)
    # Stable, so that of equal ranks the earlier position comes first on every device.
    return ranked_ST.sort(dim=1, descending=True, stable=True).indices


def _places(order_ST: Tensor) -> Tensor:
    """(S, T): the place of each token in an order, which is the inverse permutation."""
    place_ST = torch.arange(order_ST.shape[1], device=order_ST.device).expand_as(order_ST)
    return torch.empty_like(order_ST).scatter_(1, order_ST, place_ST)


def choose_by_excess(
    student_nll_BT: Tensor, labels_BT: Tensor, batch: GuidedBatch, config: GuidanceConfig
) -> Choice:
    """Chooses the tokens that train the student, and says from which excess loss on.

    With `keeps_quota` this is W(x_i) of Eq. 4 (arXiv 2503.19123): 1 if L_S - L_T (`excess_ST`) is
    among the largest of the competing tokens, or if the token has no teacher loss and is included,
    else 0. Under the default rule it returns the batch's weights.

    Args:
        student_nll_BT: the student's loss on each token, float32 nats.
        labels_BT: target ids, -100 where nothing is predicted.
        batch: the teacher's loss, and what else the configuration needs.
        config: the rule; `method`, `normalize` and `min_coverage` are not read.
    Raises: ValueError if the batch lacks something that the configuration needs.

    With the paper's rule (`keeps_quota`) the `ceil(top_fraction * n)` of the `n` competing tokens
    of a scope with the largest excess loss are kept; ties go to the earlier position. Which tokens
    compete follows from the alignment only, and so does how many are kept
    (`vocagno.guidance.count_kept`). Otherwise the smallest excess loss within the quota is the
    threshold, or `max_threshold` if that is smaller, and all units that reach it are kept. The host
    does not wait.
    """
    shape = _scopes(labels_BT, config)
    if config.ignores_excess:
        return Choice(
            weights_of_batch(batch, labels_BT), student_nll_BT.new_full(shape[:1], -torch.inf)
        )
    competing_BT, included_BT = roles_by_teacher_loss(batch.teacher_loss, labels_BT, config)
    competing_ST = competing_BT.reshape(shape)
    nll_BT = student_nll_BT.detach()
    if config.unit == "group":
        groups_BT = require_value(batch.groups, "unit: group needs the groups of the tokens")
        # The teacher's loss of a group is divided by the same number of tokens (ComparedTokens).
        nll_BT = group_means(nll_BT, groups_BT)
    teacher_loss_BT = filled_teacher_loss(batch, labels_BT, config)
    excess_ST = excess_loss(nll_BT.reshape(shape), teacher_loss_BT.reshape(shape))
    if config.keeps_quota:
        entropy_ST = None if batch.entropy is None else batch.entropy.reshape(shape)
        kept_ST, thresholds_S = _quota(excess_ST, competing_ST, entropy_ST, config)
    else:
        thresholds_S = _thresholds(excess_ST, competing_ST, config)
        # Kept where the excess is NaN: a student's loss of NaN must not disappear from the sum.
        kept_ST = ~(excess_ST < thresholds_S[:, None]) & competing_ST
    weights_BT = kept_ST.float().reshape(labels_BT.shape)
    if config.has_line_rule:
        weights_BT = weights_BT * weights_of_batch(batch, labels_BT)
    return Choice(torch.where(included_BT, 1.0, weights_BT), thresholds_S)


def _quota(
    excess_ST: Tensor, competing_ST: Tensor, entropy_ST: Tensor | None, config: GuidanceConfig
) -> tuple[Tensor, Tensor]:
    """Keeps the best tokens of each scope by the paper's rule (Eq. 4). Returns (S, T) booleans and
    (S,) the smallest excess loss that was kept; NaN if more than the excess loss ranks."""
    assert config.top_fraction is not None
    if config.criterion == "excess":
        kept_ST = top(excess_ST, competing_ST, config.top_fraction)
        return kept_ST, least_kept(excess_ST, kept_ST)
    if entropy_ST is None:
        raise ValueError("guidance.criterion: excess_and_entropy needs the teacher's entropies")
    # Low entropy ranks high: the teacher is sure of what follows.
    rank_ST = worse_place(excess_ST, -entropy_ST, competing_ST)
    kept_ST = top(rank_ST, competing_ST, config.top_fraction)
    return kept_ST, excess_ST.new_full((len(excess_ST),), torch.nan)


def _thresholds(excess_ST: Tensor, competing_ST: Tensor, config: GuidanceConfig) -> Tensor:
    """(S,): the smallest excess loss within the quota of each scope, at most `max_threshold`."""
    if config.top_fraction is None:
        return excess_ST.new_full((len(excess_ST),), config.threshold_without_quota)
    kept_ST = top(excess_ST, competing_ST, config.top_fraction)
    thresholds_S = least_kept(excess_ST, kept_ST)
    if config.max_threshold is not None:
        thresholds_S = thresholds_S.clamp_max(config.max_threshold)  # NaN stays
    return thresholds_S


def group_means(values_BT: Tensor, groups_BT: Tensor) -> Tensor:
    """(B, T): the mean of `values_BT` over the group of each token; its own value if it has none.

    Args:
        groups_BT: the number of each token's group, -1 for none; tokens of a group follow one
            another.

    Sums are float64. The host does not wait for the device.
    """
    values, slot_N = values_BT.double(), number_runs(groups_BT.flatten())
    means_BT = sums_of_runs(values, slot_N) / sums_of_runs(torch.ones_like(values), slot_N)
    return torch.where(groups_BT >= 0, means_BT.to(values_BT.dtype), values_BT)


def weights_of_chunks(
    labels_BT: Tensor, batch: GuidedBatch, guidance: GuidanceConfig
) -> tuple[Callable[[Tensor, slice], Tensor], ChunkEnds]:
    """Prepares `choose_by_excess` for one chunk of tokens at a time, where the threshold is known
    beforehand.

    Returns: a function of the student's losses (C,) of a chunk and of its place, which gives the
        weights (C,); and the positions at which a chunk may end, so that no group is cut (None:
        anywhere).
    """
    groups_BT, ends = None, None
    if guidance.unit == "group" and batch.groups is not None:
        groups_BT, ends = batch.groups, batch.chunk_ends
        if ends is None:
            ends = safe_cuts(groups_BT.cpu())
    tensors = {
        "teacher_loss": filled_teacher_loss(batch, labels_BT, guidance),
        "weight": batch.weight,
        "groups": groups_BT,
    }
    columns_N = {
        name: values_BT.flatten() for name, values_BT in tensors.items() if values_BT is not None
    }
    labels_N = labels_BT.flatten()
    if guidance.scope != "sequence":  # making options checks them, which takes 0.1 ms
        guidance = replace(guidance, scope="sequence")

    # Under a fixed threshold no weight depends on the row, so a chunk passes for one row.
    def weigh(nll_C: Tensor, place: slice) -> Tensor:
        of_chunk: dict[str, Any] = {name: col[None, place] for name, col in columns_N.items()}
        choice = choose_by_excess(
            nll_C[None], labels_N[None, place], GuidedBatch(**of_chunk), guidance
        )
        return choice.weights_BT[0]

    return weigh, ends


def quota_of_roles(competing_BT: Tensor, included_BT: Tensor, config: GuidanceConfig) -> Tensor:
    """Counts the tokens that the paper's rule keeps, before any forward pass: which tokens compete
    follows from the alignment only."""
    assert config.top_fraction is not None
    competing_S = competing_BT.reshape(_scopes(competing_BT, config)).sum(1)
    return quota(competing_S, config.top_fraction).sum() + included_BT.sum()


def _scopes(tokens_BT: Tensor, config: GuidanceConfig) -> tuple[int, ...]:
    """The shape (S, T) in which tokens compete: each row by itself, or all tokens at once."""
    return tuple(tokens_BT.shape) if config.scope == "sequence" else (1, -1)


def filled_teacher_loss(batch: GuidedBatch, labels_BT: Tensor, config: GuidanceConfig) -> Tensor:
    """(B, T): the teacher's loss of each token in nats. Under `unmapped: mean` a token without one
    gets the mean of its scope."""
    teacher_loss_BT, sums = batch.teacher_loss, batch.teacher_sums
    if config.unmapped != "mean":
        return teacher_loss_BT
    if sums is not None and config.scope != "sequence":
        sums = sums.sum(0, keepdim=True)
    shape, valid_BT = _scopes(labels_BT, config), labels_BT != IGNORED
    filled_ST = fill_with_mean(teacher_loss_BT.reshape(shape), valid_BT.reshape(shape), sums)
    return filled_ST.view(labels_BT.shape)


def fill_with_mean(teacher_ST: Tensor, competing_ST: Tensor, sums_S2: Tensor | None) -> Tensor:
    """Puts the mean of a scope's teacher losses where there is none. Source: `mean` in section 6.2
    of arXiv 2503.19123, which takes all losses of the teacher's tokens in a batch.

    Args:
        sums_S2: sums and counts of the teacher's own tokens; without them the mean is of what
            `teacher_ST` holds.

    Where a scope has no scored token at all, any one value ranks its tokens alike: 0.
    """
    scored_ST = competing_ST & teacher_ST.isfinite()
    if sums_S2 is None:
        total_S1 = torch.where(scored_ST, teacher_ST, 0.0).sum(1, keepdim=True)
        count_S1 = scored_ST.sum(1, keepdim=True)
    else:
        total_S1, count_S1 = sums_S2[:, :1], sums_S2[:, 1:]
    return torch.where(scored_ST, teacher_ST, total_S1 / count_S1.clamp_min(1))


class UnitFacts(NamedTuple):
    """Why each token was kept or dropped, for pictures. A column is None if the rule does not use
    it. A value is NaN if the token has no teacher loss or does not compete."""

    excess_BT: Tensor | None
    """The excess loss of each token's group in nats, for `unit: group`."""
    rest_of_line_loss_BT: Tensor | None
    """The teacher's smoothed loss on the rest of each token's line in nats a byte, for
    `window_max_loss`."""


def unit_facts(student_nll_BT: Tensor, batch: GuidedBatch, guidance: GuidanceConfig) -> UnitFacts:
    """Computes what a rule looks at, with each row as a scope.

    Args:
        student_nll_BT: nats.
        batch: one with the columns of lines, on the same device, if the rule looks at them.
        guidance: the rule of a method that ranks tokens.
    """
    competing_BT, _ = roles_by_teacher_loss(batch.teacher_loss, batch.labels_BT, guidance)
    groups_BT = batch.groups if batch.line_groups is None else batch.line_groups
    excess_BT = loss_BT = None
    if guidance.unit == "group" and groups_BT is not None:
        excess_BT = excess_loss(group_means(student_nll_BT, groups_BT), batch.teacher_loss)
        excess_BT = excess_BT.masked_fill(~competing_BT, torch.nan)
    if batch.line is not None:
        loss_BT = rest_of_line_loss(batch, guidance)
        loss_BT = loss_BT.masked_fill(~competing_BT, torch.nan)
    return UnitFacts(excess_BT, loss_BT)
