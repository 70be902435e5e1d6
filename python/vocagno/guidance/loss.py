"""From weights to a loss, in one pass over the logits or two; `chunked_loss.py` computes losses and
gradients, a chunk at a time.

`one_pass_cross_entropy` computes each logit once, where the weight of a token needs no loss of the
student outside its unit: under the default rule, whose weights are made before, and under a
threshold that is known beforehand. For rules that rank, such as the paper's, `chosen_cross_entropy`
first computes the losses of all tokens.

B: rows, T: tokens of a row, N = B * T, K: tokens to train on, H: hidden size, V: vocabulary,
C: tokens of a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vocagno.guidance.chunked_loss import CrossEntropy, Weights, chunked_loss, product_dtype
from vocagno.models.head import ChunkEnds, Head
from vocagno.models.losses import IGNORED, chunked_nll, teacher_guided_loss


class Choice(NamedTuple):
    """Weights and thresholds; nothing here carries a gradient."""

    weights_BT: Tensor
    """Float32, 0.0 or 1.0, or a share between them (baked weights, rules of a user's own); only
    `alm`, which has a `cross_entropy` of its own, gives negative ones, from -1."""
    thresholds_S: Tensor | None
    """For each scope, the smallest excess loss that was kept, in nats. -inf: the rule has no
    threshold on the excess loss. NaN: no unit competed, or the `criterion` ranks by more than the
    excess loss. None: no threshold exists (`method: cpt`, `chunk`)."""


@dataclass(frozen=True, slots=True)
class TokenMetrics:
    """Metrics of each token; nothing here carries a gradient."""

    nll_BT: Tensor
    """Losses in nats, float32, 0 where the label is -100."""
    weights_BT: Tensor
    """0.0 for a token that is dropped, else 1.0, or a share where `Choice` has one."""
    thresholds_S: Tensor | None = None
    """The thresholds of the choice (`Choice.thresholds_S`); None if the method ranks no tokens."""


class LossSums(NamedTuple):
    """Sums over tokens: tensors in a forward pass, floats for the steps of a line of the log."""

    nll: Any = 0.0
    """The student's losses on all predicted tokens."""
    kept_nll: Any = 0.0
    """The student's losses on the tokens that are trained on, times their weights."""
    excess: Any = 0.0
    """Excess losses of the tokens with a teacher loss."""
    teacher: Any = 0.0
    """The teacher's losses on these tokens."""
    with_teacher_loss: Any = 0.0
    """The number of these tokens."""
    kept: Any = 0.0
    """The sum of the weights: where they are 0.0 or 1.0, the number of tokens trained on."""
    distance: Any = 0.0
    """Distances of distillation; for `distill` H(P, Q)."""
    pairs: Any = 0.0
    """The number of tokens that have a distance."""
    threshold: Any = 0.0
    """Thresholds of the scopes in which tokens competed."""
    scopes: Any = 0.0
    """The number of these scopes."""

    @classmethod
    def of(cls, sums: Tensor) -> "LossSums":
        """Reads the sums as floats from the tensor (10,) on the host."""
        return cls(*sums.tolist())

    def tensor(self) -> Tensor:
        """(10,) float64 on the device of `nll`, to be added up over processes."""
        assert isinstance(self.nll, Tensor)
        nothing = torch.zeros_like(self.nll)
        parts = (value if isinstance(value, Tensor) else nothing + value for value in self)
        return torch.stack([part.to(nothing) for part in parts]).double()


def excess_loss(student_nll_BT: Tensor, teacher_loss_BT: Tensor) -> Tensor:
    """(B, T): how far the student is behind the teacher, in nats; NaN without a teacher loss.

    This is L_S - L_T of Eq. 4 (arXiv 2503.19123), with `student_nll_BT` as L_S (Eq. 1) and
    `teacher_loss_BT` as L_T (Eq. 2). `student_nll_BT` is detached: no gradient flows through a
    rank. An infinite teacher loss counts as none.
    """
    teacher_BT = torch.where(teacher_loss_BT.isfinite(), teacher_loss_BT, torch.nan)
    return student_nll_BT.detach() - teacher_BT


def chosen_cross_entropy(
    hidden_BTH: Tensor,
    head: Head,
    labels_BT: Tensor,
    choose: Callable[[Tensor], Choice],
    *,
    num_kept: int | None = None,
) -> tuple[Tensor, TokenMetrics]:
    """The weighted sum of the losses of the tokens that `choose` keeps, given the losses of all.

    This is L(S) of Eq. 3 (arXiv 2503.19123) without its division by N: -sum W(x_i)
    log P(x_i | x_<i; S), with `weights_BT` as W and `nll_BT` as -log P (Eq. 1). `Stepper.step`
    divides by the predicted tokens of the whole step (`guidance.normalize`).

    Args:
        hidden_BTH: last hidden states; state i predicts `labels_BT[:, i]`.
        choose: turns (B, T) losses in nats into weights and thresholds.
        num_kept: at most how many tokens are kept, if the host knows it; then it need not wait for
            the device.
    Returns: float32 sum, with gradients if they are enabled, and the metrics of each token.
    """
    hidden_NH, labels_N = hidden_BTH.flatten(0, -2), labels_BT.flatten()
    # One product for the losses of all tokens, then three for the kept ones: together less than
    # the three that gradients for all would take, if fewer than two thirds are kept.
    nll_BT = all_losses(hidden_NH, head, labels_N).view(labels_BT.shape)
    weights_BT, thresholds_S = choose(nll_BT)
    is_out_of_range = ~((weights_BT >= 0) & (weights_BT <= 1)).all()  # NaN, too
    if weights_BT.device.type == "cpu" and is_out_of_range:
        raise ValueError(
            f"guidance.method: its `choose` gives weights from {float(weights_BT.min()):g} to "
            f"{float(weights_BT.max()):g}; expected shares from 0 to 1"
        )
    metrics = TokenMetrics(nll_BT, weights_BT, thresholds_S)
    if not torch.is_grad_enabled():
        return teacher_guided_loss(nll_BT, weights_BT), metrics
    kept_N = weights_BT.flatten() > 0
    rows_K = _kept_positions(kept_N, num_kept)
    # More tokens than the kept ones, if `num_kept` is only an upper bound.
    labels_K = torch.where(kept_N, labels_N, IGNORED)[rows_K]
    total, _ = head_loss(hidden_NH[rows_K], head, labels_K, weights_BT.flatten()[rows_K])
    total = total * torch.where(is_out_of_range, torch.nan, 1.0)  # elsewhere the host does not wait
    return _nan_if_skipped(total, kept_N, num_kept), metrics


def full_cross_entropy(
    hidden_BTH: Tensor, head: Head, labels_BT: Tensor, num_kept: int | None = None
) -> tuple[Tensor, TokenMetrics]:
    """The sum of the losses of all labels, and the metrics of each token.

    Args: num_kept: the number of labels, if the host knows it.
    """
    hidden_NH, labels_N = hidden_BTH.flatten(0, -2), labels_BT.flatten()
    is_asked_N = labels_N != IGNORED
    weights_BT = is_asked_N.view(labels_BT.shape).float()
    if not torch.is_grad_enabled():
        nll_BT = all_losses(hidden_NH, head, labels_N).view(labels_BT.shape)
        return teacher_guided_loss(nll_BT, weights_BT), TokenMetrics(nll_BT, weights_BT)
    rows_K = _kept_positions(is_asked_N, num_kept)
    total, nll_K = head_loss(hidden_NH[rows_K], head, labels_N[rows_K])
    total = _nan_if_skipped(total, is_asked_N, num_kept)
    nll_N = torch.zeros(len(labels_N), device=nll_K.device).index_copy(0, rows_K, nll_K)
    return total, TokenMetrics(nll_N.view(labels_BT.shape), weights_BT)


def head_loss(
    hidden_KH: Tensor, head: Head, labels_K: Tensor, weights_K: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of `labels_K`, with gradients for the states and the head.

    Args:
        hidden_KH: the states that predict the labels; their type, or autocast's, is that of the
            products.
        labels_K: -100 takes no part.
        weights_K: of each loss; default: 1.
    Returns: float32 sum, and (K,) the terms of it without gradient. Products and the sum of the
        head's gradient over chunks are float32.
    """
    # The plain loss of weighted tokens is known: a first pass has ranked them.
    objective = CrossEntropy(labels_K, weights_K, reports_loss=False)
    total, parts_K1 = chunked_loss(hidden_KH, head, objective)
    return total, parts_K1.squeeze(1)


@torch.no_grad()
def all_losses(hidden_NH: Tensor, head: Head, labels_N: Tensor) -> Tensor:
    """(N,) float32: the loss of each label in nats, 0 where it is -100, without gradient."""
    dtype, is_asked_N = product_dtype(hidden_NH, head), labels_N != IGNORED
    with torch.autocast(hidden_NH.device.type, enabled=False):
        head = head.as_type(dtype)
        nll_N = chunked_nll(hidden_NH.to(dtype), head, torch.where(is_asked_N, labels_N, 0))
    return torch.where(is_asked_N, nll_N, 0.0)


def _kept_positions(kept_N: Tensor, num_kept: int | None) -> Tensor:
    """(K,) the positions of the kept tokens in order.

    On a GPU `nonzero` makes the host wait, because K is known only there. If `num_kept` says how
    many there are at most, a stable sort gives them in a shape that the host knows.
    """
    if num_kept is None or kept_N.device.type == "cpu":
        return kept_N.nonzero().squeeze(1)
    return torch.argsort(~kept_N, stable=True)[:num_kept]


def _nan_if_skipped(total: Tensor, kept_N: Tensor, num_kept: int | None) -> Tensor:
    """Returns the loss; NaN if `_kept_positions` had to skip tokens that are kept, because on a GPU
    the host does not wait to know. Raises: ValueError instead of NaN on a CPU."""
    if num_kept is None:
        return total
    has_skipped = kept_N.sum() > num_kept
    if has_skipped.device.type == "cpu" and has_skipped:
        raise ValueError(
            f"num_kept: {int(kept_N.sum()):,} tokens are kept, and num_kept is {num_kept:,}: it "
            "was counted for other tokens or by other guidance; omit it, or use count_kept"
        )
    return total * torch.where(has_skipped, torch.nan, 1.0)


def one_pass_cross_entropy(
    hidden_BTH: Tensor,
    head: Head,
    labels_BT: Tensor,
    token_weights: Weights,
    ends: ChunkEnds = None,
    *,
    threshold: float,
) -> tuple[Tensor, TokenMetrics]:
    """The weighted sum of Eq. 3 (arXiv 2503.19123) with each logit computed only once, for rules
    in which the weight of a token needs no losses of the student but those of its unit, or none.

    Args:
        hidden_BTH: last hidden states; state i predicts `labels_BT[:, i]`.
        token_weights, ends: the arguments of `CrossEntropy`, for all tokens.
        threshold: is reported with the metrics, in nats.
    Returns: the sum, float32, with gradients, and the metrics of each token.
    """
    shape, objective = labels_BT.shape, CrossEntropy(labels_BT.flatten(), token_weights, ends)
    total, parts_N2 = chunked_loss(hidden_BTH.flatten(0, -2), head, objective)
    thresholds_S = total.new_full((1,), threshold, requires_grad=False)
    nll_BT, weights_BT = parts_N2[:, 1].view(shape), objective.weights_K.view(shape)
    return total, TokenMetrics(nll_BT, weights_BT, thresholds_S)
