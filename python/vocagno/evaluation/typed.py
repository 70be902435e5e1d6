"""Expressions as one types them, `-3/4 + 2*x`, read by Python's grammar; nothing is evaluated."""

import ast
from collections.abc import Callable
from typing import Any


def expression(text: str, *, evaluate: bool = True) -> Any:
    """An expression of numbers, names, brackets and the five operations; a set of such; or a quoted
    text. What stands behind `#` is no part of it.

    Args:
        evaluate: gives `5` for `2 + 3`, not the sum.
    Raises: ValueError or SyntaxError for anything else; MemoryError or RecursionError if too deep.
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
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATIONS:
            sides = _read(left, evaluate), _read(right, evaluate)
            return _OPERATIONS[type(operator)](*sides, evaluate)
    raise ValueError(f"{ast.unparse(node)!r:.40} is no number, name or operation on them")


def _added(one: Any, other: Any, evaluate: bool) -> Any:
    import sympy

    return sympy.Add(one, other, evaluate=evaluate)


def _multiplied(one: Any, other: Any, evaluate: bool) -> Any:
    import sympy

    return sympy.Mul(one, other, evaluate=evaluate)


def _raised(one: Any, other: Any, evaluate: bool) -> Any:
    import sympy

    return sympy.Pow(one, other, evaluate=evaluate)


_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any, bool], Any]] = {
    ast.Add: _added,
    ast.Sub: lambda one, other, evaluate: _added(one, _multiplied(-1, other, evaluate), evaluate),
    ast.Mult: _multiplied,
    ast.Div: lambda one, other, evaluate: _multiplied(one, _raised(other, -1, evaluate), evaluate),
    ast.Pow: _raised,
}
