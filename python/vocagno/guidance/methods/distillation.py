"""Methods that train on all tokens and add a distance between both models' distributions.

The paper compares guidance with them: KLD (Eq. 5 of arXiv 2503.19123) and ULD (Eq. 6). Logits of
either side exist a chunk at a time.

B: rows, T: tokens of a row, N = B * T, M: tokens of the teacher, C: tokens of a chunk, H: hidden
size, V: the student's vocabulary, W: the teacher's.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.guidance.batch import GuidedBatch, TokenCounts
from vocagno.guidance.chunked_loss import Objective, chunked_loss
from vocagno.guidance.comparison import DocumentPairs, positional_map
from vocagno.guidance.loss import LossSums, TokenMetrics
from vocagno.guidance.methods.base import Method, StudentOutput, log_of_distance
from vocagno.models.head import Head
from vocagno.models.losses import IGNORED, TeacherStates

Distance = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function of the student's log-probabilities (C, V) and the teacher's logits (C, W). It returns
the distances (C,) in nats (or in probability), and their gradient for the student's logits (C, V).
"""


class DistillationMetrics(NamedTuple):
    """Metrics of each token; nothing here carries a gradient."""

    nll_BT: Tensor
    """Cross-entropies in nats, float32, 0 where the label is -100."""
    distance_BT: Tensor
    """Distances, float32, 0 where there is no partner."""
    has_partner_BT: Tensor
    """True for tokens that have a partner."""


class Distillation(Method):
    """The common part of `kld` and `uld`."""

    @property
    @abstractmethod
    def distance(self) -> Distance:
        """The function that compares the distributions of student and teacher for a token."""

    def num_ids(self, head: Head, teacher: TeacherStates) -> int | None:
        """The number of ids, from the first, that are compared; None for all of either side.

        Only a distance between ids needs it: the other ids are dropped, and the rest is
        renormalised.
        """
        return None

    def distill(
        self, hidden_BTH: Tensor, head: Head, labels_BT: Tensor, teacher: TeacherStates
    ) -> tuple[Tensor, DistillationMetrics]:
        """Cross-entropy of all labels, and the weighted distance of those that have a partner.

        For `kld` this is Eq. 5 of arXiv 2503.19123, sum -log P(x_i | x_<i) + sum KL(p_S || p_T),
        and for `uld` Eq. 6, CE + lambda sum WD(p_S || p_T): `nll_BT` is -log P, `distance_BT` KL or
        WD, and `weight` lambda (1 in Eq. 5).

        Args:
            hidden_BTH: the student's last hidden states; state i predicts `labels_BT[:, i]`.
            labels_BT: target ids, int64; -100 where nothing is predicted.
            teacher: its states, and which of them belongs to which label.
        Returns: the sum, float32, and the metrics of each token.

        Both are divided by one count of the step afterwards. Eq. 6 of the paper sums over all pairs
        of positions (i, j), which no implementation does. Here each student token has one partner,
        and `pairing` says which; ULD as published compares position by position, and takes the mean
        over them, as this does.
        """
        weight = self.guidance.weight_of_distance
        assert weight is not None
        has_partner_BT = (teacher.partner_BT >= 0) & (labels_BT != IGNORED)
        objective = _WithDistance(
            labels_BT.flatten(),
            torch.where(has_partner_BT, teacher.partner_BT, -1).flatten(),
            teacher,
            self.distance,
            weight,
            self.num_ids(head, teacher),
        )
        total, parts_N2 = chunked_loss(hidden_BTH.flatten(0, -2), head, objective)
        nll_BT, distance_BT = (part.view(labels_BT.shape) for part in parts_N2.unbind(1))
        return total, DistillationMetrics(nll_BT, distance_BT, has_partner_BT)

    def cross_entropy(
        self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch
    ) -> tuple[Tensor, TokenMetrics]:
        """Refuses to compute: the loss has a part that is no cross-entropy."""
        raise ValueError(
            f"guidance.method: {self.guidance.method} has a loss of its own: Method.loss"
        )

    def loss(self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch) -> StudentOutput:
        if batch.teacher_states is None:
            raise ValueError(f"guidance.method: {self.guidance.method} needs the teacher's states")
        labels_BT = batch.labels_BT
        loss, metrics = self.distill(hidden_BTH, head, labels_BT, batch.teacher_states)
        weights_BT = (labels_BT != IGNORED).float()
        nll = metrics.nll_BT.sum()
        sums = LossSums(
            nll=nll,
            kept_nll=nll,
            kept=weights_BT.sum(),
            distance=metrics.distance_BT.sum(),
            pairs=metrics.has_partner_BT.sum(),
        )
        return StudentOutput(loss, sums.tensor(), metrics.nll_BT, weights_BT)

    def log(self, sums: LossSums, counts: TokenCounts) -> dict[str, Any]:
        return log_of_distance(sums, counts)


class KullbackLeibler(Distillation):
    """Distillation by KL divergence between equal vocabularies (`method: kld`; Eq. 5 of arXiv
    2503.19123)."""

    summary = "Trained on every token, and towards the teacher's distribution by KL divergence."

    @property
    def distance(self) -> Distance:
        return reverse_kl if self.guidance.divergence == "reverse" else forward_kl

    def num_ids(self, head: Head, teacher: TeacherStates) -> int | None:
        """The number of ids that both vocabularies share; the others are dropped.
        Raises: ValueError if more ids are to be compared than student or teacher have."""
        ids, of_teacher = head.vocabulary_size, teacher.head.vocabulary_size
        shared = ids if teacher.num_ids is None else teacher.num_ids
        if shared > min(ids, of_teacher):
            raise ValueError(
                f"kld compares {shared} ids, but the student has {ids} and the teacher "
                f"{of_teacher}; give num_ids, the size of the vocabulary that they share"
            )
        return shared


class SortedDistributions(Distillation):
    """Universal logit distillation (`method: uld`; Boizard et al., arXiv 2402.12030; Eq. 6 of arXiv
    2503.19123)."""

    summary = "Trained on every token, and towards the teacher's sorted distribution (ULD)."

    @property
    def distance(self) -> Distance:
        return wasserstein

    def mapping(
        self, pairs: DocumentPairs, overlapping_tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Pairs tokens by their text, or position by position as ULD was published."""
        if self.guidance.pairing == "aligned":
            return overlapping_tokens
        return positional_map(pairs)


class _WithDistance(Objective):
    """The loss -log P(x_i | x_<i) + weight x distance of each token (Eq. 5 and 6)."""

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
        self.part_factors = (1.0, weight)
        self.num_parts = len(self.part_factors)
        self.width = (
            teacher.head.vocabulary_size
        )  # the teacher's logits stand next to the student's
        self._num_ids = num_ids
        self._distance = distance

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """Computes the cross-entropy within the matrix of logits; the distance takes others."""
        labels_C, partner_C = self._labels_N[place], self._partner_N[place]
        log_p_CV = logits_CV.sub_(logits_CV.logsumexp(1, keepdim=True))
        has_partner_C1 = (partner_C >= 0)[:, None]
        logits_CW = self._teacher.logits(partner_C, self._num_ids)
        distance_C, slope_CV = self._distance(_among(log_p_CV, self._num_ids), logits_CW)
        is_asked_C1 = (labels_C != IGNORED)[:, None]
        labels_C1 = torch.where(is_asked_C1, labels_C[:, None], 0)  # -100 is no index
        nll_C1 = -log_p_CV.gather(1, labels_C1)
        asked_C1 = is_asked_C1.float()
        gradient_CV = log_p_CV.exp_().mul_(asked_C1).scatter_add_(1, labels_C1, -asked_C1)
        # Filled, not multiplied: the state that stands for no partner may not be finite.
        slope_CV.masked_fill_(~has_partner_C1, 0.0)
        gradient_CV[:, : slope_CV.shape[1]].add_(slope_CV, alpha=self.part_factors[1])
        nll_C = torch.where(is_asked_C1, nll_C1, 0.0).squeeze(1)
        return torch.stack([nll_C, torch.where(partner_C >= 0, distance_C, 0.0)], 1)


def _among(log_p_CV: Tensor, num_ids: int | None) -> Tensor:
    """The log-probabilities of the first ids, renormalised among them."""
    if num_ids is None or num_ids == log_p_CV.shape[1]:
        return log_p_CV
    first_CN = log_p_CV[:, :num_ids]
    return first_CN - first_CN.logsumexp(1, keepdim=True)


def reverse_kl(log_p_CV: Tensor, logits_CV: Tensor) -> tuple[Tensor, Tensor]:
    """KL(p || q) = sum p log(p / q) in nats with the student's p and the teacher's q, and its
    gradient p (log(p / q) - KL). Source: KL(p_S || p_T) of Eq. 5, arXiv 2503.19123."""
    log_q_CV = logits_CV.log_softmax(1)
    p_CV, ratio_CV = log_p_CV.exp(), log_p_CV - log_q_CV
    distance_C = (p_CV * ratio_CV).sum(1)
    return distance_C, p_CV.mul_(ratio_CV.sub_(distance_C[:, None]))


def forward_kl(log_p_CV: Tensor, logits_CV: Tensor) -> tuple[Tensor, Tensor]:
    """KL(q || p) = sum q log(q / p) in nats with the teacher's q and the student's p, and its
    gradient p - q. The usual direction of distillation; Eq. 5 has the other one."""
    log_q_CV = logits_CV.log_softmax(1)
    q_CV = log_q_CV.exp()
    distance_C = (q_CV * log_q_CV.sub_(log_p_CV)).sum(1)
    return distance_C, log_p_CV.exp().sub_(q_CV)


def wasserstein(log_p_CV: Tensor, logits_CW: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of |p_(v) - q_(v)| over ranks v, and its gradient: the student's p and the teacher's
    q are each sorted from the most probable id down, the shorter one filled up with zeros. It is a
    probability from 0 to 2.

    Source: the ULD loss of Boizard et al., arXiv 2402.12030; WD of Eq. 6, arXiv 2503.19123.
    """
    p_CV = log_p_CV.exp()
    sorted_CV, order_CV = p_CV.sort(1, descending=True)
    q_CW = logits_CW.softmax(1)
    ids, of_teacher = p_CV.shape[1], q_CW.shape[1]
    # Ranks beyond the student's ids face zeros: their sum is enough, in any order.
    if of_teacher > 2 * ids:
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
    # Through the softmax: d/d(logit v) = p_v (sign_v - sum_u p_u sign_u).
    mean_C1 = (p_CV * sign_CV).sum(1, keepdim=True)
    return difference_CV.abs().sum(1) + rest_C, p_CV.mul_(sign_CV.sub_(mean_C1))
