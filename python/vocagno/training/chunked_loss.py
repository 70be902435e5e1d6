"""A language head and a loss on its logits, of which a chunk exists at a time, with gradients.

K: tokens, H: hidden size, V: vocabulary, C: tokens of a chunk, P: parts of a loss.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from vocagno.training.guidance import IGNORED
from vocagno.training.head import LanguageHead, chunks, losses_


class Objective(Protocol):
    """A loss of each token that is a weighted sum of parts."""

    @property
    def weights(self) -> Sequence[float]:
        """Of the P parts in what is trained on."""

    @property
    def width(self) -> int:
        """Numbers that it makes of a token at a time, beside its logits."""

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """(C, P) the parts of the losses of the tokens at `place`; `logits_CV`, which are float32,
        become the gradient of their weighted sum."""


class CrossEntropy:
    """The loss of labels, those of -100 aside."""

    weights: tuple[float] = (1.0,)
    width = 0

    def __init__(self, labels_K: Tensor) -> None:
        self.labels_K = labels_K

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """As `Objective`. In place, so that a chunk takes one matrix of this size and no more."""
        labels_C = self.labels_K[place]
        is_asked_C = labels_C != IGNORED
        labels_C1 = labels_C.clamp_min(0)[:, None]
        nll_C, sum_C1 = losses_(logits_CV, labels_C1)
        asked_C1 = is_asked_C[:, None].float()
        logits_CV.mul_(asked_C1 / sum_C1).scatter_add_(1, labels_C1, -asked_C1)
        return torch.where(is_asked_C, nll_C, 0.0)[:, None]


def chunked_loss(
    hidden_KH: Tensor, head: LanguageHead, objective: Objective, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The weighted sum of all parts, with gradients for states, weights and bias.

    Args:
        dtype: of the operands of the products, which are accumulated in float32.
    Returns: float32 sum, and (K, P) the parts without gradient.

    Gradients are made in the forward pass, so nothing is computed twice; a second backward pass
    through the same loss is refused.
    """
    total, parts_KP = _ChunkedLoss.apply(
        hidden_KH, head.weight_VH, head.bias_V, objective, head.scale, head.softcap, dtype
    )
    return total, parts_KP


class _ChunkedLoss(torch.autograd.Function):
    """Logits of a chunk, their losses, and at once what the gradients take of them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_KH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        objective: Objective,
        scale: float,
        softcap: float | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        count = len(hidden_KH)
        states_KH, factor_VH = hidden_KH.to(dtype), weight_VH.to(dtype)
        head = LanguageHead(factor_VH, bias_V, scale, softcap).for_chunks()
        num_parts = len(objective.weights)
        parts_KP = hidden_KH.new_empty(count, num_parts, dtype=torch.float32)
        grad_KH = torch.empty_like(states_KH)
        # Nothing is chosen: gradients of 0, not of whatever stood in memory.
        empty = torch.zeros if not count else torch.empty
        grad_VH = empty(weight_VH.shape, dtype=torch.float32, device=weight_VH.device)
        grad_V = torch.zeros_like(bias_V, dtype=torch.float32) if bias_V is not None else None
        room = head.room_for(count)
        for place in chunks(count, max(len(weight_VH), objective.width)):
            logits_CV = head.logits(states_KH[place], room)
            # d(capped) / d(uncapped) is needed after the logits are gone.
            slope_CV = None if softcap is None else 1 - (logits_CV / softcap).square_()
            parts_KP[place] = objective(logits_CV, place)
            if slope_CV is not None:
                logits_CV *= slope_CV
            if scale != 1.0:
                logits_CV *= scale
            if grad_V is not None:
                grad_V += logits_CV.sum(0)
            grad_CV = logits_CV.to(dtype)
            torch.mm(grad_CV, factor_VH, out=grad_KH[place])
            _add_product_(grad_VH, grad_CV.T, states_KH[place], is_first=place.start == 0)
        ctx.save_for_backward(grad_KH, grad_VH, grad_V)
        ctx.dtypes = hidden_KH.dtype, weight_VH.dtype, None if bias_V is None else bias_V.dtype
        ctx.is_used = False
        ctx.mark_non_differentiable(parts_KP)
        sums = zip(objective.weights, parts_KP.sum(0), strict=True)
        return torch.stack([weight * part for weight, part in sums]).sum(), parts_KP

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.is_used:
            raise RuntimeError("a second backward pass through one head loss is not supported")
        ctx.is_used = True  # below, the gradients are scaled where they stand
        scaled = (
            None if kept is None else kept.mul_(gradients[0]).to(dtype)
            for kept, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )  # fmt: skip
        return *scaled, None, None, None, None


def _add_product_(sum_VH: Tensor, a_VC: Tensor, b_CH: Tensor, *, is_first: bool) -> None:
    """Adds a product to a float32 sum; the first one is put in its place."""
    if a_VC.dtype == torch.float32:
        sum_VH.addmm_(a_VC, b_CH, beta=0.0 if is_first else 1.0)
        return
    if a_VC.is_cuda:
        product_VH = torch.mm(a_VC, b_CH, out_dtype=torch.float32)
    else:
        product_VH = torch.mm(a_VC, b_CH)
    if is_first:
        sum_VH.copy_(product_VH)
    else:
        sum_VH += product_VH
