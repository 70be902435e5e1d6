"""Base classes of the errors caused by user input."""

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Invalid input to vocagno. The message says what is wrong, where, and how to fix it.

    The commands print it as one line and exit with status 2.
    """


class GuidanceError(InputError):
    """The run would not match its options: teacher coverage is too low, or a loss is NaN."""


class ConfigError(InputError):
    """An option, or a combination of options, is invalid; the message names them."""


def require(condition: bool, message: str) -> None:
    """Raises ConfigError with the message if the condition is false."""
    if not condition:
        raise ConfigError(message)


def require_at_least(least: int, section: str, options: object, *names: str) -> None:
    """Raises ConfigError for the first of these options that is below `least`; None passes."""
    for name in names:
        value = getattr(options, name)
        require(
            value is None or value >= least,
            f"{section}.{name} must be at least {least}, got {value}",
        )


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Turns any error of a library into a ConfigError that names the option.

    transformers raises many types of errors for a wrong name, a damaged file or a wrong field.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise ConfigError(f"{option}: {type(error).__name__}: {error}") from error
