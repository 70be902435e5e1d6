"""The exact distribution of a store's losses, in one pass and constant memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.teacher.scores import ScoreStore

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
EDGES = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Lower ends of the histogram's bins, in nats; the last bin is open."""

_VALUES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of a store, in nats."""

    counts: NDArray[np.int64]
    """(65536,) how often each float16 value occurs, indexed by its bits."""

    @property
    def scored(self) -> int:
        """Number of tokens with a loss."""
        return int(self.counts[np.isfinite(_VALUES)].sum())

    @property
    def without(self) -> int:
        """Number of tokens without a loss."""
        return int(self.counts[np.isnan(_VALUES)].sum())

    def as_dict(self) -> dict[str, Any]:
        """Mean, deviation, quantiles and a histogram; only the counts if no token has a loss."""
        counted: dict[str, Any] = {"scored": self.scored, "without": self.without}
        if not self.scored:
            return counted
        finite = np.isfinite(_VALUES)
        order = np.flatnonzero(finite)[np.argsort(_VALUES[finite], kind="stable")]
        values, counts = _VALUES[order].astype(np.float64), self.counts[order]
        mean = float((values * counts).sum() / self.scored)
        spread = float(np.sqrt((counts * (values - mean) ** 2).sum() / self.scored))
        ends = np.cumsum(counts)
        ranks = [max(1, int(np.ceil(share * self.scored))) for share in QUANTILES]
        quantiles = [float(values[np.searchsorted(ends, rank)]) for rank in ranks]
        below = np.concatenate([[0], ends])[np.searchsorted(values, EDGES[1:], side="left")]
        bins = np.diff(np.concatenate([[0], below, [self.scored]]))
        return {
            **counted,
            "mean": round(mean, 4),
            "standard_deviation": round(spread, 4),
            "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
            "max": float(values[np.flatnonzero(counts)[-1]]),
            "histogram": dict(zip(map(str, EDGES), bins.tolist(), strict=True)),
        }


def losses_of(store: ScoreStore, advance: Callable[[int], None] = lambda tokens: None) -> Losses:
    """Reads all losses of a store; calls `advance` with the number of tokens read so far."""
    counts = np.zeros(1 << 16, np.int64)
    read = 0
    for shard in store.shards():
        values = shard.nll.values.view(np.uint16)
        counts += np.bincount(values, minlength=1 << 16)
        read += len(values)
        advance(read)
    return Losses(counts)
