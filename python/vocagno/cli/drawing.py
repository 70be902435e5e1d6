"""Shared code of the commands that draw: terminal, `--out`, a figure and its numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_in_terminal(picture: Any) -> None:
    """Prints an object that rich can draw.

    Raises: InputError if the encoding of the output lacks the signs.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if console.options.ascii_only:  # not UTF-8; other encodings may have the signs
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
    """Adds `--out`, the file of the figure."""
    words = "file for the figure, .svg or .png; the numbers go next to it, as .csv"
    parser.add_argument("--out", type=Path, default=Path(default), help=words)


def check_out(out: Path) -> None:
    """Refuses a file of another format, before anything is read."""
    from vocagno.paper.figures.style import check_format

    check_format(out, "--out")


def draw_with_numbers(
    figure: "Figure", out: Path, write_numbers: Callable[[Path], None]
) -> list[Path]:
    """Writes a figure, and its numbers next to it."""
    from vocagno.paper.figures.style import save

    data = out.with_suffix(".csv")
    save(figure, out)
    write_numbers(data)
    return [out, data]
