"""Selective cross-entropy: the losses of all tokens rank them, the chosen ones train.

B: rows, T: tokens of a row, N = B * T, K: kept tokens, H: hidden size, V: vocabulary.

With one product of states and weights as the unit, ordinary cross-entropy takes three (logits, and
the gradients of states and weights). Here it is one for the losses of all, and three of the chosen:
at 40 %, 2.2. With a threshold that is known beforehand (`has_fixed_threshold`) the logits of a
chunk are weighted and differentiated at once: one for all, and two of the chosen (on a CPU; on
other devices, where the host does not wait to know which these are, two of all).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.config.run import HeadLoss
from vocagno.guidance.chunk_weights import chunk_weights
from vocagno.guidance.cross_entropy import head_loss, product_dtype
from vocagno.guidance.thresholded import thresholded_cross_entropy
from vocagno.guidance.weights import Units, choose
from vocagno.models.causal import IGNORED, teacher_guided_loss
from vocagno.models.head import Head, LanguageHead, chunked_nll


class Criteria(NamedTuple):
    """What a choice may depend on beside the losses of both models."""

    entropy_BT: Tensor | None = None
    """Of the teacher's distribution for each token, nats; for `criterion: excess_and_entropy`."""
    chunks_BT: Tensor | None = None
    """The number of each token's chunk, -1 at padding; for `method: chunk`."""
    scores_BC: Tensor | None = None
    """What ranks chunks instead of their excess loss; for `selection: random`."""
    teacher_sums_B2: Tensor | None = None
    """As `row_sums`, for `unmapped: mean`; default: that mean is of the aggregated losses."""
    units: Units = Units()
    """Groups and lines, for `unit: group` and `window: line`."""
    chunk_ends: Sequence[int] | NDArray[np.int64] | None = None
    """Where the groups of a batch may be cut into chunks (`group_ends`), known to the host; without
    it the host waits for the device, if that is not the CPU."""


@dataclass(frozen=True, slots=True)
class TokenMetrics:
    """What is known of each token after the loss; nothing here carries a gradient."""

    nll_BT: Tensor | None
    """Losses in nats, float32, 0 where the label is -100. None under `method: cpt` with a head loss
    other than the loop, which gives the sum alone."""
    weights_BT: Tensor
    """From 0.0 (the token is not trained on) to 1.0."""
    thresholds_S: Tensor | None = None
    """As `Choice.thresholds_S`; None for methods that rank no tokens."""


def selective_cross_entropy(
    hidden_BTH: Tensor,
    head: Head | Tensor,
    labels_BT: Tensor,
    teacher_loss_BT: Tensor,
    guidance: GuidanceConfig,
    *,
    criteria: Criteria | None = None,
    num_kept: int | None = None,
    head_loss_by: HeadLoss = "auto",
    reduction: Literal["sum", "mean"] = "sum",
) -> tuple[Tensor, TokenMetrics]:
    """The loss of the tokens that the teacher chooses (Eq. 3 and 4 of arXiv 2503.19123).

    Args:
        hidden_BTH: last hidden states; state i predicts `labels_BT[:, i]`.
        head: the weights of the language head (V, H), or `language_head(model)`, which knows
            biases, scales, soft caps and heads that are no product.
        labels_BT: target ids, int64; -100 where nothing is predicted.
        teacher_loss_BT: the teacher's loss for each target in nats, NaN where it has none.
        guidance: how tokens are chosen; methods that do not choose (`cpt`) keep all.
        criteria: what else the method looks at.
        num_kept: how many will be kept at most, as `count_kept` (and `most_kept`, of chunks) give
            it before the forward pass, so that the host need not wait for a device to know it.
        head_loss_by: as `head_loss`.
        reduction: sum, or mean: divided by the tokens that `guidance.normalize` names.
    Returns: the loss, float32, and the metrics of each token.
    Raises: ValueError for shapes that do not belong together, and for missing criteria; ConfigError
        as `head_loss`.

    Logits exist a chunk at a time, and the losses that rank are float32 whatever the type of the
    model (bfloat16 losses are up to 0.03 nats off). Without gradients enabled, nothing but losses
    is computed.
    """
    if guidance.distils:
        raise ValueError(
            f"guidance.method: {guidance.method} is a loss of its own: distillation_loss"
        )
    if isinstance(head, Tensor):
        head = LanguageHead(head)
    _check_shapes(hidden_BTH, head, labels_BT, teacher_loss_BT)
    hidden_NH, labels_N = hidden_BTH.flatten(0, -2), labels_BT.flatten()
    nll_BT = None
    is_ranked, thresholds_S = guidance.selects, None
    criteria = criteria or Criteria()
    if _takes_one_pass(guidance, head_loss_by):
        total, nll_BT, weights_BT = thresholded_cross_entropy(
            hidden_NH, head, labels_BT, teacher_loss_BT, guidance, criteria.units,
            criteria.teacher_sums_B2, criteria.chunk_ends,
        )  # fmt: skip
        threshold = guidance.threshold_without_quota
        thresholds_S = torch.full((1,), threshold, device=total.device)
        if reduction == "mean":
            total = total / _counted(labels_BT, weights_BT, guidance)
        return total, TokenMetrics(nll_BT, weights_BT, thresholds_S)
    if is_ranked or not torch.is_grad_enabled():
        nll_BT = all_losses(hidden_NH, head, labels_N).view(labels_BT.shape)
    if is_ranked:
        assert nll_BT is not None
        weights_BT, thresholds_S = _choose(nll_BT, teacher_loss_BT, labels_BT, guidance, criteria)
    else:
        weights_BT = (labels_BT != IGNORED).float()
    if torch.is_grad_enabled():
        weights_N = weights_BT.flatten()
        kept_N = weights_N > 0
        rows_K = _places(kept_N, num_kept)
        labels_K = torch.where(kept_N, labels_N, IGNORED)[rows_K]
        weights_K = weights_N[rows_K] if guidance.has_soft_weights else None
        total, nll_K = head_loss(hidden_NH[rows_K], head, labels_K, head_loss_by, weights_K)
        if nll_BT is None and nll_K is not None:  # all are trained on, so all are known by now
            nll_N = torch.zeros(len(labels_N), device=nll_K.device)
            nll_BT = nll_N.index_copy(0, rows_K, nll_K).view(labels_BT.shape)
    else:
        assert nll_BT is not None
        total = teacher_guided_loss(nll_BT, weights_BT)
    if reduction == "mean":
        total = total / _counted(labels_BT, weights_BT, guidance)
    return total, TokenMetrics(nll_BT, weights_BT, thresholds_S)


def _counted(labels_BT: Tensor, weights_BT: Tensor, guidance: GuidanceConfig) -> Tensor:
    """What a mean is divided by."""
    counted = labels_BT != IGNORED if guidance.normalize == "tokens" else weights_BT > 0
    return counted.sum().clamp_min(1)


def _takes_one_pass(guidance: GuidanceConfig, head_loss_by: HeadLoss) -> bool:
    """Whether weights and gradients can be computed of each chunk of logits at once."""
    is_loop = head_loss_by in ("auto", "loop")
    return guidance.has_fixed_threshold and is_loop and torch.is_grad_enabled()


def _choose(
    nll_BT: Tensor,
    teacher_loss_BT: Tensor,
    labels_BT: Tensor,
    guidance: GuidanceConfig,
    criteria: Criteria,
) -> tuple[Tensor, Tensor | None]:
    """Weights and thresholds, by the method."""
    if guidance.method != "chunk":
        more = criteria.entropy_BT, criteria.teacher_sums_B2, criteria.units
        return choose(nll_BT, teacher_loss_BT, labels_BT, guidance, *more)
    if criteria.chunks_BT is None or (criteria.scores_BC is None) is guidance.is_random:
        raise ValueError("guidance.method: chunk needs chunks, and scores if the choice is random")
    weights_BT = chunk_weights(
        nll_BT, teacher_loss_BT, labels_BT, criteria.chunks_BT, guidance, criteria.scores_BC,
        criteria.teacher_sums_B2,
    )  # fmt: skip
    return weights_BT, None


def gives_sum_alone(guidance: GuidanceConfig, head_loss_by: HeadLoss) -> bool:
    """Whether single losses stay unknown: nothing is ranked, and the head loss gives their sum."""
    return not guidance.selects and head_loss_by in ("torch", "liger")


@torch.no_grad()
def all_losses(hidden_NH: Tensor, head: Head, labels_N: Tensor) -> Tensor:
    """(N,) float32: the loss of each label in nats, 0 where it is -100, without gradient."""
    dtype = product_dtype(hidden_NH)
    with torch.autocast(hidden_NH.device.type, enabled=False):
        head = head.as_type(dtype)
        nll_N = chunked_nll(hidden_NH.to(dtype), head, labels_N.clamp_min(0))
    return torch.where(labels_N == IGNORED, 0.0, nll_N)


def _places(kept_N: Tensor, num_kept: int | None) -> Tensor:
    """(K,) the kept tokens in order; of a shape that the host knows, if it knows the number (on a
    CPU it need not)."""
    if num_kept is None or kept_N.device.type == "cpu":
        return kept_N.nonzero().squeeze(1)
    return torch.argsort(~kept_N, stable=True)[:num_kept]


def _check_shapes(
    hidden_BTH: Tensor, head: Head, labels_BT: Tensor, teacher_loss_BT: Tensor
) -> None:
    states = tuple(hidden_BTH.shape)
    if labels_BT.shape != states[:-1] or teacher_loss_BT.shape != labels_BT.shape:
        raise ValueError(
            f"hidden states {states}, labels {tuple(labels_BT.shape)} and teacher losses "
            f"{tuple(teacher_loss_BT.shape)}: expected (B, T, H), (B, T) and (B, T)"
        )
    shape = tuple(head.weight_VH.shape) if isinstance(head, LanguageHead) else (head.hidden_size,)
    if shape[-1] != states[-1] or (isinstance(head, LanguageHead) and len(shape) != 2):
        raise ValueError(f"head weights {shape}: expected (V, H) with H = {states[-1]}")
