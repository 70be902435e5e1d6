"""The student with its loss inside its forward pass, as wrappers that shard weights need it.

B: rows, T: tokens of a row.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vocagno.config.guidance import GuidanceConfig, as_naive
from vocagno.config.run import HeadLoss
from vocagno.guidance.cross_entropy import check_head_loss
from vocagno.guidance.distillation import DistillationMetrics, distillation_loss
from vocagno.guidance.selective import Criteria, TokenMetrics, selective_cross_entropy
from vocagno.guidance.weights import Units, excess_loss
from vocagno.models.causal import IGNORED
from vocagno.models.head import (
    Head,
    base_of,
    head_of,
    hidden_states,
    language_head,
    own_head_of,
)
from vocagno.models.own_head import OwnHead
from vocagno.teacher.states import TeacherStates

SUMS = (
    "nll", "kept_nll", "excess", "teacher", "ranked", "kept", "distance", "pairs", "threshold",
    "scopes",
)  # fmt: skip
"""What a forward pass sums up, in this order: the student's losses over all predicted tokens, and
times their weights; over the tokens with a teacher loss, the excess losses, the teacher's, and how
many these are; the weights (with weights of 0 and 1: how many tokens were kept); of distillation,
the distances and of how many tokens they are; and the thresholds of the scopes in which tokens
competed, and how many these are."""


class StudentOutput(NamedTuple):
    """What a forward pass gives; only the loss carries a gradient."""

    loss: Tensor
    """A sum, to be divided by the count of the whole step."""
    sums: Tensor
    """(len(SUMS),) float64."""
    nll_BT: Tensor
    """Losses in nats; NaN in naive training by a head loss that gives the sum alone."""
    weights_BT: Tensor
    """From 0.0 (the token is not trained on) to 1.0."""


class GuidedStudent(nn.Module):
    """A causal language model that returns the sum of the losses it is trained on."""

    def __init__(
        self, model: Any, guidance: GuidanceConfig, head_loss_by: HeadLoss = "auto"
    ) -> None:
        """Raises: UnsupportedModelError if the logits of the model are not understood; ConfigError
        if `head_loss_by` cannot compute them."""
        super().__init__()
        head = language_head(model)
        check_head_loss(head_loss_by, head)
        # Only sizes: the weights are looked up in each pass, because wrappers replace them.
        sizes = head.vocabulary_size, head.hidden_size
        self._own_head: tuple[int, int] | None = sizes if isinstance(head, OwnHead) else None
        self.model = model
        self.guidance = guidance
        self.head_loss_by = head_loss_by
        # For Accelerate's FSDP: layers are sharded one by one; the head, which forward reads
        # itself, with the whole, and so is what shares parameters with it (BERT's embeddings).
        names = model._no_split_modules
        self._no_split_modules = names and sorted(set(names) - _classes_tied_to_head(model))

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
        entropy: Tensor | None = None,
        chunks: Tensor | None = None,
        chunk_scores: Tensor | None = None,
        teacher: TeacherStates | None = None,
        teacher_sums: Tensor | None = None,
        groups: Tensor | None = None,
        lines: Tensor | None = None,
        token_bytes: Tensor | None = None,
        chunk_ends: NDArray[np.int64] | None = None,
    ) -> StudentOutput:
        """Loss and metrics.

        Args: (B, T) each, as the collator gives them; `labels[:, i]` follows `input_ids[:, i]`.
            Without `teacher_loss` all tokens are kept, and none is ranked.
            `num_kept`: as `selective_cross_entropy`; `entropy`, `chunks`, `chunk_scores`,
            `teacher_sums`, (B, 2), and `chunk_ends`: as its `Criteria`; `groups`, `lines` and
            `token_bytes`: as `Units`. `teacher`: the distributions that `kld` and `uld` need to
            train.
        """
        guidance = self.guidance
        if teacher_loss is None:
            guidance = as_naive(guidance)
            teacher_loss = torch.full(labels.shape, torch.nan, device=labels.device)
        states_BTH = hidden_states(
            self.model, input_ids, attention_mask=attention_mask, position_ids=position_ids
        )
        head = self._head()
        if guidance.distils:
            if teacher is None:
                raise ValueError(f"guidance.method: {guidance.method} needs the teacher's states")
            loss, of_tokens = distillation_loss(states_BTH, head, labels, teacher, guidance)
            return _distilled(loss, of_tokens, labels)
        loss, metrics = selective_cross_entropy(
            states_BTH, head, labels, teacher_loss, guidance,
            criteria=Criteria(
                entropy, chunks, chunk_scores, teacher_sums, Units(groups, lines, token_bytes),
                chunk_ends,
            ),
            num_kept=num_kept, head_loss_by=self.head_loss_by,
        )  # fmt: skip
        return _selected(loss, metrics, labels, teacher_loss)

    def _head(self) -> Head:
        if self._own_head is None:
            return head_of(self.model)
        return own_head_of(self.model, *self._own_head)


def _classes_tied_to_head(model: Any) -> set[str]:
    """The names of the classes of all modules that share a parameter with the head."""
    base = base_of(model)
    heads = (child for child in model.children() if child is not base)
    of_head = {parameter for head in heads for parameter in head.parameters()}
    return {
        type(module).__name__
        for module in base.modules()
        if any(parameter in of_head for parameter in module.parameters())
    }


def _selected(
    loss: Tensor, metrics: TokenMetrics, labels_BT: Tensor, teacher_loss_BT: Tensor
) -> StudentOutput:
    total = loss.detach()
    if metrics.nll_BT is None:
        nll_BT, all_nll = torch.full_like(teacher_loss_BT, torch.nan), total
    else:
        nll_BT, all_nll = metrics.nll_BT, metrics.nll_BT.sum()
    excess_BT = excess_loss(nll_BT, teacher_loss_BT).where(labels_BT != IGNORED, torch.nan)
    teacher_BT = teacher_loss_BT.where(excess_BT.isfinite(), torch.nan)
    sums = {
        "nll": all_nll, "kept_nll": total, "excess": excess_BT.nansum(),
        "teacher": teacher_BT.nansum(), "ranked": excess_BT.isfinite().sum(),
        "kept": metrics.weights_BT.sum(),
    }  # fmt: skip
    if metrics.thresholds_S is not None:
        is_one_S = metrics.thresholds_S.isfinite()
        sums["threshold"] = torch.where(is_one_S, metrics.thresholds_S, 0.0).sum()
        sums["scopes"] = is_one_S.sum()
    return StudentOutput(loss, _stacked(sums), nll_BT, metrics.weights_BT)


def _distilled(loss: Tensor, metrics: DistillationMetrics, labels_BT: Tensor) -> StudentOutput:
    nll_BT, distance_BT, has_partner_BT = metrics
    weights_BT = (labels_BT != IGNORED).float()
    nll = nll_BT.sum()
    sums = {
        "nll": nll, "kept_nll": nll, "kept": weights_BT.sum(), "distance": distance_BT.sum(),
        "pairs": has_partner_BT.sum(),
    }  # fmt: skip
    return StudentOutput(loss, _stacked(sums), nll_BT, weights_BT)


def _stacked(sums: dict[str, Tensor]) -> Tensor:
    """(len(SUMS),) float64, 0 for what is not there."""
    nothing = torch.zeros_like(sums["nll"])
    return torch.stack([sums.get(name, nothing).to(nothing) for name in SUMS]).double()
