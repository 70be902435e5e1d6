"""A language head and a loss on its logits, of which a chunk exists at a time, with gradients.

The gradient is made within the matrix of logits (`CrossEntropy.__call__`), and multiplied into
those of states and head in the forward pass; the backward pass only scales these. For cross-entropy
it is w (p_v - 1) for the label and w p_v for every other id v, with w the weight of the token and p
the student's probabilities.

K: tokens, H: hidden size, V: vocabulary, C: tokens of a chunk, P: parts of a loss.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from vocagno.models.head import (
    ChunkEnds,
    Head,
    LanguageHead,
    chunks,
    multiplies_tiles,
    products_of_tiles,
    widens,
)
from vocagno.models.losses import IGNORED, losses_
from vocagno.models.own_head import GivenLogits, OwnHead

_MOVED_ROWS = 32
"""Rows that exist twice while a matrix is compacted."""
_ROWS_TOGETHER = 32
"""The kept rows of a chunk are multiplied in a multiple of this number: oneDNN keeps code for each
number of rows that it meets, so that a run whose chunks keep 1 to 341 rows grew by 1.4 GB."""
_LEAST_DROPPED = 1 / 32
"""The share of dropped tokens in a chunk from which it pays to move the kept rows together."""


Weights = Callable[[Tensor, slice], Tensor] | Tensor | None
"""The weights of tokens: values, a function that makes them (`CrossEntropy`), or 1 for all."""


class Objective:
    """The loss of each token as a weighted sum of parts, with its gradient for the logits."""

    part_factors: Sequence[float] = (1.0,)
    """Factors of the parts that are trained, for all tokens alike; later parts are only
    reported."""
    num_parts: int = 1
    """P, the number of parts."""
    ends: ChunkEnds = None
    width: int = 0
    """The numbers per token that the objective computes at a time, next to the logits. Chunks are
    made small enough for them."""

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """(C, P) the parts of the losses of the tokens at `place`; `logits_CV`, which are float32,
        become the gradient of their weighted sum (`part_factors`)."""
        raise NotImplementedError

    def rows(self, place: slice) -> Tensor | None:
        """The rows with a gradient in the chunk that was computed last, ascending; None for all."""
        return None


class CrossEntropy(Objective):
    """Cross-entropy of the labels that are not -100. If weights are given, each loss is multiplied
    by its weight. Part 0 is what is trained; with weights, part 1 is the plain loss, for reports.

    These are the terms of Eq. 3 (arXiv 2503.19123): `nll_C` is -log P(x_i | x_<i; S), and
    `weights_C` is W(x_i).
    """

    def __init__(
        self,
        labels_K: Tensor,
        token_weights: Weights = None,
        ends: ChunkEnds = None,
        *,
        reports_loss: bool = True,
    ) -> None:
        """Args:
        labels_K: target ids; -100 takes no part.
        token_weights: (K,), or a function of the losses (C,) of a chunk and its place that gives
            the weights (C,), where they depend on the student; None: all are 1.
        ends: positions at which a chunk may end; None for all.
        reports_loss: False if the plain loss is known: a first pass may have computed it.
        """
        self._labels_K, self._token_weights = labels_K, token_weights
        self.ends: ChunkEnds = ends
        self.num_parts = 1 if token_weights is None or not reports_loss else 2
        self.weights_K: Tensor = (
            token_weights.float()
            if isinstance(token_weights, Tensor)
            else torch.zeros(labels_K.shape, device=labels_K.device)
        )
        """The weights; if a function gives them, those of the chunks that were computed so far."""

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """Computes losses and gradient within the matrix of logits, so that a chunk takes only one
        matrix of this size."""
        labels_C = self._labels_K[place]
        is_asked_C = labels_C != IGNORED
        labels_C1 = torch.where(is_asked_C, labels_C, 0)[:, None]  # -100 is no index
        nll_C, sum_C1 = losses_(logits_CV, labels_C1)
        nll_C = torch.where(is_asked_C, nll_C, 0.0)
        weights_C1 = is_asked_C[:, None].float()
        parts = [nll_C]
        if self._token_weights is not None:
            if not isinstance(self._token_weights, Tensor):
                self.weights_K[place] = self._token_weights(nll_C, place)
            weights_C = self.weights_K[place]
            weights_C1 = weights_C1 * weights_C[:, None]
            # Chosen, not only multiplied: an infinite loss times a weight of 0 would be NaN.
            parts.insert(0, torch.where(weights_C != 0, nll_C * weights_C, 0.0))
        # `losses_` left the exponentials in place of the logits; p is exponential / sum.
        logits_CV.mul_(weights_C1 / sum_C1).scatter_add_(1, labels_C1, -weights_C1)
        return torch.stack(parts[: self.num_parts], 1)

    def rows(self, place: slice) -> Tensor | None:
        return None if self._token_weights is None else kept_rows(self.weights_K[place])


def kept_rows(weights_C: Tensor) -> Tensor | None:
    """The rows of a chunk whose weight is not 0, if they are few enough for moving them together to
    pay; None for all. Only on a CPU: elsewhere the host would have to wait to know them."""
    if weights_C.device.type != "cpu":
        return None
    rows_C = weights_C.nonzero().squeeze(1)
    return rows_C if len(rows_C) < (1 - _LEAST_DROPPED) * len(weights_C) else None


def product_dtype(hidden: Tensor, head: Head) -> torch.dtype:
    """The type of the operands of products: autocast's, if it is on, else that of the states.
    Logits that a caller computed (`GivenLogits`) are no operands, and keep their type."""
    kind = hidden.device.type
    is_cast = torch.is_autocast_enabled(kind) and not isinstance(head, GivenLogits)
    return torch.get_autocast_dtype(kind) if is_cast else hidden.dtype


def chunked_loss(hidden_KH: Tensor, head: Head, objective: Objective) -> tuple[Tensor, Tensor]:
    """The weighted sum of the parts that are trained (`Objective.part_factors`), with gradients
    for states and parameters of the head.

    Args:
        hidden_KH: their type, or autocast's, is that of the operands of the products, which are
            accumulated in float32. An `OwnHead` takes states rounded to it and computes in float32.
    Returns: float32 sum, and (K, P) the parts without gradient.

    Gradients are made in the forward pass, so nothing is computed twice; a second backward pass
    through the same loss is refused. Under `torch.no_grad()` no product for a gradient is made.
    """
    arguments = head, objective, product_dtype(hidden_KH, head)
    # The operands have their types. Autocast would round those of an `OwnHead`, which computes in
    # float32.
    with torch.autocast(hidden_KH.device.type, enabled=False):
        if not torch.is_grad_enabled():
            parts_KP = _parts_of_chunks(hidden_KH, *arguments)
            return _weighted_sum(objective, parts_KP), parts_KP
        if isinstance(head, OwnHead):
            total, parts_KP = _OwnChunkedLoss.apply(hidden_KH, *arguments, *head.weights.values())
        else:
            total, parts_KP = _ChunkedLoss.apply(hidden_KH, *arguments, head.weight_VH, head.bias_V)
    return total, parts_KP


def _parts_of_chunks(
    hidden_KH: Tensor, head: Head, objective: Objective, dtype: torch.dtype
) -> Tensor:
    """(K, P) the parts of the losses, without any gradient."""
    states_KH, head = hidden_KH.to(dtype), head.as_type(dtype).for_chunks()
    parts_KP = hidden_KH.new_empty(len(hidden_KH), objective.num_parts, dtype=torch.float32)
    room = head.room_for(len(hidden_KH))
    width = max(head.vocabulary_size, objective.width)
    for place in chunks(len(hidden_KH), width, head.device, objective.ends):
        parts_KP[place] = objective(head.logits(states_KH[place], room), place)
    return parts_KP


def _weighted_sum(objective: Objective, parts_KP: Tensor) -> Tensor:
    """The sum over tokens of the parts that are trained, each times its factor."""
    # Later parts are only reported.
    sums = zip(objective.part_factors, parts_KP.sum(0), strict=False)
    return torch.stack([factor * part for factor, part in sums]).sum()


class _ScaledBackward(torch.autograd.Function):
    """A loss whose gradients were made in the forward pass, and kept by `_keep_gradients`."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Multiplies the kept gradients by that of the loss. Head, objective and type have none."""
        if ctx.is_used:
            raise RuntimeError("a second backward pass through one head loss is not supported")
        ctx.is_used = True  # the gradients are scaled where they stand
        grad_KH, *of_parameters = (
            None if gradient is None else gradient.mul_(gradients[0]).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return grad_KH, None, None, None, *of_parameters


class _ChunkedLoss(_ScaledBackward):
    """The loss of a head that is a matrix. Each chunk's logits become their own gradient, which is
    multiplied into the gradients of states and parameters before the next chunk overwrites it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_KH: Tensor,
        head: LanguageHead,
        objective: Objective,
        dtype: torch.dtype,
        weight_VH: Tensor,
        bias_V: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        count = len(hidden_KH)
        states_KH, factor_VH = hidden_KH.to(dtype), weight_VH.to(dtype)
        head = replace(head, weight_VH=factor_VH).for_chunks()
        parts_KP = hidden_KH.new_empty(count, objective.num_parts, dtype=torch.float32)
        # A CPU with AMX multiplies bfloat16 in tiles and adds the products up in float32. torch has
        # no such product with a float32 result, so it takes float32 operands, which oneDNN rounds
        # to bfloat16 by itself (`products_of_tiles`). Then the gradient of the logits needs no
        # rounded copy, and those of states and parameters are sums in float32.
        products: Callable[[], AbstractContextManager[None]] = nullcontext
        operand_KH = states_KH
        if multiplies_tiles(states_KH):
            products, operand_KH = products_of_tiles, states_KH.float()
            factor_VH, dtype = head.weight_VH, torch.float32
        grad_KH = torch.empty_like(operand_KH)
        grad_VH = grad_V = None  # a frozen matrix has no gradient, and takes no memory for one
        *_, weight_is_trained, bias_is_trained = ctx.needs_input_grad
        if weight_is_trained:
            # Nothing is chosen: gradients of 0, not of whatever stood in memory.
            empty = torch.empty if count else torch.zeros
            grad_VH = empty(weight_VH.shape, dtype=torch.float32, device=weight_VH.device)
        if bias_V is not None and bias_is_trained:
            grad_V = torch.zeros_like(bias_V, dtype=torch.float32)
        room = head.room_for(count)
        width = max(head.vocabulary_size, objective.width)
        for place in chunks(count, width, head.device, objective.ends):
            logits_CV = head.logits(states_KH[place], room)
            # d(capped) / d(uncapped) is needed after the logits are gone.
            slope_CV = None if head.softcap is None else 1 - (logits_CV / head.softcap).square_()
            parts_KP[place] = objective(logits_CV, place)
            if slope_CV is not None:
                logits_CV *= slope_CV
            if head.scale != 1.0:
                logits_CV *= head.scale
            # From here on `logits_CV` is the gradient of the head's product.
            if grad_V is not None:
                grad_V += logits_CV.sum(0)
            rows_C = objective.rows(place)
            with products():
                if rows_C is None:
                    grad_CV = logits_CV.to(dtype)
                    torch.mm(grad_CV, factor_VH, out=grad_KH[place])
                else:
                    grad_CV = _moved_up_(logits_CV, rows_C).to(dtype)
                    # A dropped token has no gradient, and this memory holds what was there before.
                    grad_KH[place] = 0
                    grad_RH = torch.mm(grad_CV, factor_VH)[: len(rows_C)]
                    grad_KH[place].index_copy_(0, rows_C, grad_RH)
                if grad_VH is not None:
                    states_CH = operand_KH[place]
                    if rows_C is not None:
                        padding = 0, 0, 0, len(grad_CV) - len(rows_C)
                        states_CH = torch.nn.functional.pad(states_CH[rows_C], padding)
                    _add_product_(grad_VH, grad_CV.T, states_CH, is_first=place.start == 0)
        return _keep_gradients(
            ctx, parts_KP, objective, (hidden_KH, weight_VH, bias_V), (grad_KH, grad_VH, grad_V)
        )


class _OwnChunkedLoss(_ScaledBackward):
    """The loss of a head that only the model's own code can compute. Autograd gives the gradients,
    through the graph of one chunk at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_KH: Tensor,
        head: OwnHead,
        objective: Objective,
        dtype: torch.dtype,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        count = len(hidden_KH)
        # Gradients add up in copies without a graph, not in `.grad` of the model's own parameters.
        leaves = [
            parameter.detach().requires_grad_(is_trained)
            for parameter, is_trained in zip(
                head.for_chunks().weights.values(), ctx.needs_input_grad[4:], strict=True
            )
        ]
        head = replace(head, weights=dict(zip(head.weights, leaves, strict=True)))
        parts_KP = hidden_KH.new_empty(count, objective.num_parts, dtype=torch.float32)
        grad_KH = torch.empty_like(hidden_KH, dtype=torch.float32)
        width = max(head.vocabulary_size, objective.width)
        for place in chunks(count, width, head.device, objective.ends):
            with torch.enable_grad():
                states_CH = hidden_KH[place].detach().to(dtype).float().requires_grad_()
                logits_CV = head.logits(states_CH)
            grad_CV = logits_CV.detach().clone()  # the graph may need the logits
            parts_KP[place] = objective(grad_CV, place)
            asked = [states_CH, *(leaf for leaf in leaves if leaf.requires_grad)]
            torch.autograd.backward(logits_CV, grad_CV, inputs=asked)  # adds up in the leaves
            assert states_CH.grad is not None
            grad_KH[place] = states_CH.grad
        if not count:  # nothing is chosen: gradients of 0, as DDP expects one for each parameter
            for leaf in leaves:
                leaf.grad = torch.zeros_like(leaf) if leaf.requires_grad else None
        gradients = grad_KH, *(leaf.grad for leaf in leaves)
        return _keep_gradients(ctx, parts_KP, objective, (hidden_KH, *parameters), gradients)


def _keep_gradients(
    ctx: Any,
    parts_KP: Tensor,
    objective: Objective,
    inputs: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> tuple[Tensor, Tensor]:
    """Keeps the gradients of a forward pass's inputs for its backward pass. Returns what the
    forward pass does: the sum, and the parts."""
    ctx.save_for_backward(*gradients)
    ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
    ctx.is_used = False
    ctx.mark_non_differentiable(parts_KP)
    return _weighted_sum(objective, parts_KP), parts_KP


def _moved_up_(matrix_CV: Tensor, rows_K: Tensor) -> Tensor:
    """Moves rows, whose numbers ascend, to the top of a matrix. A few rows move at a time, so that
    no second matrix of this size exists.

    Returns: that part of the matrix, with rows of 0 up to a multiple of `_ROWS_TOGETHER`, if there
        is room. Dropped rows do not fill it, since theirs may not be finite.
    """
    count = len(rows_K)
    for start in range(0, count, _MOVED_ROWS):
        part = rows_K[start : start + _MOVED_ROWS]
        matrix_CV[start : start + len(part)] = matrix_CV[part]  # no later row is overwritten
    padded = math.ceil(count / _ROWS_TOGETHER) * _ROWS_TOGETHER
    matrix_CV[count:padded] = 0
    return matrix_CV[:padded]


def _add_product_(sum_VH: Tensor, a_VC: Tensor, b_CH: Tensor, *, is_first: bool) -> None:
    """Adds a product to a float32 sum; the first one overwrites what is in its memory.

    Operands are float32 on a CPU with tiles (`_ChunkedLoss`). A GPU takes low precision and adds in
    float32 (`widens`); other devices give a product of low precision.
    """
    beta, widened = 0.0 if is_first else 1.0, widens(a_VC, b_CH)
    if a_VC.dtype == torch.float32:
        sum_VH.addmm_(a_VC, b_CH, beta=beta)
    elif widened and _ADDS_IN_FLOAT32:
        torch.addmm(sum_VH, a_VC, b_CH, out_dtype=torch.float32, beta=beta, out=sum_VH)
    else:
        if widened:
            product_VH = torch.mm(a_VC, b_CH, out_dtype=torch.float32)
        else:
            product_VH = torch.mm(a_VC, b_CH)
        if is_first:
            sum_VH.copy_(product_VH)
        else:
            sum_VH += product_VH


def _adds_in_float32(release: str) -> bool:
    """True if a release of torch has an `addmm` that adds to a float32 sum. Those of 2.8 and 2.9
    have the argument, but refuse such a sum."""
    return TorchVersion(release) >= "2.11.dev0"


_ADDS_IN_FLOAT32 = _adds_in_float32(torch.__version__)
"""True if this torch adds a product of low precision to a float32 matrix in place. Otherwise the
product is written to memory, read again, and added."""
