"""Lines, grids and legends that all figures share."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vocagno.views.figure import COLOURS

MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":")


def line_style(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of a line; no two of the first 56 agree in all of them."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def tidy(axes: Axes) -> None:
    """A faint grid, and no frame above and on the right."""
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def shared_legend(figure: Figure, panel: Axes, **words: Any) -> None:
    """A legend in one line above all panels, which have the lines of one of them."""
    handles, labels = panel.get_legend_handles_labels()
    words = {"loc": "outside upper center", "ncols": len(labels), "frameon": False} | words
    figure.legend(handles, labels, **words)
