"""The types that options are declared with: whether a value has its type, and the type in words."""

import math
import numbers
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from vocagno.errors import ConfigError

_WORDS = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "text",
    Path: "a path",
}
_ALSO: dict[Any, Any] = {int: numbers.Integral, float: numbers.Real, Path: (Path, str)}
"""What is taken for a type: numbers of NumPy, too, and a path as a file of options has it."""


def check_types(section: str, options: Any) -> None:
    """Checks all fields of a dataclass of options; the first thing in its `__post_init__`.

    Args:
        section: the name of the options in a configuration; "" for those that have none.
    Raises: ConfigError that names the option, its type (or the words that it may be) and the value.
    """
    for field in fields(options):
        value: Any = getattr(options, field.name)
        hint: Any = field.type
        if not _has_type(value, hint):
            option = f"{section}.{field.name}" if section else field.name
            expected = in_words(hint) or hint.__name__
            raise ConfigError(f"{option}: expected {expected}, got {value!r:.80}")


def in_words(hint: Any) -> str:
    """A type in words; "" if there are none for it."""
    inner = get_args(hint)
    words = [in_words(one) for one in inner if one is not NoneType]
    origin = get_origin(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (Union, UnionType):
        return " or ".join(words) + (", or null" if NoneType in inner else "")
    if origin is list:
        return f"a list, each {words[0]}"
    if origin is tuple:
        return f"a list of {len(inner)}, each {words[0]}"
    if is_dataclass(hint):
        return f"options ({', '.join(field.name for field in fields(hint))})"
    return "a mapping of `name: value`" if origin is dict else _WORDS.get(hint, "")


def _has_type(value: Any, hint: Any) -> bool:
    inner, origin = get_args(hint), get_origin(hint)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (Union, UnionType):
        return any(_has_type(value, one) for one in inner)
    if origin is list:
        return isinstance(value, list) and all(_has_type(one, inner[0]) for one in value)
    if origin is tuple:  # a list, as YAML has them
        is_one = isinstance(value, (tuple, list)) and len(value) == len(inner)
        return is_one and all(map(_has_type, value, inner))
    if origin is dict:
        is_one = isinstance(value, dict)
        return is_one and all(all(map(_has_type, item, inner)) for item in value.items())
    if isinstance(value, bool):  # which is an int
        return hint in (bool, Any)
    return hint is Any or (
        isinstance(value, _ALSO.get(hint, hint)) and (hint is not float or math.isfinite(value))
    )
