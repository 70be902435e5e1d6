"""Answers as expressions. LaTeX and typed expressions are parsed; nothing is evaluated as Python.

Parsing and comparing may take unlimited time and memory, or end the process: see `judging`.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

from vocagno.evaluation.typed import expression

TOLERANCE = 1e-4
"""Relative tolerance for numbers."""


def same_expression(one: str, other: str) -> bool:
    """Whether sympy can show that two expressions (LaTeX or typed) are equal: by form, by
    simplifying their difference, or by value."""
    first, second = _parsed(one), _parsed(other)
    if first is None or second is None:
        return False
    return any(
        _tried(test, first, second) for test in (_by_form, _by_difference, _by_sides, _by_value)
    )


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
