"""Extracts, normalises and compares answers, by the rules of the paper's harness.

Nothing is evaluated as Python. Parsing and comparing may take unlimited time and memory, or end the
process: see `judge`.
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
    return _read(ast.parse(text.strip(), mode="eval").body, evaluate)


def _read(node: ast.expr, evaluate: bool) -> Any:
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
            return frozenset(_read(element, evaluate) for element in elements)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _read(operand, evaluate)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return sympy.Mul(-1, _read(operand, evaluate), evaluate=evaluate)
        case ast.BinOp(left=left, op=operator, right=right):
            return _combined(operator, _read(left, evaluate), _read(right, evaluate), evaluate)
    raise ValueError(f"{ast.unparse(node)!r:.40} is not a number, a name or an operation on them")


def _combined(operator: ast.operator, one: Any, other: Any, evaluate: bool) -> Any:
    import sympy

    if isinstance(operator, ast.Sub):
        other = sympy.Mul(-1, other, evaluate=evaluate)
    if isinstance(operator, ast.Div):
        other = sympy.Pow(other, -1, evaluate=evaluate)
    kinds = {ast.Add: sympy.Add, ast.Sub: sympy.Add, ast.Mult: sympy.Mul, ast.Div: sympy.Mul}
    kind = {**kinds, ast.Pow: sympy.Pow}.get(type(operator))
    if kind is None:
        raise ValueError(f"{type(operator).__name__} is not one of the five operations")
    return kind(one, other, evaluate=evaluate)


TOLERANCE = 1e-4
"""Relative tolerance for numbers."""


def same_expression(one: str, other: str) -> bool:
    """Whether sympy can show that two expressions (LaTeX or typed) are equal: by form, by
    simplifying their difference, or by value."""
    first, second = _parsed(one), _parsed(other)
    tests = (_by_form, _by_difference, _by_sides, _by_value)
    is_read = first is not None and second is not None
    return is_read and any(_tried(test, first, second) for test in tests)


def _parsed(text: str) -> Any:
    """The LaTeX at the start of a text; else the typed expression; else None.

    Text after the LaTeX is ignored, as in the harness: an answer of `1` equals a gold `1,-2`.
    """
    from sympy.parsing.latex import parse_latex

    text = text.replace("\\\\", "\\")
    found = _tried(parse_latex, text)
    return _tried(expression, text) if found is None else found


def _tried(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or None on any error: sympy and its parsers raise many types of errors for input
    that they do not know."""
    try:
        return function(*arguments)
    except Exception as error:
        logging.getLogger(__name__).debug("%s: %s", arguments, error)
        return None


def _by_form(first: Any, second: Any) -> bool:
    return str(first) == str(second) or first == second


def _by_difference(first: Any, second: Any) -> bool:
    import sympy

    return bool(first.equals(second)) or bool(sympy.simplify(first - second) == 0)


def _by_sides(first: Any, second: Any) -> bool:
    """Compares the differences of sides of two relations."""
    return bool(abs(first.lhs - first.rhs).equals(abs(second.lhs - second.rhs)))


def _by_value(first: Any, second: Any) -> bool:
    import sympy

    return math.isclose(float(sympy.N(first)), float(sympy.N(second)), rel_tol=TOLERANCE)


_ENCLOSED = re.compile(r"[(\[].+[)\]]")
_MATRIX = re.compile(r"\\begin\{[pb]matrix\}(.*)\\end\{[pb]matrix\}")
_BRACKETS = str.maketrans("", "", "{}()")


def matches(answer: str, gold: str) -> bool:
    """Whether an answer equals the gold answer. The first of the rules below that applies decides.

    Calls the symbolic comparison, which may take unlimited time and memory; `judge` limits both.
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
        if text.endswith("%"):
            return float(text.removesuffix("%").removesuffix("\\")) / 100
        return float(text)
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
    return [line.split("&") for line in map(str.strip, matrix.split("\\\\")) if line]


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
_ASSIGNED = tuple(
    (name + relation, "") for relation in ("=", r"\in", r"\to") for name in ("x", "y", "z")
)
_NAMES = (
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


def normalized(answer: object) -> str:
    r"""An answer of a model or a benchmark in the normalized spelling, for comparison.

    Two passes, as in the harness: the first removes all blanks, so more rules apply in the second.
    An answer that is only a unit (`\text{east}`) becomes empty.
    """
    return _pass(_pass(str(answer)))


def _pass(answer: str) -> str:
    text = answer.strip().replace("\n", "").rstrip(".").replace(r"\!", "")
    for pattern, spelling in _MATRICES:
        text = pattern.sub(spelling, text)
    text = _replaced(text, _SPELLINGS)
    text = _UNIT_TEXT.sub("", text).strip() or text
    text = _without_units(text)
    text = _in_digits(_replaced(text, _SIGNS))
    text = _replaced(_TEXT.sub(r"\1", text), _ASSIGNED)
    text = _replaced(text, _NAMES).replace("infinity", r"\infty")
    if r"\infty" not in text:
        text = text.replace("inf", r"\infty")
    text = _BOX.sub("", _replaced(text, _WORDS))
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


def _replaced(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _without_units(text: str) -> str:
    """Deletes unit words between non-word characters, but never the whole text.

    Runs twice, because a match takes the character that the next match would begin with.
    """
    if not _LETTER.search(text):  # every unit has one
        return text
    for _ in range(2):
        for part, pattern in _units():
            if part in text:  # a tenth of the time of a search that finds nothing
                text = pattern.sub(r"\1\2", text) or text
    return text


@cache
def _units() -> list[tuple[str, re.Pattern[str]]]:
    """The words in their order, then each with an s, behind the longest part of it that a text must
    have. A dot in a word matches any character."""
    lines = resources.files(__package__).joinpath("units.txt").read_text("utf-8").splitlines()
    words = [line for line in lines if line and not line.startswith("#")]
    return [
        (max(word.split("."), key=len), re.compile(rf"(^|\W){word}($|\W)"))
        for word in [*words, *(f"{word}s" for word in words)]
    ]


def _in_digits(text: str) -> str:
    """The number that a text spells out, if any (other words are ignored); else the text."""
    from word2number import w2n

    try:
        return str(w2n.word_to_num(text))
    except (ValueError, IndexError):
        return text


def _with_braced_fractions(text: str) -> str:
    r"""`\frac12` with braces; unchanged if a fraction ends before its denominator."""
    first, *fractions = text.split(r"\frac")
    braced = [first]
    for fraction in fractions:
        if fraction.startswith("{"):
            braced.append(fraction)
        elif len(fraction) < 2:
            return text
        else:
            above, below, rest = fraction[0], fraction[1], fraction[2:]
            below = below if below == "{" else f"{{{below}}}"
            braced.append(f"{{{above}}}{below}{rest}")
    return r"\frac".join(braced)


def _slash_as_fraction(text: str) -> str:
    r"""`a/b` of integers (or roots) as `\frac{a}{b}`."""
    above, slash, below = text.partition("/")
    parts = (above, below)
    if slash and "/" not in below and all("sqrt" in p or _INTEGER.fullmatch(p) for p in parts):
        return rf"\frac{{{above}}}{{{below}}}"
    return text


NO_CHOICE = "placeholder"
"""Stands in for the letter if a completion chooses none; it never equals a gold answer."""

_CHOICE = re.compile(r"answer is \(?([a-e])")
_NUMBER = re.compile(r"-?\d*\.?\d+")


def extracted(completion: str, *, choice: bool) -> str:
    """The normalised answer of a completion: with `choice`, A to E or `NO_CHOICE`."""
    if choice:  # as in the harness, "the answer is below" gives B
        own = completion.split("Problem:", 1)[0].replace("choice is", "answer is").lower()
        found = _CHOICE.search(own)
        return found[1].upper() if found else NO_CHOICE
    answer = re.sub(r"\n\s*", "", answer_part(completion))
    return normalized(answer.removeprefix(":").removesuffix(".").removesuffix("/"))


def answer_part(completion: str) -> str:
    """The part of a completion that states the answer, by the first rule that applies."""
    if "final answer is $" in completion and "$. I hope" in completion:
        return completion.split("final answer is $", 1)[1].split("$. I hope", 1)[0].strip()
    for opening, answer in (
        ("boxed", in_box),
        ("he answer is", str.strip),
        ("final answer is", str.strip),
    ):
        _, found, behind = completion.rpartition(opening)
        if found:
            return answer(behind)
    numbers = _NUMBER.findall(completion.replace(",", ""))
    return numbers[-1] if numbers else ""


def in_box(behind: str) -> str:
    """The content of the balanced braces that begin a text, or the text before its next `$`."""
    if not behind.startswith("{"):
        return behind.split("$", 1)[0].strip()
    depth = 0
    for index, character in enumerate(behind):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return behind[1:index]
    return behind[1:]
