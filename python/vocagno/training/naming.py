"""Whose fault it was when a library fails."""

from collections.abc import Iterator
from contextlib import contextmanager

from vocagno.errors import ConfigError, InputError


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Says which option made a library fail, whatever it raises.

    transformers raises errors of many kinds for a wrong name, a damaged file or a wrong field.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise ConfigError(f"{option}: {type(error).__name__}: {error}") from error
