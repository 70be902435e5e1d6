"""Answers as expressions. LaTeX, and what one types, are parsed; nothing is evaluated as Python.

Both parsing and comparing may take any time and memory, or end the process: see `judging`.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

from vocagno.evaluation.typed import expression

TOLERANCE = 1e-4
"""Relative, of numbers."""


def same_expression(one: str, other: str) -> bool:
    """Whether two expressions, in LaTeX or as one types them, are equal as far as sympy can tell:
    by form, by simplifying their difference, or by value."""
    first, second = _parsed(one), _parsed(other)
    if first is None or second is None:
        return False
    return any(
        _tried(test, first, second) for test in (_by_form, _by_difference, _by_sides, _by_value)
    )


def _parsed(text: str) -> Any:
    """The LaTeX that a text begins with; else what it is as one types it; else None.

    What follows behind LaTeX is not looked at, as there: an answer of `1` equals a gold `1,-2`.
    """
    from sympy.parsing.latex import parse_latex

    text = text.replace("\\\\", "\\")
    found = _tried(parse_latex, text)
    return _tried(expression, text) if found is None else found


def _tried(function: Callable[..., Any], *arguments: Any) -> Any:
    """What comes of it, or None: sympy and its parsers raise errors of any kind for what they do
    not know."""
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
    """Of two relations."""
    return bool(abs(first.lhs - first.rhs).equals(abs(second.lhs - second.rhs)))


def _by_value(first: Any, second: Any) -> bool:
    import sympy

    return math.isclose(float(sympy.N(first)), float(sympy.N(second)), rel_tol=TOLERANCE)
