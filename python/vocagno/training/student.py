"""The student with its loss inside its forward pass, as wrappers that shard weights need it.

B: rows, T: tokens of a row, V: vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vocagno.config import GuidanceConfig
from vocagno.training.guidance import excess_loss, token_weights
from vocagno.training.losses import teacher_guided_loss, token_nll

SUMS = ("nll", "kept_nll", "excess", "teacher")
"""What a forward pass sums up, in this order: the student's losses over all predicted tokens and
over the kept ones; over the tokens with a teacher loss, the excess losses and the teacher's."""


class GuidedStudent(nn.Module):
    """A causal language model that returns the sum of the losses it is trained on."""

    def __init__(self, model: Any, guidance: GuidanceConfig) -> None:
        super().__init__()
        self.model, self.guidance = model, guidance

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        teacher_loss: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Loss (a sum, to be divided by the count of the whole step) and the sums named in SUMS.

        Args: (B, T) each, as the collator gives them; `labels[:, i]` follows `input_ids[:, i]`.
        """
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
        )
        nll_BT = token_nll(output.logits, labels)
        weights_BT = token_weights(nll_BT, teacher_loss, labels, self.guidance)
        loss = teacher_guided_loss(nll_BT, weights_BT)
        excess_BT = excess_loss(nll_BT, teacher_loss).where(labels >= 0, torch.nan)
        teacher_BT = teacher_loss.where(excess_BT.isfinite(), torch.nan)
        sums = torch.stack(
            [nll_BT.detach().sum(), loss.detach(), excess_BT.nansum(), teacher_BT.nansum()]
        )
        return loss, sums.double()
