"""Intermediate values of a choice, for pictures: of groups and of neighbours.

B: rows, T: tokens of a row.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.noise import teacher_loss_of_neighbours
from vocagno.guidance.units import Units, group_means
from vocagno.guidance.weights import excess_loss, roles


class UnitFacts(NamedTuple):
    """Of each token; None where the rule does not look at it, NaN where there is none, and for a
    token that does not compete."""

    excess_BT: Tensor | None
    """The excess loss of its group in nats, for `unit: group`."""
    neighbours_loss_BT: Tensor | None
    """The teacher's smoothed loss on its neighbours in nats a byte, for `window_max_loss`."""


def unit_facts(
    student_nll_BT: Tensor, tensors: dict[str, Tensor], guidance: GuidanceConfig
) -> UnitFacts:
    """Intermediate values of `choose`, with each row as a scope.

    Args:
        student_nll_BT: nats.
        tensors: of a `Batch`.
        guidance: of a method that ranks tokens; others look at nothing of the kind.
    """
    units = Units.of_batch(tensors)
    if guidance.unit == "token" and guidance.window is None:
        return UnitFacts(None, None)
    labels_BT, teacher_BT = tensors["labels"], tensors["teacher_loss"]
    competing_BT, _ = roles(teacher_BT, labels_BT, guidance)
    of_group_BT = loss_BT = None
    if guidance.unit == "group" and units.groups_BT is not None:
        of_group_BT = excess_loss(group_means(student_nll_BT, units.groups_BT), teacher_BT)
    if guidance.window_max_loss is not None:
        loss_BT = teacher_loss_of_neighbours(teacher_BT, labels_BT, units, guidance)
    found = (
        None if values_BT is None else values_BT.masked_fill(~competing_BT, torch.nan)
        for values_BT in (of_group_BT, loss_BT)
    )
    return UnitFacts(*found)
