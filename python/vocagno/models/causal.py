"""Losses on tensors.

B: rows, T: tokens of a row.
"""

from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

IGNORED = -100
"""The label of padding and of tokens that are not predicted."""

AnyArray = TypeVar("AnyArray", Tensor, NDArray[Any])


def causal_shift(sequence: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The inputs and labels of a causal model: token i is predicted from token i - 1.

    The last axis is the position. The first token is only an input, the last only a label. The
    shift is defined only here, for student and teacher, ids and losses.
    """
    return sequence[..., :-1], sequence[..., 1:]


def teacher_guided_loss(nll_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """The sum of the losses of the kept tokens, float32 (Eq. 3 without its denominator).

    The loop divides by one count for the whole optimizer step. `weights_BT` has no gradient.
    """
    if nll_BT.shape != weights_BT.shape:
        raise ValueError(f"nll {tuple(nll_BT.shape)} and weights {tuple(weights_BT.shape)} differ")
    # Fill before multiplying: an infinite loss at a dropped token would make inf * 0 = nan.
    return (nll_BT.masked_fill(weights_BT == 0, 0.0) * weights_BT).sum()
