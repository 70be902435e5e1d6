"""The limit `window_max_loss` for a teacher, from text that is known to be clean.

A teacher that is weak, or strange to the domain, loses more on every line. So the limit is a
quantile of its losses on clean text: the share of clean tokens that it drops is then known.

n: tokens with a teacher loss.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.data.rows import Row
from vocagno.errors import require
from vocagno.guidance.batches import Collator
from vocagno.guidance.rules import teacher_loss_of_neighbours


def losses_of_neighbours(rows: Iterable[Row], collator: Collator) -> NDArray[np.float64]:
    """(n,) nats a byte: what `window_max_loss` limits, for every token with a teacher loss; minus
    infinity for a token without neighbours, which is never noise.

    Args:
        rows: as `RowStore` gives them.
        collator: with the scores of their documents, and a guidance with `window_max_loss`, whose
            value has no effect.
    """
    found = [torch.empty(0, dtype=torch.float64)]
    for row in rows:
        batch = collator([row])
        assert batch.units is not None  # of a rule with `window_max_loss`
        teacher_BT, labels_BT = batch.tensors["teacher_loss"], batch.tensors["labels"]
        given = teacher_BT, labels_BT, batch.units, collator.guidance
        around_BT = teacher_loss_of_neighbours(*given)
        competing_BT, _ = collator.method.roles(teacher_BT, labels_BT)
        found.append(around_BT.masked_fill(around_BT.isnan(), -math.inf)[competing_BT])
    return torch.cat(found).numpy()


def limit_that_keeps(share: float, losses: NDArray[np.float64]) -> float:
    """The least `window_max_loss`, in whole hundredths of a nat a byte, that keeps at least this
    share of the tokens.

    Args:
        share: in (0, 1].
        losses: `losses_of_neighbours` of clean text.
    Raises: ConfigError for another share, for one that every limit keeps, or without losses.
    """
    require(0 < share <= 1, f"the share to keep must be in (0, 1], got {share}")
    require(losses.size > 0, "no token of the clean text has a teacher loss")
    rank = math.ceil(share * losses.size) - 1
    highest = float(np.partition(losses, rank)[rank])
    always = kept_share(-math.inf, losses)
    require(always < 1, "the clean text has no line of more than one token with a teacher loss")
    require(
        math.isfinite(highest),
        f"the share to keep must be above {always:.4g}, which every limit keeps, because so many "
        f"tokens of the clean text have no neighbours; got {share}",
    )
    hundredths = math.floor(100 * highest)
    while kept_share(hundredths / 100, losses) < share:
        hundredths += 1
    return hundredths / 100


def kept_share(limit: float, losses: NDArray[np.float64]) -> float:
    """The share of the tokens that a `window_max_loss` keeps."""
    return float(np.count_nonzero(losses <= limit) / max(1, losses.size))
