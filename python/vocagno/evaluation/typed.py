"""Typed expressions such as `-3/4 + 2*x`, parsed by Python's grammar; nothing is evaluated."""

import ast
from functools import partial
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

    add, multiply, power = (
        partial(kind, evaluate=evaluate) for kind in (sympy.Add, sympy.Mul, sympy.Pow)
    )
    match operator:
        case ast.Add():
            return add(one, other)
        case ast.Sub():
            return add(one, multiply(-1, other))
        case ast.Mult():
            return multiply(one, other)
        case ast.Div():
            return multiply(one, power(other, -1))
        case ast.Pow():
            return power(one, other)
    raise ValueError(f"{type(operator).__name__} is not one of the five operations")
