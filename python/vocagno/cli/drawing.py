"""What the commands that draw have in common: terminal, `--out`, numbers beside a figure."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_in_terminal(picture: Any) -> None:
    """Prints what rich can draw.

    Raises: InputError for an output whose encoding lacks the signs.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if console.options.ascii_only:  # not UTF-8: other encodings may have the signs
        with console.capture() as drawn:
            console.print(picture)
        try:
            drawn.get().encode(console.encoding)
        except UnicodeEncodeError as error:
            raise InputError(
                f"the terminal's encoding, {console.encoding}, cannot show the picture; set "
                "PYTHONIOENCODING=utf-8 if the terminal can, or draw a page: --html FILE"
            ) from error
    console.print(picture)


def add_out(parser: Any, default: str) -> None:
    """Where the figure goes, and with it the numbers."""
    parser.add_argument(
        "--out", type=Path, default=Path(default),
        help="file for the figure, .svg or .png; the numbers go beside it, as .csv",
    )  # fmt: skip


def check_out(out: Path) -> None:
    """Refuses what cannot be drawn into, before anything is read."""
    from vocagno.paper.figures.style import check_format

    check_format(out, "--out")


def draw_with_numbers(
    figure: "Figure", out: Path, write_numbers: Callable[[Path], None]
) -> list[Path]:
    """Writes a figure, and the numbers beside it."""
    from vocagno.paper.figures.style import save

    data = out.with_suffix(".csv")
    save(figure, out)
    write_numbers(data)
    return [out, data]
