"""Extracts the answer from a completion, normalises its spelling and compares it with the gold
answer, by the rules of the paper's harness.

Nothing is evaluated as Python. Parsing and comparing may take unlimited time and memory, or end the
process, so `judge` calls these functions in a process of its own.
"""

import ast
import logging
import math
import re
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any


def expression(text: str, *, evaluate: bool = True) -> Any:
    """Parses an expression of numbers, names, brackets and the five operations; a set of these; or
    a quoted text. Text after `#` is ignored.

    Args:
        evaluate: gives `5` for `2 + 3`, not the sum.
    Raises: ValueError or SyntaxError for anything else; MemoryError or RecursionError if nested too
        deeply.
    """
    return _to_sympy(ast.parse(text.strip(), mode="eval").body, evaluate)


def _to_sympy(node: ast.expr, evaluate: bool) -> Any:
    """Converts a node of Python's syntax tree to a sympy expression, a frozenset or a string."""
    import sympy

    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return sympy.sympify(number)
        case ast.Name(id="E" | "I" | "pi" as name):
            return {"E": sympy.E, "I": sympy.I, "pi": sympy.pi}[name]
        case ast.Name(id=name):
            return sympy.Symbol(name)
        case ast.Set(elts=elements):
            return frozenset(_to_sympy(element, evaluate) for element in elements)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _to_sympy(operand, evaluate)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return sympy.Mul(-1, _to_sympy(operand, evaluate), evaluate=evaluate)
        case ast.BinOp(left=left, op=operator, right=right):
            return _apply_operator(
                operator, _to_sympy(left, evaluate), _to_sympy(right, evaluate), evaluate
            )
    raise ValueError(f"{ast.unparse(node)!r:.40} is not a number, a name or an operation on them")


def _apply_operator(operator: ast.operator, left: Any, right: Any, evaluate: bool) -> Any:
    import sympy

    # The operators of Python would evaluate: 2 - 3 is built as 2 + (-1) * 3, 2 / 3 as 2 * 3 ** -1.
    if isinstance(operator, ast.Sub):
        right = sympy.Mul(-1, right, evaluate=evaluate)
    if isinstance(operator, ast.Div):
        right = sympy.Pow(right, -1, evaluate=evaluate)
    classes = {ast.Add: sympy.Add, ast.Sub: sympy.Add, ast.Mult: sympy.Mul, ast.Div: sympy.Mul}
    sympy_class = {**classes, ast.Pow: sympy.Pow}.get(type(operator))
    if sympy_class is None:
        raise ValueError(f"{type(operator).__name__} is not one of the five operations")
    return sympy_class(left, right, evaluate=evaluate)


TOLERANCE = 1e-4
"""Relative difference up to which two numbers count as equal."""


def same_expression(answer: str, gold: str) -> bool:
    """Returns True if sympy can show that two expressions (LaTeX or typed) are equal: by form, by
    simplifying their difference, or by value."""
    first, second = _parse_expression(answer), _parse_expression(gold)
    if first is None or second is None:
        return False
    tests = (_equal_by_form, _equal_by_difference, _equal_by_sides, _equal_by_value)
    return any(_result_or_none(test, first, second) for test in tests)


def _parse_expression(text: str) -> Any:
    """Parses a text as LaTeX, or else as a typed expression. Returns None if it is neither.

    Text after the LaTeX is ignored, as in the harness: an answer of `1` equals a gold `1,-2`.
    """
    from sympy.parsing.latex import parse_latex

    text = text.replace("\\\\", "\\")
    parsed = _result_or_none(parse_latex, text)
    return _result_or_none(expression, text) if parsed is None else parsed


def _result_or_none(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function. Returns its result, or None if it raises any error."""
    try:
        return function(*arguments)
    except Exception as error:  # sympy and its parsers raise many types for input they do not know
        logging.getLogger(__name__).debug("%s: %s", arguments, error)
        return None


def _equal_by_form(first: Any, second: Any) -> bool:
    return str(first) == str(second) or first == second


def _equal_by_difference(first: Any, second: Any) -> bool:
    import sympy

    return bool(first.equals(second)) or bool(sympy.simplify(first - second) == 0)


def _equal_by_sides(first: Any, second: Any) -> bool:
    """Compares two relations, such as equations, by the difference of their sides, up to sign."""
    return bool(abs(first.lhs - first.rhs).equals(abs(second.lhs - second.rhs)))


def _equal_by_value(first: Any, second: Any) -> bool:
    import sympy

    return math.isclose(float(sympy.N(first)), float(sympy.N(second)), rel_tol=TOLERANCE)


_ENCLOSED = re.compile(r"[(\[].+[)\]]")
_MATRIX = re.compile(r"\\begin\{[pb]matrix\}(.*)\\end\{[pb]matrix\}")
_BRACKETS = str.maketrans("", "", "{}()")


def matches(answer: str, gold: str) -> bool:
    """Returns True if an answer equals the gold answer. Of the rules below, the first that applies
    decides.

    Calls the symbolic comparison, which may take unlimited time and memory; `judge` limits both.
    """
    answer, gold = answer.strip(), gold.strip()
    if answer.lower() == gold.lower():
        return True
    number, gold_number = _number(answer), _number(gold)
    if number is not None and gold_number is not None:
        return any(
            math.isclose(number, value, rel_tol=TOLERANCE)
            for value in (gold_number, gold_number / 100, gold_number * 100)  # a percentage, or not
        )
    if not answer:
        return False
    if "pmatrix" in answer and "pmatrix" not in gold:
        gold = _lists_to_matrices(gold)
    return _same_text(answer, gold) or _same_parts(answer, gold) or _same_sides(answer, gold)


def _number(text: str) -> float | None:
    """Reads a number with or without commas, and 50% as 0.5. Returns None for another text."""
    text = text.replace(",", "")
    try:
        if text.endswith("%"):
            return float(text.removesuffix("%").removesuffix("\\")) / 100
        return float(text)
    except ValueError:
        return None


def _lists_to_matrices(text: str) -> str:
    """Writes a list of elements, and each list in it, as matrices of one column. One backslash
    separates the elements, as in the harness, so the result never equals a correctly written
    matrix."""
    rows = re.findall(r"\{.*,.*\}", text)
    return ", ".join(
        rf"\begin{{pmatrix}}{row.strip('{}').replace(',', chr(92))}\end{{pmatrix}}" for row in rows
    )


def _same_text(answer: str, gold: str) -> bool:
    """Compares two texts without case and brackets."""
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
    return [line.split("&") for line in map(str.strip, matrix.split("\\\\")) if line]


def _all_match(answers: list[str], golds: list[str]) -> bool:
    return len(answers) == len(golds) and all(map(matches, answers, golds))


def _same_sides(answer: str, gold: str) -> bool:
    """Compares two equations by the difference of their sides, up to sign, and an assignment by its
    right side. If that does not show them to be equal, compares both texts as expressions."""
    sides, gold_sides = answer.split("="), gold.split("=")
    if len(sides) == len(gold_sides) == 2:
        difference, gold_difference = (
            f"{left.strip()} - ({right.strip()})" for left, right in (sides, gold_sides)
        )
        is_same = same_expression(difference, gold_difference)
        is_same = is_same or same_expression(f"-({difference})", gold_difference)
    elif _is_assignment(sides) and len(gold_sides) == 1:
        is_same = matches(sides[1], gold)
    elif _is_assignment(gold_sides) and len(sides) == 1:
        is_same = matches(answer, gold_sides[1])
    else:
        is_same = False
    return is_same or same_expression(answer, gold)


def _is_assignment(sides: list[str]) -> bool:
    return len(sides) == 2 and len(sides[0].strip()) <= 2


# The rules of `_normalize_once`. Their order is part of them: a later one reads the result of an
# earlier one.
_MATRICES = (
    (re.compile(r"\\begin\{array\}\{.*?\}"), r"\\begin{pmatrix}"),
    (re.compile(r"\\end\{array\}"), r"\\end{pmatrix}"),
)
_SPELLINGS = (
    ("bmatrix", "pmatrix"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    (r"\left", ""),
    (r"\right", ""),
    (r"\{", "{"),
    (r"\}", "}"),
)
_SIGNS = ((r"^{\circ}", ""), (r"^\circ", ""), (r"\$", ""), ("$", ""))
# Removed as the start of an assignment, "x=" or "y\in", wherever it stands in the text.
_ASSIGNMENTS = tuple(
    (name + relation, "") for relation in ("=", r"\in", r"\to") for name in ("x", "y", "z")
)
_SYMBOLS = (
    (r"\emptyset", "{}"),
    (r"(-\infty,\infty)", r"\mathbb{R}"),
    (r"\%", ""),
    ("%", ""),
    (" .", " 0."),
    ("{.", "{0."),
)
_WORDS = (("and", ""), (r"\mathbf", ""))
_LETTER = re.compile("[A-Za-z]")
_UNIT_TEXT = re.compile(r"\\text\{.*?\}$")
_TEXT = re.compile(r"\\text\{(.*?)\}")
_BOX = re.compile(r"\\mbox\{.*?\}")
_NO_FRACTION = re.compile(r"(\d+)\.0*([^\d]|$)")
_BARE_ROOT = re.compile(r"\\sqrt(\w+)")
_INTEGER = re.compile(r"0|-?[1-9]\d*")


def normalize(answer: object) -> str:
    r"""Returns an answer of a model or a benchmark in one normal spelling, for comparison.

    It makes two passes, as the harness does: the first removes all blanks, so more rules apply in
    the second.
    An answer that is only a unit (`\text{east}`) becomes empty.
    """
    return _normalize_once(_normalize_once(str(answer)))


def _normalize_once(answer: str) -> str:
    text = answer.strip().replace("\n", "").rstrip(".").replace(r"\!", "")
    for pattern, spelling in _MATRICES:
        text = pattern.sub(spelling, text)
    text = _replace_all(text, _SPELLINGS)
    text = _UNIT_TEXT.sub("", text).strip() or text
    text = _without_units(text)
    text = _spelled_number_in_digits(_replace_all(text, _SIGNS))
    text = _replace_all(_TEXT.sub(r"\1", text), _ASSIGNMENTS)
    text = _replace_all(text, _SYMBOLS).replace("infinity", r"\infty")
    if r"\infty" not in text:
        text = text.replace("inf", r"\infty")
    text = _BOX.sub("", _replace_all(text, _WORDS))
    if "j" in text and "i" not in text:
        text = text.replace("j", "i")
    text = _NO_FRACTION.sub(r"\1\2", text)
    if text.startswith("."):
        text = f"0{text}"
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        text = value
    text = _BARE_ROOT.sub(r"\\sqrt{\1}", text).replace(" ", "")
    return _slash_as_fraction(_with_braced_fractions(text))


def _replace_all(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _without_units(text: str) -> str:
    """Deletes unit words between non-word characters, but never the whole text."""
    if not _LETTER.search(text):  # every unit has one
        return text
    for _ in range(2):  # a match takes the character that the next match would begin with
        for literal, pattern in _unit_patterns():
            if literal in text:  # a tenth of the time of a search that finds nothing
                text = pattern.sub(r"\1\2", text) or text
    return text


@cache
def _unit_patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Returns the pattern of each unit word in the order of the file, then of each with an s.
    Before each stands the longest literal that a matching text contains; a dot in a word matches
    any character."""
    lines = resources.files(__package__).joinpath("units.txt").read_text("utf-8").splitlines()
    words = [line for line in lines if line and not line.startswith("#")]
    return [
        (max(word.split("."), key=len), re.compile(rf"(^|\W){word}($|\W)"))
        for word in [*words, *(f"{word}s" for word in words)]
    ]


def _spelled_number_in_digits(text: str) -> str:
    """Returns the number that a text spells out, other words ignored, or else the text."""
    from word2number import w2n

    try:
        return str(w2n.word_to_num(text))
    except (ValueError, IndexError):
        return text


def _with_braced_fractions(text: str) -> str:
    r"""Writes `\frac12` with braces. A text in which a fraction ends before its denominator stays
    as it is."""
    first, *fractions = text.split(r"\frac")
    braced = [first]
    for fraction in fractions:
        if fraction.startswith("{"):
            braced.append(fraction)
        elif len(fraction) < 2:
            return text
        else:
            numerator, denominator, following = fraction[0], fraction[1], fraction[2:]
            denominator = denominator if denominator == "{" else f"{{{denominator}}}"
            braced.append(f"{{{numerator}}}{denominator}{following}")
    return r"\frac".join(braced)


def _slash_as_fraction(text: str) -> str:
    r"""Writes `a/b` as `\frac{a}{b}` if a and b are integers or contain a root."""
    terms = text.split("/")
    if len(terms) == 2 and all("sqrt" in term or _INTEGER.fullmatch(term) for term in terms):
        return rf"\frac{{{terms[0]}}}{{{terms[1]}}}"
    return text


NO_CHOICE = "placeholder"
"""Stands in for the letter if a completion chooses none; it never equals a gold answer."""

_CHOICE = re.compile(r"answer is \(?([a-e])")
_NUMBER = re.compile(r"-?\d*\.?\d+")


def extract_answer(completion: str, *, choice: bool) -> str:
    """Returns the normalised answer of a completion. With `choice`, it is A to E or `NO_CHOICE`."""
    if choice:  # as in the harness, "the answer is below" gives B
        solution = completion.split("Problem:", 1)[0]  # a model may invent a next problem
        letter = _CHOICE.search(solution.replace("choice is", "answer is").lower())
        return letter[1].upper() if letter else NO_CHOICE
    answer = re.sub(r"\n\s*", "", answer_part(completion))
    return normalize(answer.removeprefix(":").removesuffix(".").removesuffix("/"))


def answer_part(completion: str) -> str:
    """Returns the part of a completion that states the answer, by the first rule that applies."""
    if "final answer is $" in completion and "$. I hope" in completion:
        return completion.split("final answer is $", 1)[1].split("$. I hope", 1)[0].strip()
    for opening, answer in (
        ("boxed", in_box),
        ("he answer is", str.strip),
        ("final answer is", str.strip),
    ):
        _, is_present, following = completion.rpartition(opening)
        if is_present:
            return answer(following)
    numbers = _NUMBER.findall(completion.replace(",", ""))
    return numbers[-1] if numbers else ""


def in_box(following: str) -> str:
    r"""Returns the content of a box, from the text that follows `\boxed`: the content of the
    balanced braces that begin it, or else the text before its next `$`."""
    if not following.startswith("{"):
        return following.split("$", 1)[0].strip()
    depth = 0
    for index, character in enumerate(following):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return following[1:index]
    return following[1:]  # a completion that was truncated closes no brace
