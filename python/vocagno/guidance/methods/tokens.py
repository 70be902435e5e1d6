"""Tokens chosen one by one, or with the group they are in (Eq. 3 and 4 of arXiv 2503.19123)."""

import torch
from torch import Tensor

from vocagno.guidance.criteria import StudentSide, TeacherSide
from vocagno.guidance.cross_entropy import TokenMetrics
from vocagno.guidance.methods.selection import Selection
from vocagno.guidance.thresholded import thresholded_cross_entropy
from vocagno.guidance.weights import Choice, choose, quota_of_roles


class TokenSelection(Selection):
    """The common part of `vocagno` and `rho1`."""

    def most_kept(
        self, competing_BT: Tensor, included_BT: Tensor, tensors: dict[str, Tensor]
    ) -> int:
        """As `Method.most_kept`."""
        if self.guidance.keeps_quota:
            return int(quota_of_roles(competing_BT, included_BT, self.guidance))
        return int(competing_BT.sum() + included_BT.sum())

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, teacher: TeacherSide) -> Choice:
        """As `Method.choose`."""
        given = nll_BT, teacher.teacher_loss_BT, labels_BT, self.guidance
        more = teacher.criteria
        return choose(*given, more.entropy_BT, more.teacher_sums_B2, more.units)

    def cross_entropy(
        self, student: StudentSide, teacher: TeacherSide
    ) -> tuple[Tensor, TokenMetrics]:
        """As `Method.cross_entropy`; in one pass over the logits if the threshold is known."""
        if not (self.guidance.has_fixed_threshold and torch.is_grad_enabled()):
            return super().cross_entropy(student, teacher)
        given = student.flat_hidden, student.head, student.labels_BT, teacher.teacher_loss_BT
        more = teacher.criteria.units, teacher.criteria.teacher_sums_B2, teacher.criteria.chunk_ends
        return thresholded_cross_entropy(*given, self.guidance, *more)
