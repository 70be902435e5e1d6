"""Tokens chosen one by one, or with the group they are in (Eq. 3 and 4 of arXiv 2503.19123)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vocagno.guidance.criteria import StudentSide, TeacherSide
from vocagno.guidance.cross_entropy import TokenMetrics
from vocagno.guidance.methods.selection import Selection
from vocagno.guidance.ranking import kept_count
from vocagno.guidance.thresholded import thresholded_cross_entropy
from vocagno.guidance.totals import TokenCounts
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

    def kept_in_step(self, counts: Sequence[TokenCounts]) -> int:
        """As `Method.kept_in_step`."""
        if not (self.guidance.keeps_quota and self.guidance.scope == "step"):
            return super().kept_in_step(counts)
        # Ranked over all processes, which no single one can count.
        assert self.guidance.top_fraction is not None
        competing = torch.tensor([one.competing for one in counts])
        kept = kept_count(competing, self.guidance.top_fraction).sum()
        return int(kept) + sum(one.included for one in counts)

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, teacher: TeacherSide) -> Choice:
        """As `Method.choose`."""
        given = nll_BT, teacher.teacher_loss_BT, labels_BT, self.guidance
        more = teacher.criteria
        return choose(*given, more.entropy_BT, more.teacher_sums_B2, more.units)

    def cross_entropy(
        self, student: StudentSide, teacher: TeacherSide
    ) -> tuple[Tensor, TokenMetrics]:
        """As `Method.cross_entropy`; in one pass over the logits if the threshold is known."""
        is_loop = student.head_loss_by in ("auto", "loop")
        if not (self.guidance.has_fixed_threshold and is_loop and torch.is_grad_enabled()):
            return super().cross_entropy(student, teacher)
        given = student.flat_hidden, student.head, student.labels_BT, teacher.teacher_loss_BT
        more = teacher.criteria.units, teacher.criteria.teacher_sums_B2, teacher.criteria.chunk_ends
        return thresholded_cross_entropy(*given, self.guidance, *more)
