"""The language head with its loss, differentiable, a chunk of logits at a time.

K: tokens to train on, H: hidden size, V: vocabulary, C: tokens of a chunk.
"""

from typing import Any

import torch
from torch import Tensor

from vocagno.config import ConfigError, HeadLoss
from vocagno.training.guidance import IGNORED
from vocagno.training.head import LanguageHead, chunks, losses_


def head_loss(
    hidden_KH: Tensor, head: LanguageHead, labels_K: Tensor, how: HeadLoss = "auto"
) -> tuple[Tensor, Tensor | None]:
    """The sum of the losses of `labels_K`, with gradients for states, weights and bias.

    Args:
        hidden_KH: the states that predict the labels; their type, or autocast's, is that of the
            products, which are accumulated in float32.
        labels_K: -100 takes no part.
        how: loop: ours, on any device; torch: `torch.nn.functional.linear_cross_entropy` in chunks
            (torch >= 2.13); liger: liger-kernel >= 0.8.5 (CUDA); auto: what was fastest where it
            was measured, the loop.
    Returns: float32 sum, and (K,) the single losses without gradient where `how` gives them.
    Raises: ConfigError if `how` is not installed or cannot compute this head.

    Gradients are made in the forward pass, as all three do, so nothing is computed twice; a second
    backward pass through the same loss is refused.
    """
    dtype = product_dtype(hidden_KH)
    with torch.autocast(hidden_KH.device.type, enabled=False):
        if how in ("auto", "loop"):
            total, nll_K = _ChunkedLoss.apply(
                hidden_KH, head.weight_VH, head.bias_V, labels_K, head.scale, head.softcap, dtype
            )
            return total, nll_K
        check_head_loss(how, head)
        if not len(labels_K):  # for which liger would divide by the number of its rows
            return (hidden_KH.sum() + head.weight_VH.sum()).float() * 0, None
        states_KH = (hidden_KH * head.scale).to(dtype)
        bias_V = None if head.bias_V is None else (head.bias_V * head.scale).to(dtype)
        function = _torch_loss if how == "torch" else _liger_loss
        return function(states_KH, head.weight_VH.to(dtype), bias_V, labels_K, head.softcap), None


def product_dtype(hidden: Tensor) -> torch.dtype:
    """The type of the operands: autocast's, if it is on, else that of the states."""
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return hidden.dtype


def check_head_loss(how: HeadLoss, head: LanguageHead) -> None:
    """Raises: ConfigError if `how` is not installed here or cannot compute this head."""
    if how == "torch":
        if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
            raise ConfigError(
                f"train.head_loss: torch {torch.__version__} has no chunked linear_cross_entropy "
                "(2.13 has); use loop"
            )
        if head.softcap is not None:
            raise ConfigError("train.head_loss: torch's op knows no soft cap of logits; use loop")
    if how == "liger":
        if not torch.cuda.is_available():
            raise ConfigError("train.head_loss: liger runs on CUDA alone; use loop")
        try:
            import liger_kernel.transformers.functional  # noqa: F401 - is it there?
        except ImportError as error:
            raise ConfigError(
                "train.head_loss: liger needs the package liger-kernel >= 0.8.5; install it, or "
                "use loop"
            ) from error


def _torch_loss(
    states_KH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, labels_K: Tensor, _: float | None
) -> Tensor:
    loss: Tensor = torch.nn.functional.linear_cross_entropy(
        states_KH, weight_VH, labels_K, linear_bias=bias_V, reduction="sum",
        ignore_index=IGNORED, options=torch.nn.LinearCrossEntropyOptions(),
    )  # fmt: skip
    return loss.float()


def _liger_loss(
    states_KH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    labels_K: Tensor,
    softcap: float | None,
) -> Tensor:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    loss: Tensor = liger_fused_linear_cross_entropy(
        states_KH, weight_VH, labels_K, bias=bias_V, ignore_index=IGNORED, reduction="sum",
        softcap=softcap, accum_dtype=torch.float32,
    )  # fmt: skip
    return loss.float()


class _ChunkedLoss(torch.autograd.Function):
    """The loop: logits of a chunk, their losses, and at once what the gradients take of them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_KH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        labels_K: Tensor,
        scale: float,
        softcap: float | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        states_KH, factor_VH = hidden_KH.to(dtype), weight_VH.to(dtype)
        head = LanguageHead(factor_VH, bias_V, scale, softcap).for_chunks()
        nll_K = hidden_KH.new_empty(len(labels_K), dtype=torch.float32)
        grad_KH = torch.empty_like(states_KH)
        # Nothing is chosen: gradients of 0, not of whatever stood in memory.
        empty = torch.zeros if not len(labels_K) else torch.empty
        grad_VH = empty(weight_VH.shape, dtype=torch.float32, device=weight_VH.device)
        grad_V = torch.zeros_like(bias_V, dtype=torch.float32) if bias_V is not None else None
        room = head.room_for(len(labels_K))
        for place in chunks(len(labels_K), len(weight_VH)):
            logits_CV = head.logits(states_KH[place], room)
            nll_K[place] = _losses_and_gradient_(logits_CV, labels_K[place], scale, softcap)
            if grad_V is not None:
                grad_V += logits_CV.sum(0)
            grad_CV = logits_CV.to(dtype)
            torch.mm(grad_CV, factor_VH, out=grad_KH[place])
            _add_product_(grad_VH, grad_CV.T, states_KH[place], is_first=place.start == 0)
        ctx.save_for_backward(grad_KH, grad_VH, grad_V)
        ctx.dtypes = hidden_KH.dtype, weight_VH.dtype, None if bias_V is None else bias_V.dtype
        ctx.is_used = False
        ctx.mark_non_differentiable(nll_K)
        return nll_K.sum(), nll_K

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


def _losses_and_gradient_(
    logits_CV: Tensor, labels_C: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """(C,) losses; the logits become the gradient of their sum by the product of states and
    weights, so that a chunk takes one matrix of this size and no more."""
    is_asked_C = labels_C != IGNORED
    labels_C1 = labels_C.clamp_min(0)[:, None]
    # d(capped) / d(uncapped) is needed after the logits are gone.
    slope_CV = None if softcap is None else 1 - (logits_CV / softcap).square_()
    nll_C, sum_C1 = losses_(logits_CV, labels_C1)
    asked_C1 = is_asked_C[:, None].float()
    logits_CV.mul_(asked_C1 / sum_C1).scatter_add_(1, labels_C1, -asked_C1)
    if slope_CV is not None:
        logits_CV *= slope_CV
    if scale != 1.0:
        logits_CV *= scale
    return torch.where(is_asked_C, nll_C, 0.0)


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
