"""The student with its loss inside its forward pass, as wrappers that shard weights need it.

B: rows, T: tokens of a row.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vocagno.config import GuidanceConfig, HeadLoss
from vocagno.training.guidance import IGNORED, excess_loss
from vocagno.training.head import head_of, hidden_states, language_head
from vocagno.training.head_loss import check_head_loss
from vocagno.training.selective import selective_cross_entropy

SUMS = ("nll", "kept_nll", "excess", "teacher", "kept")
"""What a forward pass sums up, in this order: the student's losses over all predicted tokens and
over the kept ones; over the tokens with a teacher loss, the excess losses and the teacher's; and
how many tokens were kept."""


class StudentOutput(NamedTuple):
    """What a forward pass gives; only the loss carries a gradient."""

    loss: Tensor
    """A sum, to be divided by the count of the whole step."""
    sums: Tensor
    """(len(SUMS),) float64."""
    nll_BT: Tensor
    """Losses in nats; NaN in naive training by a head loss that gives the sum alone."""
    weights_BT: Tensor
    """1.0 for the tokens that train, else 0.0."""


class GuidedStudent(nn.Module):
    """A causal language model that returns the sum of the losses it is trained on."""

    def __init__(
        self, model: Any, guidance: GuidanceConfig, head_loss_by: HeadLoss = "auto"
    ) -> None:
        """Raises: UnsupportedModelError if the logits of the model are not understood; ConfigError
        if `head_loss_by` cannot compute them."""
        super().__init__()
        check_head_loss(head_loss_by, language_head(model))
        self.model, self.guidance, self.head_loss_by = model, guidance, head_loss_by
        # For Accelerate's FSDP: layers are sharded one by one; embedding and head, which forward
        # reads itself, with the whole.
        self._no_split_modules = model._no_split_modules

    def tie_weights(self) -> None:
        """Ties what the model's configuration ties; FSDP asks for it after loading."""
        self.model.tie_weights()

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        teacher_loss: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        num_kept: int | None = None,
    ) -> StudentOutput:
        """Loss and metrics.

        Args: (B, T) each, as the collator gives them; `labels[:, i]` follows `input_ids[:, i]`.
            Without `teacher_loss` all tokens are kept, and none is ranked.
            `num_kept`: as `selective_cross_entropy`.
        """
        guidance = self.guidance
        if teacher_loss is None:
            guidance = replace(guidance, method="cpt")
            teacher_loss = torch.full(labels.shape, torch.nan, device=labels.device)
        states_BTH = hidden_states(
            self.model, input_ids, attention_mask=attention_mask, position_ids=position_ids
        )
        # The head's weights are looked up in each pass: wrappers put others in their place.
        loss, metrics = selective_cross_entropy(
            states_BTH, head_of(self.model), labels, teacher_loss, guidance,
            num_kept=num_kept, head_loss_by=self.head_loss_by,
        )  # fmt: skip
        total = loss.detach()
        if metrics.nll_BT is None:
            nll_BT, all_nll = torch.full_like(teacher_loss, torch.nan), total
        else:
            nll_BT, all_nll = metrics.nll_BT, metrics.nll_BT.sum()
        excess_BT = excess_loss(nll_BT, teacher_loss).where(labels != IGNORED, torch.nan)
        teacher_BT = teacher_loss.where(excess_BT.isfinite(), torch.nan)
        sums = [all_nll, total, excess_BT.nansum(), teacher_BT.nansum(), metrics.weights_BT.sum()]
        return StudentOutput(loss, torch.stack(sums).double(), nll_BT, metrics.weights_BT)
