"""The inputs of a method: both sides of a training step, and the criteria of a choice."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.units import Units
from vocagno.models.head import Head
from vocagno.teacher.states import TeacherStates


class Criteria(NamedTuple):
    """Inputs of a choice other than the losses of both models.

    B: rows, T: tokens of a row, C: chunks of a row.
    """

    entropy_BT: Tensor | None = None
    """Of the teacher's distribution for each token, nats; for `criterion: excess_and_entropy`."""
    chunks_BT: Tensor | None = None
    """The number of each token's chunk, -1 at padding; for `method: chunk`."""
    rank_BC: Tensor | None = None
    """Ranks chunks instead of their excess loss; for `selection: random`."""
    teacher_sums_B2: Tensor | None = None
    """As `row_sums`, for `unmapped: mean`; default: that mean is of the aggregated losses."""
    units: Units = Units()
    """Groups, lines and what else tells noise, for `unit: group` and `window_max_loss`."""
    chunk_ends: Sequence[int] | NDArray[np.int64] | None = None
    """Where the groups of a batch may be cut into chunks (`group_ends`), known to the host; without
    it the host waits for the device, if that is not the CPU."""
    guidance: GuidanceConfig | None = None
    """What these were made for, which `selective_cross_entropy` compares with its own."""


class StudentSide(NamedTuple):
    """The student's side of a training step."""

    hidden_BTH: Tensor
    """Last hidden states; state i predicts `labels_BT[:, i]`."""
    head: Head
    labels_BT: Tensor
    """Target ids, -100 where nothing is predicted."""

    @property
    def flat_hidden(self) -> Tensor:
        """The states of all rows (N, H)."""
        return self.hidden_BTH.flatten(0, -2)


class TeacherSide(NamedTuple):
    """The teacher's side of a training step, known before the forward pass."""

    teacher_loss_BT: Tensor
    """Nats, NaN for none."""
    criteria: Criteria
    num_kept: int | None = None
    """How many tokens will be kept at most, so that the host need not wait for the device."""
    states: TeacherStates | None = None
    """The teacher's distributions, for methods that need them."""
