"""Reduces teacher losses over a mapping to one teacher loss per student token (Eq. 2)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno import _vocagno
from vocagno._vocagno import SpanError
from vocagno.alignment.arrays import as_losses, as_mapping

Reduction = Literal["max", "mean", "sum", "min"]

_strict_reduce: Any = _vocagno.reduce  # rejects arguments of any other type


def reduce(losses: ArrayLike, mapping: ArrayLike, how: Reduction = "max") -> NDArray[np.float32]:
    """Reduces the teacher losses over the range of each student token.

    Args:
        losses: (M,) teacher losses in nats, one for each row of the teacher spans that `mapping`
            was made from; float32 and float64 are borrowed. NaN, infinite and masked losses
            (`numpy.ma`) mean "no loss".
        mapping: (N, 2) ranges from `align`.
        how: "max" (the paper's choice), "mean", "sum" or "min".
    Returns: (N,) float32; NaN where the token is unmapped or no loss in its range is finite.
    Raises: ValueError for a range outside the losses (names the token) or an unknown `how`.

    Cost: O(N + total length of the ranges). The GIL is released; Ctrl-C takes effect when the call
    returns. Source: arXiv 2503.19123, Eq. 2 and section 6.3.
    """
    try:  # arrays that need no conversion, without checking them twice
        reduced: NDArray[np.float32] = _strict_reduce(losses, mapping, how)
        return reduced
    except SpanError:
        raise
    except (TypeError, ValueError):
        pass  # the kernel does not take them: convert them, or report what is wrong
    return _vocagno.reduce(as_losses(losses), as_mapping(mapping), how)
