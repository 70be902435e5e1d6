"""Where each rule of docs/guidance.md leaves a student, and that the page's figures are those.

Nothing is sampled: a student has a logit for each outcome of a context, and moves by the expected
gradient of the weighted loss, q w - (sum of q w) s for a text q, weights w and a student s.
"""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

import vocagno
from vocagno.config.guidance import GuidanceConfig

PAGE = (Path(__file__).parents[2] / "docs" / "guidance.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.replace("`", "").split())

WEIGHTS = {
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

RULES = {
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


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def normalized(masses):
    return masses / masses.sum(-1, keepdims=True)


def kl(first, second):
    """KL(first || second) of each row, in nats."""
    return (first * np.log(first / second)).sum(-1)


def entropy(masses):
    return -(masses * np.log(np.maximum(masses, 1e-300))).sum(-1)


def best_temperature(text, student):
    """The temperature with the smallest KL(text || student), the mean of the rows, and that KL."""
    temperatures = np.arange(0.3, 1.7, 0.01)
    found = [kl(text, softmax(np.log(student) / one)).mean() for one in temperatures]
    best = int(np.argmin(found))
    return temperatures[best], found[best]


RANKS = np.arange(1, 201)
TEXT = normalized(RANKS**-1.5)
WRONG = normalized(TEXT * np.exp(1.5 * np.sin(RANKS)))
JUNK = np.full(len(RANKS), 1 / len(RANKS))
NOISY = 0.8 * TEXT + 0.2 * JUNK
TEXTS, TEACHERS = np.stack([TEXT, TEXT, NOISY]), np.stack([TEXT, WRONG, TEXT])
"""A perfect teacher; a wrong one; text with junk in it under a teacher of the clean text."""


def direction(text, weights, student):
    """The expected step of each logit, divided by the masses of its outcome, so that rare outcomes
    arrive as soon as frequent ones. The divisor does not follow the weights: where these jump to
    and fro, the mean step is 0 where the mean gradient is.
    """
    kept = text * weights
    return (kept - kept.sum(-1, keepdims=True) * student) / (text + student)


def rates(num_steps, largest=0.5):
    """The rate of each step: constant for the first half, then linear to 0."""
    return largest * np.minimum(1, 2 * (1 - np.arange(num_steps) / num_steps))


def settle(rule, texts, teachers, logits):
    for rate in rates(1_800):
        student = softmax(logits)
        weights = rule(-np.log(np.maximum(student, 1e-300)), -np.log(teachers))
        logits = logits + rate * direction(texts, weights, student)
    return softmax(logits)


def settle_in_dead_zone(rule, text, teacher):
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
def settled(name):
    """The students that a rule leaves of `TEXTS` under `TEACHERS`, from equal logits."""
    if name == ABOVE:
        pairs = zip(TEXTS, TEACHERS, strict=True)
        return np.stack([settle_in_dead_zone(RULES[name], *pair) for pair in pairs])
    return settle(RULES[name], TEXTS, TEACHERS, np.zeros_like(TEXTS))


def with_sum_one(of_mass):
    """The student of mass 1 among those that `of_mass` gives, more of it for a smaller argument."""
    low, high = 1e-6, 1e6
    for _ in range(200):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if of_mass(middle).sum() > 1 else (low, middle)
    return of_mass(low)


# ---- Each line of the table.


def test_the_direction_is_that_of_the_gradient():
    rng = np.random.default_rng(0)
    logits, weights = rng.normal(size=5), rng.uniform(size=5)
    text = normalized(rng.uniform(size=5))

    def loss(logits):
        return -(text * weights * np.log(softmax(logits))).sum()

    slopes = [(loss(logits + step) - loss(logits - step)) / 2e-6 for step in 1e-6 * np.eye(5)]
    kept = text * weights
    expected = kept - kept.sum() * softmax(logits)
    np.testing.assert_allclose(-np.array(slopes), expected, atol=1e-8)
    np.testing.assert_array_equal(
        np.sign(direction(text, weights, softmax(logits))), np.sign(expected)
    )


def test_above_zero_every_student_with_enough_mass_is_stationary():
    keeps = RULES[ABOVE]
    for text, teacher, student in zip(TEXTS, TEACHERS, settled(ABOVE), strict=True):
        least = np.exp(-1) * teacher
        assert (student > least).all()
        assert kl(text, student) < 1 + kl(text, teacher)
        for rest in np.random.default_rng(0).dirichlet(np.ones(len(RANKS)), 5):
            anywhere = least + (1 - np.exp(-1)) * rest
            assert not keeps(-np.log(anywhere), -np.log(teacher)).any()
    student = settled(ABOVE)[0]
    assert entropy(student) > entropy(TEXT) + 2
    temperature, distance = best_temperature(TEXT, student)
    assert temperature < 0.7
    assert distance < kl(TEXT, student) / 2


def test_at_zero_the_student_becomes_the_teacher():
    np.testing.assert_allclose(settled(ZERO), TEACHERS, rtol=0.02, atol=1e-5)


def test_below_zero_the_student_is_the_text_under_a_cap():
    for text, teacher, student in zip(TEXTS, TEACHERS, settled(BELOW), strict=True):
        cap = np.exp(1) * teacher
        expected = with_sum_one(lambda m, text=text, cap=cap: np.minimum(text / m, cap))
        np.testing.assert_allclose(student, expected, rtol=0.02, atol=1e-5)
    assert (settled(BELOW)[2] > 2.6 * TEXT).any()  # junk that meets the cap


def test_with_a_floor_the_student_stays_within_it():
    students = settled(FLOOR)
    np.testing.assert_allclose(students[0], TEXT, rtol=1e-3)
    ratios = students / TEXTS
    assert ratios.min() > 0.25
    assert ratios.max() < 4
    assert abs(np.log(ratios)).max() > 1


def test_the_sigmoid_has_a_fixed_point_in_closed_form():
    for text, teacher, student in zip(TEXTS, TEACHERS, settled(SIGMOID), strict=True):
        ratios = student * (student + teacher) / (text * teacher)
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-4)


def test_a_power_leaves_the_geometric_mean():
    expected = normalized((TEXTS * TEACHERS**0.5) ** (1 / 1.5))
    np.testing.assert_allclose(settled(POWER), expected, rtol=1e-4)


def test_of_the_student_s_loss_alone_sure_outcomes_stay_stuck():
    for text, student in zip(TEXTS, settled(OF_STUDENT), strict=True):
        expected = with_sum_one(lambda m, text=text: np.minimum(text / m, np.exp(-2)))
        np.testing.assert_allclose(student, expected, rtol=0.02, atol=1e-5)
    np.testing.assert_array_equal(settled(OF_STUDENT)[0], settled(OF_STUDENT)[1])


def test_of_the_teacher_s_loss_alone_the_tail_is_lost():
    for text, teacher, student in zip(TEXTS, TEACHERS, settled(OF_TEACHER), strict=True):
        kept = teacher >= np.exp(-5)
        np.testing.assert_allclose(student[kept], normalized(text[kept]), rtol=0.01)
        assert student[~kept].max() < 2e-4  # and less with every step


@pytest.mark.parametrize("name", [ALL, RANDOM])
def test_weights_that_see_no_outcome_leave_the_text(name):
    np.testing.assert_allclose(settled(name), TEXTS, rtol=1e-4)


@pytest.mark.parametrize("name", [FLOOR, SIGMOID, POWER])
def test_a_positive_weight_has_one_fixed_point(name):
    """The text under a perfect teacher, the same under any from every start."""
    np.testing.assert_allclose(settled(name)[0], TEXT, rtol=1e-3)
    starts = np.random.default_rng(0).normal(size=TEXTS.shape)
    found = settle(RULES[name], TEXTS, TEACHERS, starts)
    np.testing.assert_allclose(found, settled(name), rtol=0.02, atol=1e-6)


# ---- Rules that look at other tokens.


KINDS = np.stack([TEXT, JUNK])


@cache
def by_line(is_wrong, share):
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
def by_neighbours(is_wrong, has_right):
    """The student of `CHAIN` if a token counts where the mean excess of its neighbours, one to the
    left and perhaps one to the right, is at least `NEIGHBOURS`."""
    teacher, logits = WRONG_CHAIN if is_wrong else CHAIN, np.zeros_like(CHAIN)
    for rate in rates(700):
        student = softmax(logits)
        excess = np.log(teacher / student)
        if has_right:  # axes: left neighbour, the one before that, the token, its right neighbour
            means = (excess.T[:, :, None, None] + excess) / 2
            of_left = CHAIN.T[:, :, None, None] * WEIGHTS["hard"](means, NEIGHBOURS)
            weights = (of_left.sum(1) * CHAIN).sum(-1)
        else:
            kept = CHAIN.T * WEIGHTS["hard"](excess.T, NEIGHBOURS)
            weights = kept.sum(1, keepdims=True)
        logits += rate * direction(CHAIN, weights, student)
    return softmax(logits)


def test_a_weight_known_before_the_outcome_leaves_the_text():
    for is_wrong in (False, True):
        np.testing.assert_allclose(by_line(is_wrong, 0.0), TEXT, rtol=1e-4)
        np.testing.assert_allclose(by_neighbours(is_wrong, False), CHAIN, rtol=1e-4)


def test_lines_of_junk_are_learnt_up_to_the_threshold():
    student = by_line(False, 0.2)
    shares = np.linspace(0, 0.2, 2_001)[:, None]
    excess = np.log(TEXT / ((1 - shares) * TEXT + shares * JUNK)) @ JUNK
    share = shares[excess > NEIGHBOURS].max()
    assert 0.03 < share < 0.1
    np.testing.assert_allclose(student, (1 - share) * TEXT + share * JUNK, rtol=0.03)


def test_a_window_on_both_sides_leaves_almost_the_text():
    np.testing.assert_allclose(by_neighbours(False, True), CHAIN, rtol=1e-4)
    own = settle(RULES[BELOW], CHAIN, WRONG_CHAIN, np.zeros_like(CHAIN))
    distance = kl(CHAIN, by_neighbours(True, True)).mean()
    assert 0.005 < distance < kl(CHAIN, own).mean() / 5


# ---- Many contexts, one quota.

NUM_CONTEXTS, NUM_ALONE, MERGED = 16, 8, 4
SLOPES = np.linspace(0.7, 2, NUM_CONTEXTS)[7 * np.arange(NUM_CONTEXTS) % NUM_CONTEXTS]
CONTEXTS = normalized(
    np.stack([np.roll(np.arange(1, 31) ** -slope, 7 * row) for row, slope in enumerate(SLOPES)])
)
"""Half of them the student tells apart; of the others it takes each four for the same one."""


def top(fraction, at_most=np.inf):
    """Weights of the `fraction` of the text with the largest excess, and of all above `at_most`."""

    def weights(excess):
        order = np.argsort(-excess, axis=None)
        masses = np.cumsum(CONTEXTS.ravel()[order]) / NUM_CONTEXTS
        quantile = excess.ravel()[order[np.searchsorted(masses, fraction)]]
        tau = min(quantile, at_most)
        return WEIGHTS["hard"](excess, tau), tau

    return weights


QUOTAS = {
    "all tokens": lambda excess: (WEIGHTS["all"](excess), None),
    "top 40 %": top(0.4),
    "top 80 %": top(0.8),
    "top 40 %, τ at most 0": top(0.4, 0.0),
    "top 40 %, τ at most -1": top(0.4, -1.0),
    "sigmoid(excess)": lambda excess: (WEIGHTS["sigmoid"](excess, 0, 1), None),
    "exp(0.5 excess)": lambda excess: (WEIGHTS["power"](excess, 0.5), None),
}


@cache
def of_many_contexts(name, merges=True):
    """The threshold at the end, and of all contexts of the student: texts, students."""
    alone, others = np.arange(NUM_ALONE), np.arange(NUM_CONTEXTS - NUM_ALONE)
    seen_as = np.concatenate([alone, NUM_ALONE + others // (MERGED if merges else 1)])
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


def figures_of_quota(name):
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


def test_the_threshold_of_a_quota_falls_to_zero_if_the_student_catches_up():
    tau, texts, students = of_many_contexts("top 40 %", merges=False)
    assert abs(tau) < 0.01
    np.testing.assert_allclose(students, texts, rtol=0.05)


def test_contexts_that_the_student_cannot_tell_apart_make_the_others_flat():
    tau, alone, flatter, *_ = figures_of_quota("top 40 %")
    assert tau > 1
    assert 0.2 < alone <= tau
    assert flatter > 0.5
    for name in ("top 80 %", "top 40 %, τ at most 0", "top 40 %, τ at most -1"):
        assert figures_of_quota(name)[1] < 0.001, name


def test_a_power_leaves_a_power_mean_of_what_the_student_takes_for_one():
    _, _, students = of_many_contexts("exp(0.5 excess)")
    groups = CONTEXTS[NUM_ALONE:].reshape(-1, MERGED, CONTEXTS.shape[1])
    expected = normalized((groups**1.5).mean(1) ** (1 / 1.5))
    np.testing.assert_allclose(students[NUM_ALONE:], expected, rtol=0.02)


# ---- Student tokens inside a longer teacher token.


def test_the_worked_example():
    """The losses of the page: by the maximum, and by what covers the same bytes."""
    student_nll, teacher_nll = np.array([3.0, 1.0, 0.2, 0.7]), np.array([2.4, 0.5])
    student, teacher = [[0, 3], [3, 5], [5, 8], [8, 9]], [[0, 8], [8, 9]]
    of_tokens = student_nll - teacher_nll[[0, 0, 0, 1]]
    found = student_nll - vocagno.reduce(teacher_nll, vocagno.align(student, teacher), how="max")
    np.testing.assert_allclose(found, of_tokens, rtol=1e-6)
    groups = vocagno.groups(student, teacher)
    assert groups.student.tolist() == [[0, 3], [3, 4]]
    assert groups.teacher.tolist() == [[0, 1], [1, 2]]
    of_groups = [(3.0 + 1.0 + 0.2 - 2.4) / 3, 0.7 - 0.5]
    code = "".join(re.findall(r"^```pycon\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    for line in (
        f"np.array({student_nll.tolist()})",
        f"np.array({teacher_nll.tolist()})",
        str([round(one, 1) for one in of_tokens.tolist()]),
        str([round(one, 1) for one in of_groups]),
    ):
        assert line in code


FIRST = normalized(np.arange(1, 11) ** -1.0)
SECOND = normalized(np.stack([np.roll(np.arange(1, 11) ** -1.5, 3 * row) for row in range(10)]))
PAIRS = FIRST[:, None] * SECOND
"""Words of two student tokens each, of one teacher token each; the teacher is perfect."""


@cache
def of_pairs(by_group, tau):
    """The student's two distributions, from equal logits."""
    first, second = np.zeros_like(FIRST), np.zeros_like(SECOND)
    for rate in rates(2_000, largest=0.2):
        own = softmax(first)[:, None] * np.ones_like(PAIRS), softmax(second)
        if by_group:
            excess = [np.log(PAIRS / (own[0] * own[1])) / 2] * 2
        else:
            excess = [np.log(PAIRS / one) for one in own]
        kept = [PAIRS * WEIGHTS["hard"](one, tau) for one in excess]
        total = kept[0].sum() + kept[1].sum()
        if not total:
            break
        of_first = kept[0].sum(1)
        first += rate * (of_first - of_first.sum() * softmax(first)) / total
        second += rate * 10 * (kept[1] - kept[1].sum(1, keepdims=True) * own[1]) / total
    return softmax(first), softmax(second)


def harm_of_pairs(by_group, tau):
    first, second = of_pairs(by_group, tau)
    return kl(FIRST, first) + FIRST @ kl(SECOND, second)


def test_inside_a_longer_token_the_threshold_is_higher_by_the_rest_of_its_loss():
    for tau in (0, -1):
        first, second = of_pairs(False, tau)
        assert (second >= np.exp(-tau) * PAIRS).all()  # and not only exp(-tau) * SECOND
        assert FIRST @ entropy(second) > FIRST @ entropy(SECOND) + 0.3
    np.testing.assert_allclose(first, FIRST, rtol=0.02)


@pytest.mark.parametrize("tau", [0, -1])
def test_compared_by_groups_a_perfect_teacher_does_no_harm(tau):
    assert harm_of_pairs(True, tau) < 0.0005  # 0.000 on the page
    assert harm_of_pairs(False, tau) > 0.3


# ---- The page.


def figures(name):
    """KL(q || s), entropy difference, temperature under a perfect teacher; KL(q || s) under a wrong
    one; KL from the clean text to the student of text with junk."""
    if name == BEFORE:
        students = [by_line(False, 0.0), by_line(True, 0.0), by_line(False, 0.2)]
        harm = [kl(TEXT, student) for student in students]
        return [harm[0], 0, 1, *harm[1:]]
    if name == BOTH_SIDES:  # lines of one context do not tell its noise from that of the left side
        harm = [kl(CHAIN, by_neighbours(is_wrong, True)).mean() for is_wrong in (False, True)]
        return [harm[0], 0, 1, harm[1], kl(TEXT, by_line(False, 0.2))]
    if name == OF_TEACHER:  # in the limit
        rest = normalized(np.where(np.exp(-5) <= TEXT, TEXT, 0.0))
        return ["∞", entropy(rest) - entropy(TEXT), "none", "∞", "∞"]
    flatter = entropy(settled(name)[0]) - entropy(TEXT)
    harm = kl(TEXT, settled(name))
    return [harm[0], flatter, best_temperature(TEXT, settled(name)[0])[0], *harm[1:]]


def agrees(cell, value):
    """Is the page's cell this value, rounded as it is written?"""
    if value is None or isinstance(value, str):
        return cell == ("-" if value is None else value)
    decimals = len(cell.partition(".")[2])
    return decimals > 0 and abs(float(cell) - value) <= 0.6 * 10**-decimals


def table(first_column):
    """Cells by the first one of their row."""
    (found,) = re.findall(rf"^\| {first_column} \|.*\n\|[-:| ]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found.splitlines()]
    return {row[0].replace("`", ""): row[1:] for row in rows}


def test_the_page_has_a_line_for_every_rule():
    assert set(table("rule")) == {*RULES, BEFORE, BOTH_SIDES}
    assert set(table("kept")) == set(QUOTAS)


@pytest.mark.parametrize("name", [*RULES, BEFORE, BOTH_SIDES])
def test_the_figures_of_a_rule(name):
    _, *cells = table("rule")[name]
    for cell, value in zip(cells, figures(name), strict=True):
        assert agrees(cell, value), (cell, value)


@pytest.mark.parametrize("name", QUOTAS)
def test_the_figures_of_a_quota(name):
    for cell, value in zip(table("kept")[name], figures_of_quota(name), strict=True):
        assert agrees(cell, value), (cell, value)


def figures_in_prose():
    student = settled(ABOVE)[0]
    temperature, distance = best_temperature(TEXT, student)
    lost = TEXT[np.exp(-5) > TEXT].sum()
    junk = (by_line(False, 0.2) - TEXT)[-1] / (JUNK - TEXT)[-1]
    tau, alone, *_ = figures_of_quota("top 40 %")
    return {
        r"\(entropy ([\d.]+) nats\)": entropy(TEXT),
        r"KL\(q ‖ p\) = ([\d.]+)": kl(TEXT, WRONG),
        r"a harm of ([\d.]+) nats": kl(TEXT, student),
        r"an entropy ([\d.]+) nats too high": entropy(student) - entropy(TEXT),
        r"gets ([\d.]+) in place of": student[0],
        r"in place of ([\d.]+)": TEXT[0],
        r"A temperature of ([\d.]+)": temperature,
        r"lowers the harm to ([\d.]+)": distance,
        r"no outcome above e\^-θ = ([\d.]+)": np.exp(-2),
        r"rare outcomes, ([\d.]+) % of the text": 100 * lost,
        r"single wrong tokens \(harm ([\d.]+)\)": kl(TEXT, settled(ALL)[2]),
        r"The ([\d.]+) is for a chain": figures(BOTH_SIDES)[3],
        r"([\d.]+) % of its mass is then junk": 100 * junk,
        r"stays at ([\d.]+) nats": tau,
        r"cost ([\d.]+) nats each": alone,
        r"harm by the maximum is ([\d.]+) nats": harm_of_pairs(False, 0),
        r"and ([\d.]+) with τ = -1": harm_of_pairs(False, -1),
    }


def test_the_figures_in_the_text():
    for pattern, value in figures_in_prose().items():
        found = re.findall(pattern, PROSE)
        assert len(found) == 1, pattern
        assert agrees(found[0].rstrip("."), value), (pattern, found, value)


def test_the_rule_of_the_page_is_the_default():
    block = PAGE.split("```yaml\n")[1].split("```")[0]
    assert GuidanceConfig(**yaml.safe_load(block)["guidance"]) == GuidanceConfig()
