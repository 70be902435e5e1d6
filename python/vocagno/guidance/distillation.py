"""Distances between the distributions of student and teacher, added to the cross-entropy.

What the paper compares guidance with: KLD (Eq. 5 of arXiv 2503.19123) and ULD (Eq. 6). Logits of
either side exist a chunk at a time.

B: rows, T: tokens of a row, N = B * T, M: tokens of the teacher, C: tokens of a chunk, H: hidden
size, V: the student's vocabulary, W: the teacher's.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from vocagno.guidance.chunked_loss import chunked_loss
from vocagno.guidance.loss import product_dtype
from vocagno.models.head import Head
from vocagno.models.losses import IGNORED
from vocagno.teacher.states import TeacherStates

Distance = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Log-probabilities of the student (C, V) and logits of the teacher (C, W) to distances (C,) in
nats (or in probability), and their gradient for the student's logits (C, V)."""


class DistillationMetrics(NamedTuple):
    """Metrics of each token; nothing here carries a gradient."""

    nll_BT: Tensor
    """Cross-entropies in nats, float32, 0 where the label is -100."""
    distance_BT: Tensor
    """Distances, float32, 0 where there is no partner."""
    has_partner_BT: Tensor
    """Which tokens have one (boolean)."""


def distillation_loss(
    hidden_BTH: Tensor,
    head: Head,
    labels_BT: Tensor,
    teacher: TeacherStates,
    distance: Distance,
    *,
    weight: float = 1.0,
    num_ids: int | None = None,
) -> tuple[Tensor, DistillationMetrics]:
    """Cross-entropy of all labels, and the weighted distance of those that have a partner; sums.

    Args:
        hidden_BTH: the student's last hidden states; state i predicts `labels_BT[:, i]`.
        labels_BT: target ids, int64; -100 where nothing is predicted.
        teacher: its states, and which of them belongs to which label.
        distance: of both distributions for a token.
        weight: what the distance is multiplied by before it is added.
        num_ids: ids, from the first, that both vocabularies share, for a distance between ids; the
            others are dropped, and the rest is renormalised.
    Returns: the loss, float32, and the metrics of each token.

    Both are divided by one count of the step afterwards. ULD as published compares position by
    position and takes the mean over positions, which this is; Eq. 6 of the paper sums over all
    pairs of positions, which no implementation does: each student token has one partner here, and
    `pairing` says which.
    """
    has_partner_BT = (teacher.partner_BT >= 0) & (labels_BT != IGNORED)
    partner_N = torch.where(has_partner_BT, teacher.partner_BT, -1).flatten()
    objective = _WithDistance(labels_BT.flatten(), partner_N, teacher, distance, weight, num_ids)
    hidden_NH, dtype = hidden_BTH.flatten(0, -2), product_dtype(hidden_BTH)
    with torch.autocast(hidden_NH.device.type, enabled=False):
        total, parts_N2 = chunked_loss(hidden_NH, head, objective, dtype)
    nll_BT, distance_BT = (part.view(labels_BT.shape) for part in parts_N2.unbind(1))
    return total, DistillationMetrics(nll_BT, distance_BT, has_partner_BT)


class _WithDistance:
    """Cross-entropy, and a distance to the teacher's distribution: an `Objective`."""

    def __init__(
        self,
        labels_N: Tensor,
        partner_N: Tensor,
        teacher: TeacherStates,
        distance: Distance,
        weight: float,
        num_ids: int | None,
    ) -> None:
        self._labels_N, self._partner_N = labels_N, partner_N
        self._teacher = replace(teacher, head=teacher.head.for_chunks())
        self.weights = (1.0, weight)
        self.num_parts = len(self.weights)
        self.ends: None = None
        self.width = teacher.head.vocabulary_size
        self._num_ids = num_ids
        self._distance = distance

    def rows(self, place: slice) -> Tensor | None:
        """As `Objective`."""
        return None

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """As `Objective`."""
        labels_C, partner_C = self._labels_N[place], self._partner_N[place]
        log_p_CV = logits_CV.sub_(logits_CV.logsumexp(1, keepdim=True))
        has_partner_C1 = (partner_C >= 0)[:, None]
        logits_CW = self._teacher.logits(partner_C, self._num_ids)
        distance_C, slope_CV = self._distance(_among(log_p_CV, self._num_ids), logits_CW)
        is_asked_C1 = (labels_C != IGNORED)[:, None]
        labels_C1 = torch.where(is_asked_C1, labels_C[:, None], 0)
        nll_C1 = -log_p_CV.gather(1, labels_C1)
        asked_C1 = is_asked_C1.float()
        gradient_CV = log_p_CV.exp_().mul_(asked_C1).scatter_add_(1, labels_C1, -asked_C1)
        # Filled, not multiplied: the state that stands for no partner may not be finite.
        slope_CV.masked_fill_(~has_partner_C1, 0.0)
        gradient_CV[:, : slope_CV.shape[1]].add_(slope_CV, alpha=self.weights[1])
        nll_C = torch.where(is_asked_C1, nll_C1, 0.0).squeeze(1)
        return torch.stack([nll_C, torch.where(partner_C >= 0, distance_C, 0.0)], 1)


def _among(log_p_CV: Tensor, num_ids: int | None) -> Tensor:
    """Log-probabilities of the first ids among themselves; the others have no part in a slope."""
    if num_ids is None or num_ids == log_p_CV.shape[1]:
        return log_p_CV
    first_CN = log_p_CV[:, :num_ids]
    return first_CN - first_CN.logsumexp(1, keepdim=True)


def reverse_kl(log_p_CV: Tensor, logits_CV: Tensor) -> tuple[Tensor, Tensor]:
    """KL(student || teacher), as in Eq. 5; as `Distance`."""
    log_q_CV = logits_CV.log_softmax(1)
    p_CV, ratio_CV = log_p_CV.exp(), log_p_CV - log_q_CV
    distance_C = (p_CV * ratio_CV).sum(1)
    return distance_C, p_CV.mul_(ratio_CV.sub_(distance_C[:, None]))


def forward_kl(log_p_CV: Tensor, logits_CV: Tensor) -> tuple[Tensor, Tensor]:
    """KL(teacher || student); as `Distance`."""
    log_q_CV = logits_CV.log_softmax(1)
    q_CV = log_q_CV.exp()
    distance_C = (q_CV * log_q_CV.sub_(log_p_CV)).sum(1)
    return distance_C, log_p_CV.exp().sub_(q_CV)


def wasserstein(log_p_CV: Tensor, logits_CW: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the differences of both distributions, each sorted from its most probable id down,
    the shorter one filled up with zeros; as `Distance`. In probability, from 0 to 2.

    Source: the ULD loss of Boizard et al., arXiv 2402.12030.
    """
    p_CV = log_p_CV.exp()
    sorted_CV, order_CV = p_CV.sort(1, descending=True)
    q_CW = logits_CW.softmax(1)
    ids, of_teacher = p_CV.shape[1], q_CW.shape[1]
    if of_teacher > 2 * ids:  # the rest only has to be added up
        top_CV = q_CW.topk(ids, 1).values
        rest_C = (q_CW.sum(1) - top_CV.sum(1)).clamp_min_(0)
    else:
        down_CW = q_CW.sort(1, descending=True).values
        top_CV = down_CW[:, :ids]
        rest_C = down_CW[:, ids:].sum(1)
    if of_teacher < ids:
        top_CV = torch.nn.functional.pad(top_CV, (0, ids - of_teacher))
    difference_CV = sorted_CV - top_CV
    sign_CV = torch.empty_like(p_CV).scatter_(1, order_CV, difference_CV.sign())
    mean_C1 = (p_CV * sign_CV).sum(1, keepdim=True)
    return difference_CV.abs().sum(1) + rest_C, p_CV.mul_(sign_CV.sub_(mean_C1))
