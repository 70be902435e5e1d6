"""Methods that train on all tokens and add a distance between both models' distributions."""

from abc import abstractmethod
from typing import Any

from torch import Tensor

from vocagno.guidance.criteria import StudentSide, TeacherSide
from vocagno.guidance.cross_entropy import TokenMetrics
from vocagno.guidance.distillation import Distance, DistillationMetrics, distillation_loss
from vocagno.guidance.methods.base import Method, StudentOutput
from vocagno.guidance.totals import LossSums, TokenCounts
from vocagno.models.causal import IGNORED
from vocagno.models.head import Head
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
        self, student: StudentSide, teacher: TeacherSide
    ) -> tuple[Tensor, TokenMetrics]:
        """Refuses: there is more to the loss."""
        raise ValueError(
            f"guidance.method: {self.guidance.method} has a separate loss: distillation_loss"
        )

    def loss(self, student: StudentSide, teacher: TeacherSide) -> StudentOutput:
        """As `Method.loss`."""
        if teacher.states is None:
            raise ValueError(f"guidance.method: {self.guidance.method} needs the teacher's states")
        hidden_BTH, head, labels_BT = student
        loss, metrics = self.distill(hidden_BTH, head, labels_BT, teacher.states)
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
