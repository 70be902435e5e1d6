"""`vocagno curves`: the learning curves of training runs."""

from pathlib import Path
from typing import Any

from vocagno.paper.outputs import add_out, answer, check_out, worded, write_curves


def add_curves(parser: Any) -> None:
    """Draw the learning curves of training runs, and compare the runs in a table."""
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="the `output` of a training run"
    )
    add_out(parser, "curves.svg")


def curves(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; the runs as data, or a table of them."""
    from vocagno.training.run_log import read_runs

    check_out(options.out)
    runs = read_runs(options.folders)
    files = write_curves(runs, options.out)
    found = [run.as_dict() for run in runs]
    rows = list(map(_row, found))
    return answer(options, files, {"runs": found}, [[*rows[0]], *([*row.values()] for row in rows)])


def _row(found: dict[str, Any]) -> dict[str, str]:
    """Cells by their headings; losses in nats a token."""
    return {
        "run": found["run"],
        "steps": f"{found['steps']:,}",
        "tokens": f"{found['tokens']:,}",
        "loss": worded(found["last_loss"], ".4f"),
        "validation": worded(found["last_validation_loss"], ".4f"),
        "best validation": worded(found["best_validation_loss"], ".4f"),
        "tokens/s": worded(found["mean_tokens_per_s"], ",.0f"),
    }
