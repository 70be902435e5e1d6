"""Methods that train on some of the tokens: those whose loss is furthest above the teacher's."""

from typing import Any

from torch import Tensor

from vocagno.guidance.criteria import StudentSide, TeacherSide
from vocagno.guidance.cross_entropy import TokenMetrics, chosen_cross_entropy
from vocagno.guidance.methods.base import Method
from vocagno.guidance.totals import LossSums, TokenCounts
from vocagno.guidance.weights import roles


class Selection(Method):
    """The common part of methods that rank tokens or chunks."""

    def roles(self, teacher_loss_BT: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        """As `Method.roles`."""
        return roles(teacher_loss_BT, labels_BT, self.guidance)

    @property
    def knows_kept(self) -> bool:
        """As `Method.knows_kept`."""
        return self.guidance.keeps_quota

    def cross_entropy(
        self, student: StudentSide, teacher: TeacherSide
    ) -> tuple[Tensor, TokenMetrics]:
        """As `Method.cross_entropy`: the losses of all tokens first, which `choose` ranks."""
        return chosen_cross_entropy(
            student,
            lambda nll_BT: self.choose(nll_BT, student.labels_BT, teacher),
            num_kept=teacher.num_kept,
        )

    def log(self, sums: LossSums, counts: TokenCounts) -> dict[str, Any]:
        """As `Method.log`: mean excess and teacher loss, and the threshold."""
        if not counts.with_text:  # chosen at random
            return {}
        ranked = max(1.0, sums.ranked)
        entry = {
            "mean_excess_loss": sums.excess / ranked,
            "mean_teacher_loss": sums.teacher / ranked,
        }
        if sums.scopes:
            entry["threshold"] = sums.threshold / sums.scopes
        return entry
