"""What a choice looks at beside a token's own losses, so that pictures can show it.

B: rows, T: tokens of a row.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from vocagno.guidance_config import GuidanceConfig
from vocagno.training.guidance import excess_loss, filled_teacher_loss, roles
from vocagno.training.units import group_means, window_means


class UnitFacts(NamedTuple):
    """Of each token, in nats; None where the rule does not look at it."""

    excess_BT: Tensor | None
    """The excess loss of its group, for `unit: group`; NaN without a teacher loss."""
    neighbours_BT: Tensor | None
    """The mean excess loss of its neighbours, for `window`; NaN without any, and for a token that
    does not compete."""


def unit_facts(
    student_nll_BT: Tensor, tensors: dict[str, Tensor], guidance: GuidanceConfig
) -> UnitFacts:
    """What `choose` computes on its way, with each row as a scope of its own.

    Args:
        student_nll_BT: nats.
        tensors: of a `Batch`.
        guidance: of a method that ranks tokens; others look at nothing of the kind.
    """
    labels_BT, groups_BT = tensors["labels"], tensors.get("groups")
    if groups_BT is None and guidance.window is None:
        return UnitFacts(None, None)
    teacher_BT = tensors["teacher_loss"]
    competing_BT, _ = roles(teacher_BT, labels_BT, guidance)
    filled_BT = filled_teacher_loss(teacher_BT, labels_BT, guidance, tensors.get("teacher_sums"))
    nll_BT = student_nll_BT if groups_BT is None else group_means(student_nll_BT, groups_BT)
    excess_BT = excess_loss(nll_BT, filled_BT)
    around_BT = None
    if guidance.window is not None:
        lines_BT = tensors.get("lines")
        around_BT = window_means(excess_BT, competing_BT, groups_BT, lines_BT, guidance)
        around_BT = around_BT.masked_fill(~competing_BT, torch.nan)
    return UnitFacts(None if groups_BT is None else excess_loss(nll_BT, teacher_BT), around_BT)
