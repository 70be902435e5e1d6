"""`vocagno train` and `vocagno report`: a run, and one page of several."""

import sys
from pathlib import Path
from typing import Any

from vocagno.config.arguments import check_gpu


def add_train(parser: Any) -> None:
    """Train a student under a teacher, as configured.

    The configuration comes from YAML files and options; later ones override earlier ones. For
    several processes: accelerate launch -m vocagno train ...
    """
    from vocagno.training.configuration import add_command

    add_command(parser)


def train(options: Any) -> dict[str, Any] | int:
    """Trains until the run is complete or stopped; the exit status, or an estimate."""
    from vocagno.training import main
    from vocagno.training.configuration import as_config

    check_gpu(options)
    config = as_config(options)
    return main.dry_run(config, options.gpu) if options.dry_run else main.train(config)


def add_report(parser: Any) -> None:
    """Write one page of training runs: curves, a table, coverage, examples, configuration."""
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="the `output` of a training run"
    )
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="file of the page")


def report(options: Any) -> None:
    """Writes the page. The first run is the one that the others are compared with."""
    from vocagno.training.report import write_report

    write_report(options.folders, options.out)
    print(options.out, file=sys.stderr)
