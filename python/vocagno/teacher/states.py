"""Distributions of a teacher: hidden states and the head that turns them into logits.

B: rows, T: tokens of a row, M: tokens of the teacher, C: tokens of a chunk, H: hidden size.
"""

from dataclasses import dataclass

from torch import Tensor

from vocagno.models.head import Head


@dataclass(frozen=True, slots=True)
class TeacherStates:
    """A teacher's distributions: hidden states and the head that turns them into logits."""

    states_MH: Tensor
    head: Head
    partner_BT: Tensor
    """Which of the M states predicts the teacher's counterpart of each label; -1 for none."""
    num_ids: int | None = None
    """For `kld`: number of leading ids that both vocabularies share; heads may have more. Default:
    all of the student's."""

    def logits(self, partner_C: Tensor, num_ids: int | None = None) -> Tensor:
        """(C, W) float32, optionally only of the teacher's first `num_ids` ids."""
        head = self.head if num_ids is None else self.head.first(num_ids)
        states_CH = self.states_MH[partner_C.clamp_min(0).to(self.states_MH.device)]
        return head.logits(states_CH.to(head.device)).to(partner_C.device)
