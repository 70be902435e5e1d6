"""docs/guidance.md: its figures of fixed points, its worked example and its default rule."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import vocagno
from research.fixed_points import (
    ABOVE,
    ALL,
    BEFORE,
    BOTH_SIDES,
    QUOTAS,
    RULES,
    TEXT,
    WRONG,
    best_temperature,
    entropy,
    figures,
    figures_of_quota,
    harm_of_pairs,
    kl,
    settled,
)
from vocagno.config.guidance import GuidanceConfig

PAGE = (Path(__file__).parents[2] / "docs" / "guidance.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.replace("`", "").split())


def agrees(cell, value):
    """Is the page's cell this value, rounded as it is written?"""
    if value is None or isinstance(value, str):
        return cell == ("-" if value is None else value)
    decimals = len(cell.partition(".")[2])
    return decimals > 0 and abs(float(cell) - value) <= 0.6 * 10**-decimals


def table(first_column):
    """Cells by the first one of their row."""
    (body,) = re.findall(rf"^\| {first_column} \|.*\n\|[-:| ]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in body.splitlines()]
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
        r"stays at ([\d.]+) nats": tau,
        r"cost ([\d.]+) nats each": alone,
        r"harm by the maximum is ([\d.]+) nats": harm_of_pairs(False, 0),
        r"and ([\d.]+) with τ = -1": harm_of_pairs(False, -1),
    }


def test_the_text_has_the_computed_figures():
    for pattern, value in figures_in_prose().items():
        numbers = re.findall(pattern, PROSE)
        assert len(numbers) == 1, pattern
        assert agrees(numbers[0].rstrip("."), value), (pattern, numbers, value)


def test_the_rule_of_the_page_is_the_default():
    block = PAGE.split("```yaml\n")[1].split("```")[0]
    assert GuidanceConfig(**yaml.safe_load(block)["guidance"]) == GuidanceConfig()


def test_the_worked_example():
    """The losses of the page: by the maximum, and by what covers the same bytes."""
    student_nll, teacher_nll = np.array([3.0, 1.0, 0.2, 0.7]), np.array([2.4, 0.5])
    student, teacher = [[0, 3], [3, 5], [5, 8], [8, 9]], [[0, 8], [8, 9]]
    of_tokens = student_nll - teacher_nll[[0, 0, 0, 1]]
    excess = student_nll - vocagno.reduce(teacher_nll, vocagno.align(student, teacher), how="max")
    np.testing.assert_allclose(excess, of_tokens, rtol=1e-6)
    groups = vocagno.groups(student, teacher)
    assert groups.student.tolist() == [[0, 3], [3, 4]]
    assert groups.teacher.tolist() == [[0, 1], [1, 2]]
    of_groups = [(3.0 + 1.0 + 0.2 - 2.4) / 3, 0.7 - 0.5]
    code = "".join(re.findall(r"^```pycon\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    for line in (
        f"np.array({student_nll.tolist()})",
        f"np.array({teacher_nll.tolist()})",
        str([round(loss, 1) for loss in of_tokens.tolist()]),
        str([round(loss, 1) for loss in of_groups]),
    ):
        assert line in code
