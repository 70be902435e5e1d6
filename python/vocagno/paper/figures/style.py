"""What the figures have in common: colours, legends, counts of tokens on an axis, files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.ticker import FuncFormatter

from vocagno.errors import InputError
from vocagno.system.files import appearing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind people tell apart, but for the yellow, pale on white."""
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":")
FORMATS = (".png", ".svg")


def line_style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of a line; no two of the first 56 agree in all of them."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def plain(name: str) -> str:
    """A name as it is: matplotlib takes $ for mathematics, and hides what begins with a `_`."""
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def tidy(axes: "Axes") -> None:
    """A faint grid, and no frame above and on the right."""
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def write_near(
    axes: "Axes", text: str, place: tuple[float, float], above: float, **style: Any
) -> None:
    """Writes a small text so many points above a place."""
    style |= {"textcoords": "offset points", "ha": "center", "fontsize": 8}
    axes.annotate(text, place, (0, above), **style)


def legend_above(axes: "Axes", **words: Any) -> None:
    """A legend without a frame, above the panel on the left."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, frameon=False, **words)


def shared_legend(figure: "Figure", panel: "Axes", **words: Any) -> None:
    """A legend in one line above all panels, which have the lines of one of them."""
    handles, labels = panel.get_legend_handles_labels()
    words = {"loc": "outside upper center", "ncols": len(labels), "frameon": False} | words
    figure.legend(handles, labels, **words)


def count_tokens(axes: "Axes") -> None:
    """Writes the horizontal axis as 500k, 20M, 15B."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: short_count(count)))
    axes.set_xlabel("predicted tokens")


def short_count(count: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:g}{unit}"
    return f"{count:g}"


def check_format(path: Path, option: str) -> None:
    """Refuses a file that `save` cannot write.

    Raises: InputError naming the option.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{option}: expected a file ending in .png or .svg, got {path}")


def save(figure: "Figure", path: Path) -> None:
    """Writes PNG or SVG, by the suffix; the same figure gives the same bytes."""
    kind = path.suffix.lower().removeprefix(".")
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "vocagno"}), appearing(path) as file:
        figure.savefig(file, format=kind, dpi=160, metadata=metadata)
