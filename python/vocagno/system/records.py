"""Checks values that came as JSON against types, once, where they enter.

A type is `int`, `Count`, `float`, `Finite`, `str`, `Any`, `list[...]`, `dict[str, ...]`,
`... | None`, a `TypedDict`, or `tuple[...]`: a list of at least these. Other fields and parts are
ignored.
"""

import math
import sys
from collections.abc import Callable
from functools import cache
from itertools import repeat
from types import NoneType
from typing import Any, NewType, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")

Count = NewType("Count", int)
"""A whole number that is 0 or more."""
Finite = NewType("Finite", float)
"""A number that is neither NaN nor infinite."""

_INT64 = 2**63
_MAX_SHOWN = 40
"""The number of characters of a wrong value that an error shows."""


def check_type(kind: type[T], value: Any, error: Callable[[str], Exception]) -> T:
    """Returns the value itself if it has the type. Missing fields that may be None become None.

    Args: error: makes an exception of a sentence on the first fault, such as "rows[2].loss:
        expected a number, got null"."""
    if fault := _fault(kind, value):
        raise error(fault.removeprefix(".").removeprefix(": "))
    typed: T = value
    return typed


def _fault(kind: Any, value: Any) -> str:
    """Describes the first fault and where it is; "" if there is none."""
    origin, inner, fields = _form(kind)
    if NoneType in inner:
        return "" if value is None else _fault(inner[inner[0] is NoneType], value)
    if kind in _SCALARS:
        words, has_type = _SCALARS[kind]
        return "" if has_type(value) else _describe_mismatch(words, value)
    if origin in (list, tuple):
        if not isinstance(value, list):
            return _describe_mismatch("a list", value)
        if origin is tuple and len(value) < len(inner):
            return f": expected a list of at least {len(inner)}, got one of {len(value)}"
        kinds = inner if origin is tuple else repeat(inner[0])
        for number, (part_kind, part) in enumerate(zip(kinds, value, strict=False)):
            if fault := _fault(part_kind, part):
                return f"[{number}]{fault}"
        return ""
    if not isinstance(value, dict):
        return _describe_mismatch("an object", value)
    if origin is dict:
        for name, part in value.items():
            if fault := _fault(str, name) or _fault(inner[1], part):
                return f"[{_short(name)}]{fault}"
        return ""
    for name, field_kind in fields.items():
        if name not in value and NoneType in get_args(field_kind):
            value[name] = None
        if name in value:
            if fault := _fault(field_kind, value[name]):
                return f".{name}{fault}"
        elif name in kind.__required_keys__:
            return f": has no `{name}`"
    return ""


@cache
def _form(kind: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Returns origin and arguments of a type, and the fields of a `TypedDict`."""
    return get_origin(kind), get_args(kind), get_type_hints(kind) if is_typeddict(kind) else {}


def _is_int(value: Any) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64


def _is_float(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)


def _is_text(value: Any) -> bool:
    """Tells whether it is a string that UTF-8 can encode: JSON may hold a lone surrogate."""
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


_SCALARS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    Any: ("anything", lambda value: True),
    Count: ("a whole number, 0 or more", lambda value: _is_int(value) and value >= 0),
    int: ("a whole number", _is_int),
    float: ("a number", _is_float),
    Finite: ("a finite number", lambda value: _is_float(value) and math.isfinite(value)),
    str: ("text", _is_text),
}


def _describe_mismatch(words: str, value: Any) -> str:
    kinds = {list: "a list", dict: "an object", NoneType: "null"}
    return f": expected {words}, got {kinds.get(type(value)) or _short(value)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
