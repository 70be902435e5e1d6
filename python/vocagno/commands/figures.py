"""Figures of what runs measured, as PNG or SVG with the numbers behind them as CSV."""

import sys
from pathlib import Path
from typing import Any

from vocagno.wording import in_table

_COLUMNS = ("run", "steps", "tokens", "loss", "validation", "best validation", "tokens/s")


def add_run(parser: Any) -> None:
    """Draws the learning curves of training runs, and compares them in a table."""
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="the `output` of a training run"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("curves.svg"),
        help="file for the figure, .svg or .png; the numbers go beside it, as .csv",
    )  # fmt: skip


def run(options: Any) -> dict[str, Any] | None:
    """Writes figure and CSV; gives the comparison as data, or prints it as a table."""
    from vocagno.figures.learning_curves import draw_learning_curves
    from vocagno.figures.style import check_format, save
    from vocagno.learning_curves import read_runs, write_csv

    out = options.out
    check_format(out, "--out")
    runs = read_runs(options.folders)
    figure, _ = draw_learning_curves(runs)
    data = out.with_suffix(".csv")
    save(figure, out)
    write_csv(data, runs)
    if options.json:
        return {"figure": str(out), "data": str(data), "runs": [run.as_dict() for run in runs]}
    print(in_table([_COLUMNS, *(_line(run.as_dict()) for run in runs)]))
    print(f"{out}\n{data}", file=sys.stderr)
    return None


def _line(found: dict[str, Any]) -> tuple[str, ...]:
    """Of a run, losses in nats a token."""
    losses = ("last_loss", "last_validation_loss", "best_validation_loss")
    return (
        found["run"],
        f"{found['steps']:,}",
        f"{found['tokens']:,}",
        *(_worded(found[name], ".4f") for name in losses),
        _worded(found["mean_tokens_per_s"], ",.0f"),
    )


def _worded(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
