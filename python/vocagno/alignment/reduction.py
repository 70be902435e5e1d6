"""Teacher losses and a mapping to one teacher loss for each student token (Eq. 2)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno import _vocagno
from vocagno._vocagno import SpanError
from vocagno.alignment.arrays import as_losses, as_mapping

Reduction = Literal["max", "mean", "sum", "min"]

_strict_reduce: Any = _vocagno.reduce  # refuses what does not fit, whatever it is


def reduce(losses: ArrayLike, mapping: ArrayLike, how: Reduction = "max") -> NDArray[np.float32]:
    """Aggregates the teacher's losses over the range of each student token.

    Args:
        losses: (M,) teacher losses in nats, one for each row of the teacher spans that `mapping`
            was made from; float32 and float64 are borrowed. NaN, infinities and masked losses
            (`numpy.ma`) stand for "no loss".
        mapping: (N, 2) ranges from `align`.
        how: "max" (the paper's choice), "mean", "sum" or "min".
    Returns: (N,) float32; NaN where the token is unmapped or no loss in its range is finite.
    Raises: ValueError for a range outside the losses (names the token) or an unknown `how`.

    Cost: O(N + total length of the ranges). The GIL is released; Ctrl-C takes effect when the call
    returns. Source: arXiv 2503.19123, Eq. 2 and section 6.3.
    """
    try:  # arrays that fit as they are, without looking at them twice
        reduced: NDArray[np.float32] = _strict_reduce(losses, mapping, how)
        return reduced
    except SpanError:
        raise
    except (TypeError, ValueError):
        pass  # not what the kernel takes: convert it, or say what is wrong
    return _vocagno.reduce(as_losses(losses), as_mapping(mapping), how)
