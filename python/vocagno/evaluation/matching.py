"""Whether two normalised answers are equal, by the rules of the paper's harness."""

import math
import re

from vocagno.evaluation.symbols import TOLERANCE, same_expression

_ENCLOSED = re.compile(r"[(\[].+[)\]]")
_MATRIX = re.compile(r"\\begin\{[pb]matrix\}(.*)\\end\{[pb]matrix\}")
_BRACKETS = str.maketrans("", "", "{}()")


def matches(answer: str, gold: str) -> bool:
    """Whether an answer equals the gold answer. The first of the rules below that applies decides.

    Calls the symbolic comparison, which may take unlimited time and memory; `judging` limits both.
    """
    answer, gold = answer.strip(), gold.strip()
    if answer.lower() == gold.lower():
        return True
    number, gold_number = _number(answer), _number(gold)
    if number is not None and gold_number is not None:
        return any(
            math.isclose(number, meant, rel_tol=TOLERANCE)
            for meant in (gold_number, gold_number / 100, gold_number * 100)
        )
    if not answer:
        return False
    if "pmatrix" in answer and "pmatrix" not in gold:
        gold = _as_matrices(gold)
    return _same_text(answer, gold) or _same_parts(answer, gold) or _same_sides(answer, gold)


def _number(text: str) -> float | None:
    """A number with or without commas; a percentage as a share."""
    text = text.replace(",", "")
    try:
        return float(text)
    except ValueError:
        if not text.endswith("%"):
            return None
    try:
        return float(text.removesuffix("%").removesuffix("\\")) / 100
    except ValueError:
        return None


def _as_matrices(text: str) -> str:
    """A list of elements, and each list in it, as columns. One backslash separates them, as in the
    harness, so the result never equals a correctly written matrix."""
    rows = re.findall(r"\{.*,.*\}", text)
    return ", ".join(
        rf"\begin{{pmatrix}}{row.strip('{}').replace(',', chr(92))}\end{{pmatrix}}" for row in rows
    )


def _same_text(answer: str, gold: str) -> bool:
    """Compares without case and brackets."""
    ends = answer[0] + answer[-1]
    if (ends == "[]" and not gold.startswith("(")) or (ends == "()" and not gold.startswith("[")):
        answer, gold = answer.strip("[]()"), gold.strip("[]()")
    return answer.translate(_BRACKETS).lower() == gold.translate(_BRACKETS).lower()


def _same_parts(answer: str, gold: str) -> bool:
    """Compares lists, points, intervals and matrices element by element."""
    if _ENCLOSED.match(answer) and _ENCLOSED.match(gold):
        return _all_match(answer[1:-1].split(","), gold[1:-1].split(","))
    matrix, gold_matrix = _MATRIX.fullmatch(answer), _MATRIX.fullmatch(gold)
    if matrix is None or gold_matrix is None:
        return False
    rows, gold_rows = _rows(matrix[1]), _rows(gold_matrix[1])
    return len(rows) == len(gold_rows) and all(map(_all_match, rows, gold_rows))


def _rows(matrix: str) -> list[list[str]]:
    lines = [line.strip() for line in matrix.split("\\\\")]
    return [line.split("&") for line in lines if line]


def _all_match(answers: list[str], golds: list[str]) -> bool:
    return len(answers) == len(golds) and all(map(matches, answers, golds))


def _same_sides(answer: str, gold: str) -> bool:
    """Compares two equations by the difference of their sides, up to sign; an assignment by its
    right side; else both texts as expressions."""
    sides, gold_sides = answer.split("="), gold.split("=")
    if len(sides) == len(gold_sides) == 2:
        one, other = (f"{left.strip()} - ({right.strip()})" for left, right in (sides, gold_sides))
        alike = same_expression(one, other) or same_expression(f"-({one})", other)
    elif _is_assignment(sides) and len(gold_sides) == 1:
        alike = matches(sides[1], gold)
    elif _is_assignment(gold_sides) and len(sides) == 1:
        alike = matches(answer, gold_sides[1])
    else:
        alike = False
    return alike or same_expression(answer, gold)


def _is_assignment(sides: list[str]) -> bool:
    return len(sides) == 2 and len(sides[0].strip()) <= 2
