"""`vocagno train`."""

from typing import Any


def add_train(parser: Any) -> None:
    """Train a student under a teacher, as configured.

    The configuration comes from YAML files and options; later ones override earlier ones. For
    several processes: accelerate launch -m vocagno train ...
    """
    from vocagno.training.configuration import add_options

    add_options(parser)


def train(options: Any) -> int:
    """Trains until the run is complete or stopped; the exit status."""
    from vocagno.training import main
    from vocagno.training.configuration import as_config

    return main.train(as_config(options))
