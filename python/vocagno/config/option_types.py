"""Checks that the options of a dataclass have their declared types, and puts a type in words."""

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
_ACCEPTED: dict[Any, Any] = {int: numbers.Integral, float: numbers.Real, Path: (Path, str)}
"""The types that pass for a declared one: numbers of NumPy, too, and a path that is still text, as
in a file of options."""


def check_types(section: str, options: Any) -> None:
    """Checks all fields of a dataclass of options.

    It is the first call in a `__post_init__`, so that later checks may rely on the types.

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
    """Describes a type in words; "" if there are none for it."""
    inner = get_args(hint)
    words = [in_words(part) for part in inner if part is not NoneType]
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
    """Tells whether a value has a type, of which its items have the inner types."""
    inner, origin = get_args(hint), get_origin(hint)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (Union, UnionType):
        return any(_has_type(value, part) for part in inner)
    if origin is list:
        return isinstance(value, list) and all(_has_type(item, inner[0]) for item in value)
    if origin is tuple:  # YAML has no tuples, only lists
        has_length = isinstance(value, (tuple, list)) and len(value) == len(inner)
        return has_length and all(map(_has_type, value, inner))
    if origin is dict:
        is_dict = isinstance(value, dict)
        return is_dict and all(all(map(_has_type, item, inner)) for item in value.items())
    if isinstance(value, bool):  # Python counts a bool as an int
        return hint in (bool, Any)
    if hint is Any:
        return True
    is_accepted = isinstance(value, _ACCEPTED.get(hint, hint))
    return is_accepted and (hint is not float or math.isfinite(value))
