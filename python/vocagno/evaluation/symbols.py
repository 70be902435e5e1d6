"""Answers as expressions. LaTeX is parsed by a grammar; nothing is evaluated as Python.

Both parsing and comparing may take any time and memory, or end the process: see `judging`.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

TOLERANCE = 1e-4
"""Relative, of numbers."""


def same_expression(one: str, other: str) -> bool:
    """Whether two expressions, in LaTeX or as one types them, are equal as far as sympy can tell:
    by form, by simplifying their difference, or by value."""
    first, second = _parsed(one), _parsed(other)
    if first is None or second is None:
        return False
    return any(
        _holds(test, first, second) for test in (_by_form, _by_difference, _by_sides, _by_value)
    )


def _parsed(text: str) -> Any:
    """The expression that a text begins with, or None if it begins with none.

    What follows behind it is not looked at, as there: an answer of `1` equals a gold `1,-2`.
    """
    from sympy.parsing.latex import parse_latex

    try:
        return parse_latex(text.replace("\\\\", "\\").replace("**", "^"))
    except Exception as error:  # the parser raises errors of any kind for what it does not know
        logging.getLogger(__name__).debug("%s: %s", text, error)
        return None


def _holds(test: Callable[[Any, Any], bool], first: Any, second: Any) -> bool:
    try:
        return test(first, second)
    except Exception as error:  # sympy raises errors of any kind where it cannot tell
        logging.getLogger(__name__).debug("%s, %s: %s", first, second, error)
        return False


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
