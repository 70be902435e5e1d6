"""Losses to weights: which tokens the student trains on (Eq. 4 of arXiv 2503.19123).

B: rows, T: tokens of a row. A token takes part if its label is not -100. Of those, the ones with a
finite teacher loss compete; the others are *unmapped* and go by the policy.
"""

from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.units import group_means, window_means
from vocagno.models.causal import IGNORED

SMOOTHING_BYTES = 8
"""Added to the neighbours on which the teacher's loss is averaged, with 1 nat each, so that a few
hard tokens do not make a short line noise."""

_MOST_PARTS = 10**9  # of a fraction: nine decimals are exact, and products with counts fit int64


def excess_loss(student_nll_BT: Tensor, teacher_loss_BT: Tensor) -> Tensor:
    """How far the student is behind the teacher on each token, in nats; NaN without a teacher loss.

    `student_nll_BT` is detached: what is ranked is not trained through. An infinite teacher loss
    counts as none.
    """
    teacher_BT = torch.where(teacher_loss_BT.isfinite(), teacher_loss_BT, torch.nan)
    return student_nll_BT.detach() - teacher_BT


class Units(NamedTuple):
    """What tells which tokens belong together, for a choice that looks at more than one."""

    groups_BT: Tensor | None = None
    """The number of each token's group (less than B * (T + 1)), -1 for none; for
    `unit: group`."""
    lines_BT: Tensor | None = None
    """The number of each token's line of text (less than B * (T + 1)), -1 for none; for
    `window: line`."""
    bytes_BT: Tensor | None = None
    """The bytes of text that each token covers; for `window_max_loss`."""
    noise_BT: Tensor | None = None
    """As `sounds_like_noise`, where that is known already."""


class Choice(NamedTuple):
    """What trains the student; nothing here carries a gradient."""

    weights_BT: Tensor
    """Float32, from 0.0 to 1.0."""
    thresholds_S: Tensor
    """Of each scope, in nats: the excess loss that a unit had to reach, minus infinity for any; NaN
    where none competes, and for a `criterion` that ranks by more than the excess loss."""


def token_weights(
    student_nll_BT: Tensor,
    teacher_loss_BT: Tensor,
    labels_BT: Tensor,
    config: GuidanceConfig,
    entropy_BT: Tensor | None = None,
    teacher_sums_B2: Tensor | None = None,
    units: Units | None = None,
) -> Tensor:
    """The weights of `choose`: (B, T), in the paper 1.0 for the tokens that train the student and
    0.0 for the others (Eq. 4)."""
    return choose(
        student_nll_BT, teacher_loss_BT, labels_BT, config, entropy_BT, teacher_sums_B2, units
    ).weights_BT


def choose(
    student_nll_BT: Tensor,
    teacher_loss_BT: Tensor,
    labels_BT: Tensor,
    config: GuidanceConfig,
    entropy_BT: Tensor | None = None,
    teacher_sums_B2: Tensor | None = None,
    units: Units | None = None,
) -> Choice:
    """How much each token trains the student (Eq. 4), and from which excess loss on.

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
        units: groups for `unit: group`, lines for `window: line`.
    Raises: ValueError if the configuration needs something that is not given.

    With the paper's rule (`keeps_quota`) the `ceil(top_fraction * n)` of the `n` competing tokens
    of a scope with the largest excess loss are kept; ties go to the earlier position. Which tokens
    compete follows from the alignment only, and so does how many are kept: `count_kept`. Otherwise
    the smallest excess loss within the quota is the threshold, or `max_threshold` if that is
    smaller, and all units that reach it are kept. The host does not wait.
    """
    units = units or Units()
    if config.scope == "step":
        given = entropy_BT, teacher_sums_B2
        return _ranked_together(student_nll_BT, teacher_loss_BT, labels_BT, config, units, *given)
    competing_BT, included_BT = roles(teacher_loss_BT, labels_BT, config)
    shape = _scopes(labels_BT, config)
    competing = competing_BT.reshape(shape)
    teacher = filled_teacher_loss(teacher_loss_BT, labels_BT, config, teacher_sums_B2)
    nll_BT = student_nll_BT.detach()
    if config.unit == "group":
        if units.groups_BT is None:
            raise ValueError("guidance.unit: group needs the groups of the tokens")
        nll_BT = group_means(nll_BT, units.groups_BT)
    excess = excess_loss(nll_BT.reshape(shape), teacher.reshape(shape))
    if config.keeps_quota:
        rank = excess
        if config.criterion == "excess_and_entropy":
            if entropy_BT is None:
                raise ValueError(
                    "guidance.criterion: excess_and_entropy needs the teacher's entropies"
                )
            rank = _worse_place(excess, -entropy_BT.reshape(shape), competing)
        assert config.top_fraction is not None
        kept = top(rank, competing, config.top_fraction)
        thresholds_S = _least(rank, kept)
        if rank is not excess:
            thresholds_S = torch.full_like(thresholds_S, torch.nan)
        weights = kept.float()
    else:
        thresholds_S = _thresholds(excess, competing, config)
        weights = _weights(excess, thresholds_S[:, None], config)
        if config.window_max_loss is not None:
            is_noise_BT = sounds_like_noise(teacher_loss_BT, labels_BT, units, config)
            weights = weights.masked_fill(is_noise_BT.view(shape), 0.0)
        if config.window_threshold is not None:
            around_BT = excess_of_neighbours(
                excess.view(labels_BT.shape), competing_BT, units, config
            )
            is_noise = (around_BT < config.window_threshold).view(shape)
            weights = weights.masked_fill(is_noise, 0.0)
        weights = config.min_weight + (1 - config.min_weight) * weights
        weights = weights.masked_fill(~competing, 0.0)
    weights_BT = torch.where(included_BT, 1.0, weights.reshape(labels_BT.shape))
    return Choice(weights_BT, thresholds_S)


def sounds_like_noise(
    teacher_loss_BT: Tensor, labels_BT: Tensor, units: Units, config: GuidanceConfig
) -> Tensor:
    """(B, T) boolean: tokens whose `loss_on_neighbours` exceeds `window_max_loss`. It needs nothing
    of the student, so it is known before the forward pass.

    Args, Raises: as `loss_on_neighbours`.
    """
    assert config.window_max_loss is not None
    if units.noise_BT is not None:
        return units.noise_BT
    around_BT = loss_on_neighbours(teacher_loss_BT, labels_BT, units, config)
    return around_BT > config.window_max_loss


def loss_on_neighbours(
    teacher_loss_BT: Tensor, labels_BT: Tensor, units: Units, config: GuidanceConfig
) -> Tensor:
    """(B, T) float64: the teacher's loss on the neighbours of each token's unit, in nats a byte;
    NaN without any. `SMOOTHING_BYTES` are added.

    Args: as `choose`.
    Raises: ValueError without the bytes of the tokens, or lines for `window: line`.
    """
    assert config.window is not None
    if units.bytes_BT is None:
        raise ValueError("guidance.window_max_loss needs the bytes of the tokens")
    counted_BT = teacher_loss_BT.isfinite() & (labels_BT != IGNORED)
    return window_means(
        torch.where(counted_BT, teacher_loss_BT, 0.0),
        torch.where(counted_BT, units.bytes_BT, 0),
        units.groups_BT if config.unit == "group" else None, units.lines_BT, config.window,
        SMOOTHING_BYTES,
    )  # fmt: skip


def excess_of_neighbours(
    excess_BT: Tensor, competing_BT: Tensor, units: Units, config: GuidanceConfig
) -> Tensor:
    """(B, T) float64: the mean excess loss of the neighbours of each token's unit, in nats; NaN
    without any.

    Args:
        excess_BT: of units, at each of their tokens.
        competing_BT: the tokens that count (boolean).
        units, config: as `choose`.
    """
    assert config.window is not None
    counted_BT = competing_BT & ~excess_BT.isnan()
    return window_means(
        torch.where(counted_BT, excess_BT, 0.0), counted_BT,
        units.groups_BT if config.unit == "group" else None, units.lines_BT, config.window,
    )  # fmt: skip


def _thresholds(excess: Tensor, competing: Tensor, config: GuidanceConfig) -> Tensor:
    """(S,): the smallest excess loss within the quota of each scope, at most `max_threshold`;
    without either, minus infinity."""
    if config.top_fraction is None:
        return excess.new_full((len(excess),), config.threshold_without_quota)
    thresholds_S = _least(excess, top(excess, competing, config.top_fraction))
    if config.max_threshold is not None:
        thresholds_S = thresholds_S.clamp_max(config.max_threshold)  # NaN stays
    return thresholds_S


def _least(excess: Tensor, kept: Tensor) -> Tensor:
    """(S,): the smallest excess loss of the kept tokens of each scope; NaN where there is none."""
    least_S = torch.where(kept & ~excess.isnan(), excess, torch.inf).amin(1)
    return torch.where(least_S < torch.inf, least_S, torch.nan)


def _weights(excess: Tensor, threshold: Tensor, config: GuidanceConfig) -> Tensor:
    """Weights from 0.0 to 1.0 by the distance from the threshold; 0.0 where either is NaN."""
    distance = (excess - threshold) / config.weight_scale
    if config.weight == "hard":
        return (distance >= 0).float()
    weights = distance.sigmoid() if config.weight == "sigmoid" else distance.clamp_max(0).exp()
    return weights.nan_to_num(nan=0.0).float()


def roles(
    teacher_loss_BT: Tensor, labels_BT: Tensor, config: GuidanceConfig
) -> tuple[Tensor, Tensor]:
    """Which tokens compete for being kept, and which are kept without competing (booleans)."""
    valid_BT = labels_BT != IGNORED
    if not config.selects:
        return torch.zeros_like(valid_BT), valid_BT
    scored_BT = valid_BT & teacher_loss_BT.isfinite()
    if config.unmapped == "mean":
        return valid_BT, torch.zeros_like(valid_BT)
    return scored_BT, valid_BT & ~scored_BT & (config.unmapped == "include")


def kept_count(num_competing: Tensor, top_fraction: float) -> Tensor:
    """How many of the competing tokens of each scope are kept: exactly ceil(top_fraction * n).

    `top_fraction` is read as what was written: 0.1 of 30 tokens is 3, although the nearest binary
    fraction to 0.1 is a little larger than 0.1.
    """
    written = Fraction(repr(float(top_fraction)))
    share = max(written.limit_denominator(_MOST_PARTS), Fraction(1, _MOST_PARTS))
    products = num_competing.long() * share.numerator
    return (products + share.denominator - 1) // share.denominator


def count_kept(teacher_loss_BT: Tensor, labels_BT: Tensor, config: GuidanceConfig) -> Tensor:
    """How many tokens `token_weights` will keep, known before any forward pass.

    With `scope: step` on several processes it is not known: others' tokens take part; nor are the
    tokens of chunks.
    """
    return count_kept_of(*roles(teacher_loss_BT, labels_BT, config), config)


def count_kept_of(competing_BT: Tensor, included_BT: Tensor, config: GuidanceConfig) -> Tensor:
    """As `count_kept`, of `roles`."""
    if not config.keeps_quota and config.selects:
        raise ValueError("how many tokens are kept is known only after the forward pass")
    if config.top_fraction is None:
        return included_BT.sum()
    competing = competing_BT.reshape(_scopes(competing_BT, config)).sum(1)
    return kept_count(competing, config.top_fraction).sum() + included_BT.sum()


def _scopes(tokens_BT: Tensor, config: GuidanceConfig) -> tuple[int, ...]:
    """The shape in which each row is a scope of its own."""
    return tuple(tokens_BT.shape) if config.scope == "sequence" else (1, -1)


def _of_scopes(teacher_sums_B2: Tensor | None, config: GuidanceConfig) -> Tensor | None:
    if teacher_sums_B2 is None or config.scope == "sequence":
        return teacher_sums_B2
    return teacher_sums_B2.sum(0, keepdim=True)


def _ranked_together(
    student_nll_BT: Tensor,
    teacher_loss_BT: Tensor,
    labels_BT: Tensor,
    config: GuidanceConfig,
    units: Units,
    entropy_BT: Tensor | None,
    teacher_sums_B2: Tensor | None,
) -> Choice:
    """The choice among this process's tokens, ranked with those of all others, in their order.

    Every process has as many rows of the same length.
    """
    as_one = replace(config, scope="micro_batch")
    group = torch.distributed
    if not group.is_available() or not group.is_initialized() or group.get_world_size() == 1:
        return choose(
            student_nll_BT, teacher_loss_BT, labels_BT, as_one, entropy_BT, teacher_sums_B2, units
        )
    before = (labels_BT.numel() + len(labels_BT)) * group.get_rank()
    shifted = (
        None if numbers is None else torch.where(numbers < 0, numbers, numbers + before)
        for numbers in (units.groups_BT, units.lines_BT)
    )
    own = (
        student_nll_BT, teacher_loss_BT, labels_BT, entropy_BT, teacher_sums_B2, *shifted,
        units.bytes_BT,
    )  # fmt: skip
    student, teacher, labels, entropy, sums, *others = (
        None if tensor is None else torch.cat(_gathered(tensor.detach().contiguous()))
        for tensor in own
    )
    assert student is not None
    assert teacher is not None
    assert labels is not None
    found = choose(student, teacher, labels, as_one, entropy, sums, Units(*others))
    weights = found.weights_BT.view(group.get_world_size(), *labels_BT.shape)[group.get_rank()]
    return Choice(weights, found.thresholds_S)


def _gathered(tensor: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, tensor)
    return parts


def filled_teacher_loss(
    teacher_loss_BT: Tensor,
    labels_BT: Tensor,
    config: GuidanceConfig,
    teacher_sums_B2: Tensor | None = None,
) -> Tensor:
    """(B, T): the teacher loss of each token; with `unmapped: mean` the mean of its scope (one of
    this process) where there is none. Args: as `choose`."""
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


def _worse_place(score: Tensor, other: Tensor, competing: Tensor) -> Tensor:
    """Ranks by two criteria at once: of a token's places by each (0 is the best), the worse one
    counts, less is better; so what is kept lies within the top by both. Equal ones go by `score`.

    Rho-1 (arXiv 2404.07965) and the paper name token entropy beside the excess loss without saying
    how they combine; this is the intersection of both choices, widened until it is large enough.
    """
    first = _places(_order(score, competing))
    worse = torch.maximum(first, _places(_order(other, competing)))
    return -(worse * worse.shape[1] + first).double()  # exact: far below 2^53


def top(score: Tensor, competing: Tensor, top_fraction: float) -> Tensor:
    """The competing tokens with the largest score in each row; earlier ones first among equals."""
    order = _order(score, competing)
    num_kept = kept_count(competing.sum(1, keepdim=True), top_fraction)
    places = torch.arange(score.shape[1], device=score.device).expand_as(score)
    return torch.zeros_like(competing).scatter(1, order, places < num_kept)


def _order(score: Tensor, competing: Tensor) -> Tensor:
    """The columns of each row by falling score, those that do not compete at the end."""
    # Any score of a competing token is made finite (NaN ranks last), so that -inf is below it.
    lowest = torch.finfo(score.dtype).min
    ranked = torch.where(competing, score.nan_to_num(nan=lowest), -torch.inf)
    return ranked.sort(dim=1, descending=True, stable=True).indices


def _places(order: Tensor) -> Tensor:
    """Where each column stands in an order of the columns."""
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)
