"""What the commands that draw have in common: `--out`, the numbers next to a figure, the answer."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.system.text_tables import in_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vocagno.training.run_log import Run


def add_out(parser: Any, default: str | None) -> None:
    """Adds the option for the file of the figure."""
    parser.add_argument(
        "--out",
        type=Path,
        default=default and Path(default),
        help="file for the figure, .svg or .png; the numbers go next to it, as .csv",
    )


def check_out(out: Path) -> None:
    """Refuses a file that cannot hold a figure, before anything is read."""
    from vocagno.paper.figures.style import check_format

    check_format(out, "--out")


def write_figure(
    figure: "Figure", out: Path, write_numbers: Callable[[Path], None]
) -> tuple[Path, Path]:
    """Writes a figure, and the numbers next to it."""
    from vocagno.paper.figures.style import save

    data = out.with_suffix(".csv")
    save(figure, out)
    write_numbers(data)
    return out, data


def write_curves(runs: "Sequence[Run]", out: Path) -> tuple[Path, Path]:
    """Writes the learning curves of training runs, and the numbers next to them."""
    from vocagno.paper.figures.learning_curves import draw_learning_curves
    from vocagno.training.run_log import write_csv

    figure, _ = draw_learning_curves(runs)
    return write_figure(figure, out, lambda path: write_csv(path, runs))


def answer(
    options: Any,
    files: tuple[Path, Path],
    data: Mapping[str, Any],
    table: Sequence[Sequence[str]],
) -> dict[str, Any] | None:
    """What a command that drew says: the data with `--json`, else a table and the files."""
    if options.json:
        return {"figure": str(files[0]), "data": str(files[1]), **data}
    print(in_table(table))
    print(*files, sep="\n", file=sys.stderr)
    return None


def worded(value: float | None, form: str) -> str:
    """A number for a table; `-` for None."""
    return "-" if value is None else format(value, form)
