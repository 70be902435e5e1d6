"""The language head with its loss, differentiable, a chunk of logits at a time.

With a threshold that is known beforehand, each chunk is computed once: the weight of a token then
depends on no token outside its unit.

B: rows, T: tokens of a row, N = B * T, K: tokens to train on, H: hidden size, V: vocabulary,
C: tokens of a chunk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.chunked_loss import CrossEntropy, chunked_loss, cross_entropy_
from vocagno.guidance.rules import Choice, choose, filled_teacher_loss, fixed_weights
from vocagno.guidance.tensors import GuidanceTensors, StudentSide
from vocagno.models.head import Head
from vocagno.models.losses import IGNORED, chunked_nll, teacher_guided_loss


@dataclass(frozen=True, slots=True)
class TokenMetrics:
    """Metrics of each token; nothing here carries a gradient."""

    nll_BT: Tensor
    """Losses in nats, float32, 0 where the label is -100."""
    weights_BT: Tensor
    """1.0 for a token that is trained on, else 0.0."""
    thresholds_S: Tensor | None = None
    """As `Choice.thresholds_S`; None for methods that rank no tokens."""


def chosen_cross_entropy(
    student: StudentSide,
    choose: Callable[[Tensor], Choice],
    *,
    num_kept: int | None = None,
) -> tuple[Tensor, TokenMetrics]:
    """The weighted sum of the losses of the tokens that `choose` keeps, given the losses of all.

    Args:
        choose: (B, T) losses in nats to weights and thresholds.
        num_kept: as `selective_cross_entropy`.
    Returns: float32 sum, with gradients if they are enabled, and the metrics of each token.
    """
    hidden_NH, head, labels_N = student.flat_hidden, student.head, student.labels_BT.flatten()
    nll_BT = all_losses(hidden_NH, head, labels_N).view(student.labels_BT.shape)
    weights_BT, thresholds_S = choose(nll_BT)
    metrics = TokenMetrics(nll_BT, weights_BT, thresholds_S)
    if not torch.is_grad_enabled():
        return teacher_guided_loss(nll_BT, weights_BT), metrics
    kept_N = weights_BT.flatten() > 0
    rows_K = _places(kept_N, num_kept)
    labels_K = torch.where(kept_N, labels_N, IGNORED)[rows_K]
    total, _ = head_loss(hidden_NH[rows_K], head, labels_K)
    return _with_all(total, kept_N, num_kept), metrics


def full_cross_entropy(
    student: StudentSide, num_kept: int | None = None
) -> tuple[Tensor, TokenMetrics]:
    """The sum of the losses of all labels, and the metrics of each token. Args: as
    `selective_cross_entropy`."""
    hidden_NH, head, labels_BT = student.flat_hidden, student.head, student.labels_BT
    labels_N = labels_BT.flatten()
    is_asked_N = labels_N != IGNORED
    weights_BT = is_asked_N.view(labels_BT.shape).float()
    if not torch.is_grad_enabled():
        nll_BT = all_losses(hidden_NH, head, labels_N).view(labels_BT.shape)
        return teacher_guided_loss(nll_BT, weights_BT), TokenMetrics(nll_BT, weights_BT)
    rows_K = _places(is_asked_N, num_kept)
    total, nll_K = head_loss(hidden_NH[rows_K], head, labels_N[rows_K])
    total = _with_all(total, is_asked_N, num_kept)
    nll_N = torch.zeros(len(labels_N), device=nll_K.device).index_copy(0, rows_K, nll_K)
    return total, TokenMetrics(nll_N.view(labels_BT.shape), weights_BT)


def head_loss(hidden_KH: Tensor, head: Head, labels_K: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the losses of `labels_K`, with gradients for states, weights and bias.

    Args:
        hidden_KH: the states that predict the labels; their type, or autocast's, is that of the
            products.
        labels_K: -100 takes no part.
    Returns: float32 sum, and (K,) the single losses without gradient.

    Gradients are made in the forward pass, so nothing is computed twice; a second backward pass
    through the same loss is refused. Products and the sum of the weights' gradient over chunks are
    float32.
    """
    dtype = product_dtype(hidden_KH)
    with torch.autocast(hidden_KH.device.type, enabled=False):
        total, parts_K1 = chunked_loss(hidden_KH, head, CrossEntropy(labels_K), dtype)
    return total, parts_K1.squeeze(1)


@torch.no_grad()
def all_losses(hidden_NH: Tensor, head: Head, labels_N: Tensor) -> Tensor:
    """(N,) float32: the loss of each label in nats, 0 where it is -100, without gradient."""
    dtype, is_asked_N = product_dtype(hidden_NH), labels_N != IGNORED
    with torch.autocast(hidden_NH.device.type, enabled=False):
        head = head.as_type(dtype)
        nll_N = chunked_nll(hidden_NH.to(dtype), head, torch.where(is_asked_N, labels_N, 0))
    return torch.where(is_asked_N, nll_N, 0.0)


def _places(kept_N: Tensor, num_kept: int | None) -> Tensor:
    """(K,) the kept tokens in order; of a shape that the host knows, if it knows the number (on a
    CPU it need not)."""
    if num_kept is None or kept_N.device.type == "cpu":
        return kept_N.nonzero().squeeze(1)
    return torch.argsort(~kept_N, stable=True)[:num_kept]


def _with_all(total: Tensor, kept_N: Tensor, num_kept: int | None) -> Tensor:
    """The loss; NaN if `_places` had to skip tokens that are kept, which the host does not wait to
    know.

    Raises: ValueError in place of NaN on a CPU.
    """
    if num_kept is None:
        return total
    is_more = kept_N.sum() > num_kept
    if is_more.device.type == "cpu" and is_more:
        raise ValueError(
            f"num_kept: {int(kept_N.sum()):,} tokens are kept, and num_kept is {num_kept:,}: it "
            "was counted for other tokens or by other guidance; omit it, or use count_kept"
        )
    return total * torch.where(is_more, torch.nan, 1.0)


def product_dtype(hidden: Tensor) -> torch.dtype:
    """The type of the operands: autocast's, if it is on, else that of the states."""
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return hidden.dtype


_LEAST_DROPPED = 1 / 32
"""Share of dropped tokens in a chunk from which on moving the kept ones together pays."""


def thresholded_cross_entropy(
    student: StudentSide, teacher: GuidanceTensors, guidance: GuidanceConfig
) -> tuple[Tensor, TokenMetrics]:
    """The sum of the losses of the tokens that `choose` keeps.

    Returns: the sum, float32, with gradients, and the metrics of each token.
    Raises: ValueError if the threshold of `guidance` is not known beforehand, or if the weights
        that it needs are not given.
    """
    if not guidance.has_fixed_threshold:
        raise ValueError("guidance: the threshold is known only after all losses")
    hidden_NH, shape = student.flat_hidden, student.labels_BT.shape
    objective = ChosenCrossEntropy(student.labels_BT, teacher, guidance)
    dtype = product_dtype(hidden_NH)
    with torch.autocast(hidden_NH.device.type, enabled=False):
        total, parts_N2 = chunked_loss(hidden_NH, student.head, objective, dtype)
    thresholds_S = total.new_full((1,), guidance.threshold_without_quota, requires_grad=False)
    nll_BT, weights_BT = parts_N2[:, 1].view(shape), objective.weights_N.view(shape)
    return total, TokenMetrics(nll_BT, weights_BT, thresholds_S)


def chunk_ends_of(
    tensors: Mapping[str, Tensor], guidance: GuidanceConfig
) -> NDArray[np.int64] | None:
    """`group_ends` of the tensors of a `Batch`, on the host; None where they have no use."""
    if not guidance.has_fixed_threshold or "groups" not in tensors:
        return None
    return group_ends(tensors["groups"])


def group_ends(groups: ArrayLike) -> NDArray[np.int64]:
    """The places, in the order of the tokens, before which no group is cut; the last one is their
    number.

    Args:
        groups: the number of each token's group, in the order of the groups; -1 for none.
    """
    groups_N = np.asarray(groups).ravel()
    places = np.flatnonzero(groups_N >= 0)
    begins = np.flatnonzero(np.diff(groups_N[places], prepend=-1))
    first, last = places[begins], places[np.append(begins[1:], len(places))[: len(begins)] - 1]
    inside = np.zeros(len(groups_N) + 2, np.int64)
    np.add.at(inside, first + 1, 1)
    np.add.at(inside, last + 1, -1)
    is_cut = np.cumsum(inside)[: len(groups_N) + 1] > 0
    ends: NDArray[np.int64] = np.flatnonzero(~is_cut)
    return ends[ends > 0]


class ChosenCrossEntropy:
    """Cross-entropy of the tokens of each chunk that `choose` keeps: an `Objective`.

    The weights are known beforehand, or follow from a threshold that is: then they are those of the
    whole row.
    """

    weights: tuple[float] = (1.0,)
    num_parts = 2
    width = 0

    def __init__(
        self, labels_BT: Tensor, teacher: GuidanceTensors, guidance: GuidanceConfig
    ) -> None:
        self._labels_N = labels_BT.flatten()
        self._is_known: bool = guidance.has_no_threshold
        # Making options checks them, which takes 0.1 ms.
        is_own = self._is_known or guidance.scope == "sequence"
        self._guidance = guidance if is_own else replace(guidance, scope="sequence")
        self.ends: Sequence[int] | NDArray[np.int64] | None = None
        self.weights_N: Tensor = torch.zeros(self._labels_N.shape, device=labels_BT.device)
        if self._is_known:
            self.weights_N = fixed_weights(teacher).flatten()
            return
        loss_BT, groups_BT = filled_teacher_loss(teacher, labels_BT, guidance), None
        if guidance.unit == "group" and teacher.groups is not None:
            groups_BT, self.ends = teacher.groups, teacher.chunk_ends
            if self.ends is None:
                self.ends = group_ends(groups_BT.cpu())
        given = {"teacher_loss": loss_BT, "weight": teacher.weight, "groups": groups_BT}
        self._given: dict[str, Tensor] = {
            name: value.flatten() for name, value in given.items() if value is not None
        }

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """As `Objective`; the parts are the loss of a kept token, and the loss."""

        def weigh(nll_C: Tensor) -> Tensor:
            if not self._is_known:
                self.weights_N[place] = self._weights(nll_C, place)
            return self.weights_N[place]

        nll_C = cross_entropy_(logits_CV, self._labels_N[place], weigh)
        kept_C = torch.where(self.weights_N[place] > 0, nll_C, 0.0)
        return torch.stack([kept_C, nll_C], 1)

    def rows(self, place: slice) -> Tensor | None:
        """As `Objective`."""
        weights_C = self.weights_N[place]
        if weights_C.device.type != "cpu":
            return None  # the host would have to wait
        rows_K = weights_C.nonzero().squeeze(1)
        return rows_K if len(rows_K) < (1 - _LEAST_DROPPED) * len(weights_C) else None

    def _weights(self, nll_C: Tensor, place: slice) -> Tensor:
        given: dict[str, Any] = {name: value[None, place] for name, value in self._given.items()}
        labels_1C, teacher = self._labels_N[None, place], GuidanceTensors(**given)
        return choose(nll_C[None], labels_1C, teacher, self._guidance).weights_BT[0]
