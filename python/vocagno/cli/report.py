"""`vocagno report`: one page of training runs."""

import sys
from pathlib import Path
from typing import Any


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
