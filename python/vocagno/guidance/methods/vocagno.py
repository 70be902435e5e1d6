"""VocAgnoLM: tokens chosen by a teacher of any vocabulary, through the text that both cover."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vocagno.guidance.group_losses import compared_groups
from vocagno.guidance.mappings import ComparedTokens
from vocagno.guidance.methods.tokens import TokenSelection

if TYPE_CHECKING:
    from vocagno.guidance.pieces import Pieces


class VocAgno(TokenSelection):
    """`method: vocagno` (arXiv 2503.19123, Eq. 2 to 4)."""

    summary = "Trained on the tokens whose loss is furthest above the teacher's, aligned by text."
    can_show_text = True

    def compared(
        self,
        pieces: "Pieces",
        meeting: NDArray[np.int32],
        is_predicted: NDArray[np.bool_] | None,
    ) -> ComparedTokens:
        """As `Method.compared`; for `unit: group`, of the groups."""
        if self.guidance.unit == "token" and not self.guidance.needs_group_loss:
            return super().compared(pieces, meeting, is_predicted)
        by_group = compared_groups(
            pieces.student,
            pieces.teacher,
            pieces.teacher_nll,
            is_predicted,
            pieces.ends_row(),
            **pieces.cu_seqlens,
        )
        if self.guidance.unit == "group":
            return by_group
        return replace(super().compared(pieces, meeting, is_predicted), by_group=by_group)
