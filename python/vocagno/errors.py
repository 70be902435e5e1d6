"""The base of the errors that are about what the user gave us."""

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Something given to vocagno is wrong; the message says what, where and how to mend it.

    The commands print it as one line and exit with status 2.
    """


class GuidanceError(InputError):
    """A run that would not be what it says: a teacher that covers too little, a loss of NaN."""


class ConfigError(InputError):
    """An option, or two together, that make no sense; names them."""


def require(condition: bool, message: str) -> None:
    """Raises: ConfigError with the message, unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def require_at_least(least: int, section: str, options: object, *names: str) -> None:
    """Raises: ConfigError for the first of these options that is below a number; None passes."""
    for name in names:
        value = getattr(options, name)
        require(
            value is None or value >= least,
            f"{section}.{name} must be at least {least}, got {value}",
        )


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
