"""Several corpora with weights, as `data.train` names them."""

import math
from collections.abc import Mapping
from fractions import Fraction

from vocagno.errors import require

LONGEST = 100_000
"""Most rows after which the order of the corpora may repeat."""


def row_counts(weights: Mapping[str, float]) -> dict[str, int]:
    """The smallest whole numbers in the ratio of the weights: rows of each corpus in one cycle.

    `{a: 0.7, b: 0.2, c: 0.1}` gives `{a: 7, b: 2, c: 1}`.

    Raises: ConfigError for a weight that is not positive and finite, or weights whose cycle is
        longer than `LONGEST`.
    """
    require(bool(weights), "data.train: names no corpus")
    for name, weight in weights.items():
        good = math.isfinite(weight) and weight > 0
        require(good, f"data.train: the weight of {name} must be positive, got {weight}")
    exact = [Fraction(str(weight)) for weight in weights.values()]
    scale = math.lcm(*(weight.denominator for weight in exact))
    counts = [int(weight * scale) for weight in exact]
    divisor = math.gcd(*counts)
    counts = [count // divisor for count in counts]
    require(
        sum(counts) <= LONGEST,
        f"data.train: the weights {', '.join(map(str, weights.values()))} are the ratio of whole "
        f"numbers with a sum of {sum(counts):,}; at most {LONGEST:,}: round them",
    )
    return dict(zip(weights, counts, strict=True))
