"""ULD: the Wasserstein distance of sorted distributions (Eq. 6 of arXiv 2503.19123)."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vocagno.guidance.distillation import Distance, wasserstein
from vocagno.guidance.mappings import positional_map
from vocagno.guidance.methods.distillation import Distillation

if TYPE_CHECKING:
    from vocagno.guidance.pieces import Pieces


class SortedDistributions(Distillation):
    """`method: uld` (Boizard et al., arXiv 2402.12030)."""

    summary = "Trained on every token, and towards the teacher's sorted distribution (ULD)."

    @property
    def distance(self) -> Distance:
        """As `Distillation.distance`."""
        return wasserstein

    def mapping(self, pieces: "Pieces", meeting: NDArray[np.int32]) -> NDArray[np.int32]:
        """As `Method.mapping`: by text, or position by position."""
        if self.guidance.pairing == "aligned":
            return meeting
        return positional_map(pieces.student, pieces.teacher, pieces.student_cu, pieces.teacher_cu)
