"""Rho-1: tokens chosen by a reference model of the same vocabulary."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vocagno.guidance.mappings import identity_map
from vocagno.guidance.methods.tokens import TokenSelection

if TYPE_CHECKING:
    from vocagno.guidance.pieces import Pieces


class Rho1(TokenSelection):
    """`method: rho1` (arXiv 2404.07965)."""

    summary = "Trained on the tokens whose loss is furthest above a reference model's (Rho-1)."

    def meeting(self, pieces: "Pieces") -> NDArray[np.int32]:
        """As `Method.meeting`: token to token, by counting.

        Raises: GuidanceError if the teacher's tokens are others.
        """
        return identity_map(
            pieces.student,
            pieces.teacher,
            pieces.student_cu,
            pieces.teacher_cu,
            pieces.numbers,
            pieces.begins_row(),
        )
