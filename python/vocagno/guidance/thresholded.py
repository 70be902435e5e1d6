"""Cross-entropy with a threshold that is known beforehand: each chunk of logits is computed once.

A token is kept if the excess loss of its unit reaches the threshold, so its weight depends on no
token outside its unit. If no chunk of logits ends inside a group, losses, weights and gradients all
follow from one product of states and weights.

B: rows, T: tokens of a row, N = B * T, H: hidden size, V: vocabulary, C: tokens of a chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.chunked_loss import chunked_loss, cross_entropy_
from vocagno.guidance.cross_entropy import TokenMetrics, product_dtype
from vocagno.guidance.noise import is_noise_by_teacher
from vocagno.guidance.units import Units
from vocagno.guidance.weights import choose, filled_teacher_loss
from vocagno.models.head import Head

_LEAST_DROPPED = 1 / 32
"""Share of dropped tokens in a chunk from which on moving the kept ones together pays."""


def thresholded_cross_entropy(
    hidden_NH: Tensor,
    head: Head,
    labels_BT: Tensor,
    teacher_loss_BT: Tensor,
    guidance: GuidanceConfig,
    units: Units,
    teacher_sums_B2: Tensor | None = None,
    chunk_ends: Sequence[int] | NDArray[np.int64] | None = None,
) -> tuple[Tensor, TokenMetrics]:
    """The sum of the losses of the tokens that `choose` keeps.

    Args: as `selective_cross_entropy`.
    Returns: the sum, float32, with gradients, and the metrics of each token.
    Raises: ValueError if the threshold of `guidance` is not known beforehand.
    """
    if not guidance.has_fixed_threshold:
        raise ValueError("guidance: the threshold is known only after all losses")
    groups_BT = units.groups_BT if guidance.unit == "group" else None
    groups_N = None if groups_BT is None else groups_BT.flatten()
    if groups_N is not None and chunk_ends is None:
        chunk_ends = group_ends(groups_N.cpu())
    noise_N = None
    if guidance.window_max_loss is not None:
        noise_N = is_noise_by_teacher(teacher_loss_BT, labels_BT, units, guidance).flatten()
    teacher_loss_BT = filled_teacher_loss(teacher_loss_BT, labels_BT, guidance, teacher_sums_B2)
    objective = ChosenCrossEntropy(
        labels_BT.flatten(), teacher_loss_BT.flatten(), groups_N, noise_N, guidance, chunk_ends
    )
    dtype = product_dtype(hidden_NH)
    with torch.autocast(hidden_NH.device.type, enabled=False):
        total, parts_N2 = chunked_loss(hidden_NH, head, objective, dtype)
    shape = labels_BT.shape
    thresholds_S = total.new_full((1,), guidance.threshold_without_quota, requires_grad=False)
    nll_BT, weights_BT = parts_N2[:, 1].view(shape), objective.weights_N.view(shape)
    return total, TokenMetrics(nll_BT, weights_BT, thresholds_S)


def chunk_ends_of(
    tensors: Mapping[str, Tensor], guidance: GuidanceConfig
) -> NDArray[np.int64] | None:
    """`group_ends` of the tensors of a `Batch`, on the host; None where they have no use."""
    if not guidance.has_fixed_threshold or guidance.unit != "group" or "groups" not in tensors:
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

    With a threshold that is known beforehand they are the weights of the whole row.
    """

    weights: tuple[float] = (1.0,)
    num_parts = 2
    width = 0

    def __init__(
        self,
        labels_N: Tensor,
        teacher_loss_N: Tensor,
        groups_N: Tensor | None,
        noise_N: Tensor | None,
        guidance: GuidanceConfig,
        ends: Sequence[int] | NDArray[np.int64] | None,
    ) -> None:
        self._labels_N, self._teacher_loss_N, self._groups_N = labels_N, teacher_loss_N, groups_N
        self._noise_N = noise_N
        is_own = guidance.scope == "sequence"  # making options checks them, which takes 0.1 ms
        self._guidance = guidance if is_own else replace(guidance, scope="sequence")
        self.ends = ends
        self.weights_N: Tensor = torch.zeros(labels_N.shape, device=labels_N.device)

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """As `Objective`; the parts are the loss of a kept token, and the loss."""
        labels_C = self._labels_N[place]

        def weigh(nll_C: Tensor) -> Tensor:
            self.weights_N[place] = self._weights(nll_C, place)
            return self.weights_N[place]

        nll_C = cross_entropy_(logits_CV, labels_C, weigh)
        weights_C = self.weights_N[place]
        kept_C = torch.where(weights_C > 0, nll_C, 0.0)
        return torch.stack([kept_C, nll_C], 1)

    def rows(self, place: slice) -> Tensor | None:
        """As `Objective`."""
        weights_C = self.weights_N[place]
        if weights_C.device.type != "cpu":
            return None  # the host would have to wait
        rows_K = weights_C.nonzero().squeeze(1)
        return rows_K if len(rows_K) < (1 - _LEAST_DROPPED) * len(weights_C) else None

    def _weights(self, nll_C: Tensor, place: slice) -> Tensor:
        groups_1C = None if self._groups_N is None else self._groups_N[None, place]
        noise_1C = None if self._noise_N is None else self._noise_N[None, place]
        return choose(
            nll_C[None],
            self._teacher_loss_N[None, place],
            self._labels_N[None, place],
            self._guidance,
            units=Units(groups_1C, noise_BT=noise_1C),
        ).weights_BT[0]
