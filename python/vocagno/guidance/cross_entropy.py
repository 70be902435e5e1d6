"""The language head with its loss, differentiable, a chunk of logits at a time.

B: rows, T: tokens of a row, N = B * T, K: tokens to train on, H: hidden size, V: vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vocagno.config.train import HeadLoss
from vocagno.errors import ConfigError
from vocagno.guidance.chunked_loss import CrossEntropy, chunked_loss
from vocagno.guidance.criteria import StudentSide
from vocagno.guidance.weights import Choice
from vocagno.models.causal import IGNORED, teacher_guided_loss
from vocagno.models.head import Head, LanguageHead
from vocagno.models.token_losses import chunked_nll


@dataclass(frozen=True, slots=True)
class TokenMetrics:
    """Metrics of each token; nothing here carries a gradient."""

    nll_BT: Tensor | None
    """Losses in nats, float32, 0 where the label is -100. None under `method: cpt` with a head loss
    other than the loop, which gives only the sum."""
    weights_BT: Tensor
    """From 0.0 (the token is not trained on) to 1.0."""
    thresholds_S: Tensor | None = None
    """As `Choice.thresholds_S`; None for methods that rank no tokens."""


def chosen_cross_entropy(
    student: StudentSide,
    choose: Callable[[Tensor], Choice],
    *,
    num_kept: int | None = None,
    has_soft_weights: bool = False,
) -> tuple[Tensor, TokenMetrics]:
    """The weighted sum of the losses of the tokens that `choose` keeps, given the losses of all.

    Args:
        choose: (B, T) losses in nats to weights and thresholds.
        num_kept: as `selective_cross_entropy`.
        has_soft_weights: whether weights between 0 and 1 occur.
    Returns: float32 sum, with gradients if they are enabled, and the metrics of each token.
    """
    hidden_NH, head, labels_N = student.flat_hidden, student.head, student.labels_BT.flatten()
    nll_BT = all_losses(hidden_NH, head, labels_N).view(student.labels_BT.shape)
    weights_BT, thresholds_S = choose(nll_BT)
    metrics = TokenMetrics(nll_BT, weights_BT, thresholds_S)
    if not torch.is_grad_enabled():
        return teacher_guided_loss(nll_BT, weights_BT), metrics
    weights_N = weights_BT.flatten()
    kept_N = weights_N > 0
    rows_K = _places(kept_N, num_kept)
    labels_K = torch.where(kept_N, labels_N, IGNORED)[rows_K]
    weights_K = weights_N[rows_K] if has_soft_weights else None
    total, _ = head_loss(hidden_NH[rows_K], head, labels_K, student.head_loss_by, weights_K)
    return _with_all(total, kept_N, num_kept), metrics


def full_cross_entropy(
    student: StudentSide, num_kept: int | None = None
) -> tuple[Tensor, TokenMetrics]:
    """The sum of the losses of all labels, and the metrics of each token. Args: as
    `selective_cross_entropy`."""
    hidden_NH, head, labels_BT = student.flat_hidden, student.head, student.labels_BT
    labels_N = labels_BT.flatten()
    is_asked_N = labels_N != IGNORED
    weights_BT = is_asked_N.view(labels_BT.shape).float()
    if not torch.is_grad_enabled():
        nll_BT = all_losses(hidden_NH, head, labels_N).view(labels_BT.shape)
        return teacher_guided_loss(nll_BT, weights_BT), TokenMetrics(nll_BT, weights_BT)
    rows_K = _places(is_asked_N, num_kept)
    total, nll_K = head_loss(hidden_NH[rows_K], head, labels_N[rows_K], student.head_loss_by)
    total = _with_all(total, is_asked_N, num_kept)
    if nll_K is None:
        return total, TokenMetrics(None, weights_BT)
    nll_N = torch.zeros(len(labels_N), device=nll_K.device).index_copy(0, rows_K, nll_K)
    return total, TokenMetrics(nll_N.view(labels_BT.shape), weights_BT)


def head_loss(
    hidden_KH: Tensor,
    head: Head,
    labels_K: Tensor,
    how: HeadLoss = "auto",
    weights_K: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The sum of the losses of `labels_K`, with gradients for states, weights and bias.

    Args:
        hidden_KH: the states that predict the labels; their type, or autocast's, is that of the
            products.
        labels_K: -100 takes no part.
        how: loop: ours, on any device; torch: `torch.nn.functional.linear_cross_entropy` in chunks
            (torch >= 2.13); liger: liger-kernel >= 0.8.5 (CUDA); auto: what was fastest where it
            was measured, the loop.
        weights_K: factors of the losses, float32; loop only. Default: 1.
    Returns: float32 sum, and (K,) the single (weighted) losses without gradient where `how` gives
        them.
    Raises: ConfigError if `how` is not installed or cannot compute this head.

    All three make gradients in the forward pass, so nothing is computed twice; a second backward
    pass through the same loss is refused. Products and the sum of the weights' gradient over chunks
    are float32 in the loop and in liger. On CUDA torch's op keeps that sum in the type of the
    weights (its policy `compact`), so in bfloat16 it is rounded after each chunk.
    """
    dtype = product_dtype(hidden_KH)
    with torch.autocast(hidden_KH.device.type, enabled=False):
        if how in ("auto", "loop"):
            objective = CrossEntropy(labels_K, weights_K)
            total, parts_K1 = chunked_loss(hidden_KH, head, objective, dtype)
            return total, parts_K1.squeeze(1)
        check_head_loss(how, head)
        if weights_K is not None:
            raise ConfigError(f"train.head_loss: {how} has no weights of tokens; use loop")
        assert isinstance(head, LanguageHead)
        if not len(labels_K):  # for which liger would divide by the number of its rows
            return (hidden_KH.sum() + head.weight_VH.sum()).float() * 0, None
        states_KH = (hidden_KH * head.scale).to(dtype)
        bias_V = None if head.bias_V is None else (head.bias_V * head.scale).to(dtype)
        function = _torch_loss if how == "torch" else _liger_loss
        return function(states_KH, head.weight_VH.to(dtype), bias_V, labels_K, head.softcap), None


@torch.no_grad()
def all_losses(hidden_NH: Tensor, head: Head, labels_N: Tensor) -> Tensor:
    """(N,) float32: the loss of each label in nats, 0 where it is -100, without gradient."""
    dtype, is_asked_N = product_dtype(hidden_NH), labels_N != IGNORED
    with torch.autocast(hidden_NH.device.type, enabled=False):
        head = head.as_type(dtype)
        nll_N = chunked_nll(hidden_NH.to(dtype), head, torch.where(is_asked_N, labels_N, 0))
    return torch.where(is_asked_N, nll_N, 0.0)


def _places(kept_N: Tensor, num_kept: int | None) -> Tensor:
    """(K,) the kept tokens in order; of a shape that the host knows, if it knows the number (on a
    CPU it need not)."""
    if num_kept is None or kept_N.device.type == "cpu":
        return kept_N.nonzero().squeeze(1)
    return torch.argsort(~kept_N, stable=True)[:num_kept]


def _with_all(total: Tensor, kept_N: Tensor, num_kept: int | None) -> Tensor:
    """The loss; NaN if `_places` had to skip tokens that are kept, which the host does not wait to
    know.

    Raises: ValueError in place of NaN on a CPU.
    """
    if num_kept is None:
        return total
    is_more = kept_N.sum() > num_kept
    if is_more.device.type == "cpu" and is_more:
        raise ValueError(
            f"num_kept: {int(kept_N.sum()):,} tokens are kept, and num_kept is {num_kept:,}: it "
            "was counted for other tokens or by other guidance; omit it, or use count_kept"
        )
    return total * torch.where(is_more, torch.nan, 1.0)


def product_dtype(hidden: Tensor) -> torch.dtype:
    """The type of the operands: autocast's, if it is on, else that of the states."""
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return hidden.dtype


def check_head_loss(how: HeadLoss, head: Head) -> None:
    """Raises: ConfigError if `how` is not installed here or cannot compute this head."""
    if how in ("torch", "liger") and not isinstance(head, LanguageHead):
        raise ConfigError(
            f"train.head_loss: {how} computes the product of hidden states and output embeddings, "
            f"and the head of {type(head.model).__name__} is another; use loop"
        )
    if how == "torch":
        assert isinstance(head, LanguageHead)
        if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
            raise ConfigError(
                f"train.head_loss: torch {torch.__version__} has no chunked linear_cross_entropy "
                "(2.13 has); use loop"
            )
        if head.softcap is not None:
            raise ConfigError("train.head_loss: torch's op knows no soft cap of logits; use loop")
    if how == "liger":
        if not torch.cuda.is_available():
            raise ConfigError("train.head_loss: liger runs only on CUDA; use loop")
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
        states_KH,
        weight_VH,
        labels_K,
        linear_bias=bias_V,
        reduction="sum",
        ignore_index=IGNORED,
        options=torch.nn.LinearCrossEntropyOptions(),
    )
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
        states_KH,
        weight_VH,
        labels_K,
        bias=bias_V,
        ignore_index=IGNORED,
        reduction="sum",
        softcap=softcap,
        accum_dtype=torch.float32,
    )
    return loss.float()
