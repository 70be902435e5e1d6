"""Which units are noise by their neighbours: the other tokens of a line of text.

B: rows, T: tokens of a row.
"""

import torch
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.units import Units, window_means
from vocagno.models.causal import IGNORED

SMOOTHING_BYTES = 8
"""Added to the neighbours, with 1 nat each, so that a few hard tokens do not make a short line
noise."""


def is_noise_by_teacher(
    teacher_loss_BT: Tensor, labels_BT: Tensor, units: Units, config: GuidanceConfig
) -> Tensor:
    """(B, T) boolean: tokens whose `teacher_loss_of_neighbours` exceeds `window_max_loss`. The
    student takes no part, so it is known before the forward pass.

    Args, Raises: as `teacher_loss_of_neighbours`.
    """
    assert config.window_max_loss is not None
    if units.noise_BT is not None:
        return units.noise_BT
    around_BT = teacher_loss_of_neighbours(teacher_loss_BT, labels_BT, units, config)
    return around_BT > config.window_max_loss


def teacher_loss_of_neighbours(
    teacher_loss_BT: Tensor, labels_BT: Tensor, units: Units, config: GuidanceConfig
) -> Tensor:
    """(B, T) float64: the teacher's loss on the neighbours of each token's group (without groups:
    of the token), in nats a byte; NaN without any. `SMOOTHING_BYTES` are added.

    Args: as `choose`.
    Raises: ValueError without the bytes of the tokens, groups or their losses where the rule needs
        these, or lines.
    """
    needed = {"lines of the tokens": units.lines_BT, "bytes of the tokens": units.bytes_BT}
    if config.needs_group_loss:
        needed |= {"groups": units.groups_BT, "losses of the groups": units.group_loss_BT}
        teacher_loss_BT = teacher_loss_BT if units.group_loss_BT is None else units.group_loss_BT
    if missing := [name for name, given in needed.items() if given is None]:
        raise ValueError(
            f"guidance.window_max_loss needs the {missing[0]}; give the criteria that "
            "guided_batch makes, use GuidedCollator or add_teacher_loss, which make them, too, or "
            "a rule of single tokens, such as GuidanceConfig(top_fraction=0.4)"
        )
    assert units.lines_BT is not None
    assert units.bytes_BT is not None
    counted_BT = teacher_loss_BT.isfinite() & (labels_BT != IGNORED)
    loss_BT = torch.where(counted_BT, teacher_loss_BT, 0.0)
    bytes_BT = torch.where(counted_BT, units.bytes_BT, 0)
    return window_means(loss_BT, bytes_BT, units.groups_BT, units.lines_BT, SMOOTHING_BYTES)
