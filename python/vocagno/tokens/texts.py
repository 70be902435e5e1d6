"""Texts that are given to a tokenizer: lists and arrays of strings, checked."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from vocagno.errors import InputError


class TextError(InputError):
    """Text cannot be encoded as UTF-8."""


class Strings(Protocol):
    """An array of strings: NumPy's, a pandas Series, a pyarrow Array or ChunkedArray."""

    def __iter__(self) -> Iterator[Any]:
        """Its strings, or scalars that contain them."""
        ...


Texts: TypeAlias = Sequence[str] | Strings
"""B texts."""


def checked_texts(texts: Texts) -> list[str]:
    """The texts as a list.

    Raises: TypeError for a single string and for a value that is not a string, naming it; TextError
        for a lone surrogate, naming the text.
    """
    if isinstance(texts, str) or type(texts).__name__.endswith("StringScalar"):
        raise TypeError("texts: expected a list of strings, got one string")
    # Otherwise pyarrow arrays give their own scalars.
    values = texts.to_pylist() if hasattr(texts, "to_pylist") else list(texts)
    checked: list[str] = []
    for index, value in enumerate(values):
        text = value if isinstance(value, str) else _from_scalar(value)
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}]: expected a string, got {type(value).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(
                f"texts[{index}]: a lone surrogate at character {error.start} has no UTF-8 bytes; "
                "the text was decoded wrongly, or it is half of a JSON \\u pair"
            ) from error
        checked.append(text)
    return checked


def _from_scalar(value: Any) -> Any:
    """The value of a pyarrow scalar; anything else unchanged."""
    return value.as_py() if hasattr(value, "as_py") else value
