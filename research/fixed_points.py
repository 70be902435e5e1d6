"""Computes where each rule of docs/guidance.md leaves a student: the figures of the page.

    python -m research.fixed_points

Nothing is sampled: a student has a logit for each outcome of a context, and moves by the expected
gradient of the weighted loss, q w - (sum of q w) s for a text q, weights w and a student s.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

WEIGHTS: dict[str, Callable[..., Array]] = {
    "all": lambda excess: np.ones_like(excess),
    "hard": lambda excess, tau: (excess >= tau).astype(float),
    "floor": lambda excess, tau, lowest: np.where(excess >= tau, 1.0, lowest),
    "sigmoid": lambda excess, tau, scale: 1 / (1 + np.exp((tau - excess) / scale)),
    "power": lambda excess, beta: np.exp(beta * excess),
}
"""The weight of a token, of its excess: the student's loss minus the teacher's, in nats."""

ALL = "all tokens"
ABOVE, ZERO, BELOW = "excess ≥ τ, τ = 1", "excess ≥ 0", "excess ≥ -δ, δ = 1"
FLOOR, SIGMOID = "1 if excess ≥ 0, else λ, λ = 0.25", "sigmoid((excess - τ) / T), τ = 0, T = 1"
POWER, RANDOM = "exp(β excess), β = 0.5", "a random choice"
OF_STUDENT, OF_TEACHER = "student's loss ≥ θ, θ = 2", "teacher's loss ≤ θ, θ = 5"
BEFORE = "a weight known before the outcome: line, document, left neighbours"
BOTH_SIDES = "a window on both sides without the token itself"

RULES: dict[str, Callable[[Array, Array], Array]] = {
    ALL: lambda student, teacher: WEIGHTS["all"](student - teacher),
    ABOVE: lambda student, teacher: WEIGHTS["hard"](student - teacher, 1),
    ZERO: lambda student, teacher: WEIGHTS["hard"](student - teacher, 0),
    BELOW: lambda student, teacher: WEIGHTS["hard"](student - teacher, -1),
    FLOOR: lambda student, teacher: WEIGHTS["floor"](student - teacher, 0, 0.25),
    SIGMOID: lambda student, teacher: WEIGHTS["sigmoid"](student - teacher, 0, 1),
    POWER: lambda student, teacher: WEIGHTS["power"](student - teacher, 0.5),
    OF_STUDENT: lambda student, teacher: WEIGHTS["hard"](student, 2),
    OF_TEACHER: lambda student, teacher: WEIGHTS["hard"](-teacher, -5),
    RANDOM: lambda student, teacher: np.full_like(student, 0.4),  # what is expected of it
}
"""The rules that see only a token's own losses, by their names in the page's table."""

NEIGHBOURS = -0.5
"""The least mean excess of other tokens for the two rules that look at those."""


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: Array = powers / powers.sum(-1, keepdims=True)
    return probabilities


def normalized(masses: Array) -> Array:
    probabilities: Array = masses / masses.sum(-1, keepdims=True)
    return probabilities


def kl(first: Array, second: Array) -> Any:
    """KL(first || second) of each row, in nats."""
    return (first * np.log(first / second)).sum(-1)


def entropy(masses: Array) -> Any:
    return -(masses * np.log(np.maximum(masses, 1e-300))).sum(-1)


def best_temperature(text: Array, student: Array) -> tuple[float, float]:
    """The temperature with the smallest KL(text || student), the mean of the rows, and that KL."""
    temperatures = np.arange(0.3, 1.7, 0.01)
    losses = [kl(text, softmax(np.log(student) / t)).mean() for t in temperatures]
    best = int(np.argmin(losses))
    return temperatures[best], losses[best]


RANKS = np.arange(1, 201)
TEXT = normalized(RANKS**-1.5)
WRONG = normalized(TEXT * np.exp(1.5 * np.sin(RANKS)))
JUNK = np.full(len(RANKS), 1 / len(RANKS))
NOISY = 0.8 * TEXT + 0.2 * JUNK
TEXTS, TEACHERS = np.stack([TEXT, TEXT, NOISY]), np.stack([TEXT, WRONG, TEXT])
"""A perfect teacher; a wrong one; text with junk in it under a teacher of the clean text."""


def direction(text: Array, weights: Array, student: Array) -> Array:
    """The expected step of each logit, divided by the masses of its outcome, so that rare outcomes
    arrive as soon as frequent ones. The divisor does not follow the weights: where these jump to
    and fro, the mean step is 0 where the mean gradient is.
    """
    kept = text * weights
    step: Array = (kept - kept.sum(-1, keepdims=True) * student) / (text + student)
    return step


def rates(num_steps: int, largest: float = 0.5) -> Array:
    """The rate of each step: constant for the first half, then linear to 0."""
    factors: Array = np.minimum(1, 2 * (1 - np.arange(num_steps) / num_steps))
    return largest * factors


def settle(
    rule: Callable[[Array, Array], Array], texts: Array, teachers: Array, logits: Array
) -> Array:
    for rate in rates(1_800):
        student = softmax(logits)
        weights = rule(-np.log(np.maximum(student, 1e-300)), -np.log(teachers))
        logits = logits + rate * direction(texts, weights, student)
    return softmax(logits)


def settle_in_dead_zone(
    rule: Callable[[Array, Array], Array], text: Array, teacher: Array
) -> Array:
    """Plain gradient descent from equal logits until no token is kept. Which of the stationary
    students it meets depends on the way, so the steps are small and undivided."""
    logits = np.zeros_like(text)
    for _ in range(5_000):
        student = softmax(logits)
        kept = text * rule(-np.log(student), -np.log(teacher))
        if not kept.any():
            return student
        logits += 0.02 * (kept / kept.sum() - student)
    raise AssertionError("a token is kept still")


@cache
def settled(name: str) -> Array:
    """The students that a rule leaves of `TEXTS` under `TEACHERS`, from equal logits."""
    if name == ABOVE:
        pairs = zip(TEXTS, TEACHERS, strict=True)
        return np.stack([settle_in_dead_zone(RULES[name], *pair) for pair in pairs])
    return settle(RULES[name], TEXTS, TEACHERS, np.zeros_like(TEXTS))


# ---- Rules that look at other tokens.


KINDS = np.stack([TEXT, JUNK])


@cache
def by_line(is_wrong: bool, share: float) -> Array:
    """Long lines of one context, a share of them junk; a line counts if its mean excess is at least
    `NEIGHBOURS`, so the weight does not depend on which token came."""
    teacher, shares = WRONG if is_wrong else TEXT, np.array([1 - share, share])
    text, logits = shares @ KINDS, np.zeros_like(TEXT)
    for rate in rates(1_200):
        student = softmax(logits)
        kept = shares * WEIGHTS["hard"](KINDS @ np.log(teacher / student), NEIGHBOURS)
        logits += rate * direction(text, kept @ KINDS / text, student)
    return softmax(logits)


SYMBOLS = np.arange(12)
CHAIN = normalized(np.stack([np.roll((SYMBOLS + 1.0) ** -1.5, 5 * row) for row in SYMBOLS]))
"""Text in which a token depends on the one before it: of each a row of probabilities. The columns
sum to 1, too, so all tokens are equally frequent, and the transpose is the text read backwards."""
WRONG_CHAIN = normalized(CHAIN * np.exp(1.5 * np.sin(1 + 7 * SYMBOLS[:, None] + 3 * SYMBOLS)))


@cache
def by_neighbours(is_wrong: bool) -> Array:
    """The student of `CHAIN` if a token counts where the mean excess of its neighbours, one to the
    left and one to the right, is at least `NEIGHBOURS`."""
    teacher, logits = WRONG_CHAIN if is_wrong else CHAIN, np.zeros_like(CHAIN)
    for rate in rates(700):
        student = softmax(logits)
        excess = np.log(teacher / student)
        # Axes: left neighbour, the one before that, the token, its right neighbour.
        means = (excess.T[:, :, None, None] + excess) / 2
        of_left = CHAIN.T[:, :, None, None] * WEIGHTS["hard"](means, NEIGHBOURS)
        weights = (of_left.sum(1) * CHAIN).sum(-1)
        logits += rate * direction(CHAIN, weights, student)
    return softmax(logits)


# ---- Many contexts, one quota.

NUM_CONTEXTS, NUM_ALONE, MERGED = 16, 8, 4
SLOPES = np.linspace(0.7, 2, NUM_CONTEXTS)[7 * np.arange(NUM_CONTEXTS) % NUM_CONTEXTS]
CONTEXTS = normalized(
    np.stack([np.roll(np.arange(1, 31) ** -slope, 7 * row) for row, slope in enumerate(SLOPES)])
)
"""Half of them the student tells apart; of the others it takes each four for the same one."""


def top(fraction: float, at_most: float = np.inf) -> Callable[[Array], tuple[Array, float | None]]:
    """Weights of the `fraction` of the text with the largest excess, and of all above `at_most`."""

    def weights(excess: Array) -> tuple[Array, float]:
        order = np.argsort(-excess, axis=None)
        masses = np.cumsum(CONTEXTS.ravel()[order]) / NUM_CONTEXTS
        quantile = excess.ravel()[order[np.searchsorted(masses, fraction)]]
        tau = min(quantile, at_most)
        return WEIGHTS["hard"](excess, tau), tau

    return weights


QUOTAS: dict[str, Callable[[Array], tuple[Array, float | None]]] = {
    "all tokens": lambda excess: (WEIGHTS["all"](excess), None),
    "top 40 %": top(0.4),
    "top 80 %": top(0.8),
    "top 40 %, τ at most 0": top(0.4, 0.0),
    "top 40 %, τ at most -1": top(0.4, -1.0),
    "sigmoid(excess)": lambda excess: (WEIGHTS["sigmoid"](excess, 0, 1), None),
    "exp(0.5 excess)": lambda excess: (WEIGHTS["power"](excess, 0.5), None),
}


@cache
def of_many_contexts(name: str) -> tuple[float | None, Array, Array]:
    """The threshold at the end, and of all contexts of the student: texts, students."""
    alone, merged = np.arange(NUM_ALONE), np.arange(NUM_CONTEXTS - NUM_ALONE)
    seen_as = np.concatenate([alone, NUM_ALONE + merged // MERGED])
    belongs = (seen_as == np.arange(seen_as[-1] + 1)[:, None]).astype(float)
    texts = normalized(belongs @ CONTEXTS)
    logits = np.zeros_like(texts)
    for rate in rates(1_200, largest=1.0):
        student = softmax(logits)
        weights, tau = QUOTAS[name](np.log(CONTEXTS / student[seen_as]))
        kept = belongs @ (CONTEXTS * weights)
        steps = kept - kept.sum(1, keepdims=True) * student
        logits += rate * steps * NUM_CONTEXTS / kept.sum()
    return tau, texts, softmax(logits)


def figures_of_quota(name: str) -> list[Any]:
    """Threshold; KL and entropy difference where the student can follow the teacher; the same where
    it cannot; temperature of all."""
    tau, texts, students = of_many_contexts(name)
    distances, flatter = kl(texts, students), entropy(students) - entropy(texts)
    temperature, _ = best_temperature(texts, students)
    alone, merged = slice(NUM_ALONE), slice(NUM_ALONE, None)
    return [
        tau,
        distances[alone].mean(),
        flatter[alone].mean(),
        distances[merged].mean(),
        flatter[merged].mean(),
        temperature,
    ]


# ---- Student tokens inside a longer teacher token.


FIRST = normalized(np.arange(1, 11) ** -1.0)
SECOND = normalized(np.stack([np.roll(np.arange(1, 11) ** -1.5, 3 * row) for row in range(10)]))
PAIRS = FIRST[:, None] * SECOND
"""Words of two student tokens each, of one teacher token each; the teacher is perfect."""


@cache
def of_pairs(by_group: bool, tau: float) -> tuple[Array, Array]:
    """The student's two distributions, from equal logits."""
    first, second = np.zeros_like(FIRST), np.zeros_like(SECOND)
    for rate in rates(2_000, largest=0.2):
        sides = softmax(first)[:, None] * np.ones_like(PAIRS), softmax(second)
        if by_group:
            excess = [np.log(PAIRS / (sides[0] * sides[1])) / 2] * 2
        else:
            excess = [np.log(PAIRS / side) for side in sides]
        kept = [PAIRS * WEIGHTS["hard"](side, tau) for side in excess]
        total = kept[0].sum() + kept[1].sum()
        if not total:
            break
        of_first = kept[0].sum(1)
        first += rate * (of_first - of_first.sum() * softmax(first)) / total
        second += rate * 10 * (kept[1] - kept[1].sum(1, keepdims=True) * sides[1]) / total
    return softmax(first), softmax(second)


def harm_of_pairs(by_group: bool, tau: float) -> Any:
    first, second = of_pairs(by_group, tau)
    return kl(FIRST, first) + FIRST @ kl(SECOND, second)


# ---- The figures.


def figures(name: str) -> list[Any]:
    """KL(q || s), entropy difference, temperature under a perfect teacher; KL(q || s) under a wrong
    one; KL from the clean text to the student of text with junk."""
    if name == BEFORE:
        students = [by_line(False, 0.0), by_line(True, 0.0), by_line(False, 0.2)]
        harm = [kl(TEXT, student) for student in students]
        return [harm[0], 0, 1, *harm[1:]]
    if name == BOTH_SIDES:  # lines of one context do not tell its noise from that of the left side
        harm = [kl(CHAIN, by_neighbours(is_wrong)).mean() for is_wrong in (False, True)]
        return [harm[0], 0, 1, harm[1], kl(TEXT, by_line(False, 0.2))]
    if name == OF_TEACHER:  # in the limit
        rest = normalized(np.where(np.exp(-5) <= TEXT, TEXT, 0.0))
        return ["∞", entropy(rest) - entropy(TEXT), "none", "∞", "∞"]
    flatter = entropy(settled(name)[0]) - entropy(TEXT)
    harm = kl(TEXT, settled(name))
    return [harm[0], flatter, best_temperature(TEXT, settled(name)[0])[0], *harm[1:]]


def main() -> None:
    """Prints both tables, a line for each rule."""
    for name in [*RULES, BEFORE, BOTH_SIDES]:
        _print(name, figures(name))
    for name in QUOTAS:
        _print(name, figures_of_quota(name))


def _print(name: str, cells: Sequence[Any]) -> None:
    words = (
        "-"
        if cell is None
        else cell
        if isinstance(cell, str)
        else f"{round(float(cell), 3) + 0.0:.3f}"
        for cell in cells
    )
    print(f"| {name} |", " | ".join(words), "|")


if __name__ == "__main__":
    main()
