"""What an option does, a line a teacher (Fig. 7 of arXiv 2503.19123)."""

from matplotlib.figure import Figure

from vocagno.paper.figures.style import line_style, tidy
from vocagno.paper.sweeps import VALIDATION_LOSS, Sweep


def draw_sweep(found: Sweep) -> Figure:
    """Draws the mean of the runs of each value; where there are several, a bar from the lowest to
    the highest of them."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    points = found.points
    for index, teacher in enumerate(dict.fromkeys(point.teacher for point in points)):
        line = [point for point in points if point.teacher == teacher]
        axes.errorbar(
            [point.x for point in line], [point.mean for point in line],
            yerr=[
                [point.mean - point.lowest for point in line],
                [point.highest - point.mean for point in line],
            ],
            **line_style(index), markersize=6, capsize=3, label=teacher.replace("$", r"\$"),
        )  # fmt: skip
    is_loss = found.quantity == VALIDATION_LOSS
    axes.set_ylabel("validation loss (nats per token)" if is_loss else f"{found.quantity} (%)")
    axes.set_xlabel(found.option)
    axes.set_xticks(sorted({point.x for point in points}))
    axes.margins(x=0.06, y=0.12)
    tidy(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, frameon=False, ncols=3)
    return figure
