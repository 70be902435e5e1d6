"""Methods that train on all tokens and add a distance between both models' distributions."""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vocagno.guidance.distillation import (
    Distance,
    DistillationMetrics,
    distillation_loss,
    forward_kl,
    reverse_kl,
    wasserstein,
)
from vocagno.guidance.loss import TokenMetrics
from vocagno.guidance.mappings import Pieces, positional_map
from vocagno.guidance.methods.base import Method, StudentOutput
from vocagno.guidance.tensors import GuidanceTensors, LossSums, StudentSide, TokenCounts
from vocagno.models.head import Head
from vocagno.models.losses import IGNORED
from vocagno.teacher.states import TeacherStates


class Distillation(Method):
    """The common part of `kld` and `uld`."""

    @property
    @abstractmethod
    def distance(self) -> Distance:
        """Of the distributions of student and teacher for a token."""

    def num_ids(self, head: Head, teacher: TeacherStates) -> int | None:
        """How many ids, from the first, are compared; None for all of either side."""
        return None

    def distill(
        self, hidden_BTH: Tensor, head: Head, labels_BT: Tensor, teacher: TeacherStates
    ) -> tuple[Tensor, DistillationMetrics]:
        """As `distillation_loss`, with the distance of the method and its weight."""
        weight = self.guidance.weight_of_distance
        assert weight is not None
        return distillation_loss(
            hidden_BTH,
            head,
            labels_BT,
            teacher,
            self.distance,
            weight=weight,
            num_ids=self.num_ids(head, teacher),
        )

    def cross_entropy(
        self, student: StudentSide, teacher: GuidanceTensors
    ) -> tuple[Tensor, TokenMetrics]:
        """Refuses: there is more to the loss."""
        raise ValueError(
            f"guidance.method: {self.guidance.method} has a separate loss: distillation_loss"
        )

    def loss(self, student: StudentSide, teacher: GuidanceTensors) -> StudentOutput:
        """As `Method.loss`."""
        if teacher.teacher is None:
            raise ValueError(f"guidance.method: {self.guidance.method} needs the teacher's states")
        hidden_BTH, head, labels_BT = student
        loss, metrics = self.distill(hidden_BTH, head, labels_BT, teacher.teacher)
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
        """As `Method.log`: the mean distance, and the share of tokens that have one."""
        return {
            "mean_distance": sums.distance / max(1.0, sums.pairs),
            "paired": sums.pairs / max(1, counts.predicted),
        }


class KullbackLeibler(Distillation):
    """`method: kld`."""

    summary = "Trained on every token, and towards the teacher's distribution by KL divergence."

    @property
    def distance(self) -> Distance:
        """As `Distillation.distance`."""
        return reverse_kl if self.guidance.divergence == "reverse" else forward_kl

    def num_ids(self, head: Head, teacher: TeacherStates) -> int | None:
        """As `Distillation.num_ids`: ids of only one side are dropped, the rest is renormalised.

        Raises: ValueError if more ids are to be compared than student or teacher have.
        """
        ids, of_teacher = head.vocabulary_size, teacher.head.vocabulary_size
        shared = ids if teacher.num_ids is None else teacher.num_ids
        if shared > min(ids, of_teacher):
            raise ValueError(
                f"kld compares {shared} ids, but the student has {ids} and the teacher "
                f"{of_teacher}; give num_ids, the size of the vocabulary that they share"
            )
        return shared


class SortedDistributions(Distillation):
    """`method: uld` (Boizard et al., arXiv 2402.12030)."""

    summary = "Trained on every token, and towards the teacher's sorted distribution (ULD)."

    @property
    def distance(self) -> Distance:
        """As `Distillation.distance`."""
        return wasserstein

    def mapping(self, pieces: Pieces, meeting: NDArray[np.int32]) -> NDArray[np.int32]:
        """As `Method.mapping`: by text, or position by position."""
        if self.guidance.pairing == "aligned":
            return meeting
        return positional_map(pieces.student, pieces.teacher, pieces.student_cu, pieces.teacher_cu)
