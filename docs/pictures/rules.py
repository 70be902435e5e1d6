"""Draws what each rule does to the held-out loss: rules.svg, on four texts, and real.svg, with
pretrained models.

    PYTHONPATH=. python docs/pictures/rules.py    # in the folder of the project; needs vocagno[viz]

From the runs in docs/study/guidance and docs/study/real.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from research.style import tidy
from vocagno.views.figure import COLOURS, save

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Picture:
    """The bars of some variants of a study, a panel for each text."""

    study: str
    """Folder below docs/study."""
    texts: dict[str, str]
    """Titles of the panels, by the folders of the texts."""
    rules: dict[str, str]
    """Labels of the bars, by variant, from the top down."""
    highlighted: tuple[str, ...]
    limits: tuple[float, float]
    """Ends of the axis, in nats a token."""
    ticks: tuple[float, ...]


PICTURES = {
    "rules": Picture(
        "guidance",
        {
            "clean": "clean text",
            "junk": "two thirds of it junk lines",
            "pages": "30 % of it mark-up, menus",
            "swap": "one word in seven replaced",
        },
        {
            "paper": "the paper's rule",
            "random": "words at random (85 %, 45 %)",
            "lines": "default: lines ≤ 2 nats a byte",
            "lines 2.5 and groups -1, like": "in-domain teacher: lines ≤ 2.5,\ngroups ≥ -1",
            "oracle": "all but the known noise",
        },
        ("lines", "lines 2.5 and groups -1, like"),
        (-0.25, 0.2),
        (-0.2, -0.1, 0, 0.1),
    ),
    "real": Picture(
        "real",
        {"clean": "SmolLM2-135M on clean mathematics", "junk": "six tokens in ten are junk"},
        {
            "naive, 88 steps": "all tokens of 1.8 times the text",
            "naive, 88 steps, same text": "all tokens, 1.8 times",
            "paper": "the paper's rule",
            "default": "default: lines ≤ 2 nats a byte",
            "lines 99 %": "lines ≤ 1.8 nats a byte",
            "lines 99 %, groups -1": "the same, and excess ≥ -1",
            "oracle": "all but the known noise",
            "distill": "distill, Gemma as it is",
            "distill, adapted": "distill, Gemma of the domain",
            "distill, adapted, live": "the same, live",
            "lines, distill": "distill, on lines ≤ 1.8",
        },
        ("default", "lines 99 %, groups -1", "distill, adapted", "lines, distill"),
        (-0.3, 0.1),
        (-0.2, -0.1, 0),
    ),
}


def differences(folder: Path) -> dict[str, list[float]]:
    """Held-out losses less those of naive training, order by order."""
    with (folder / "runs.csv").open(encoding="utf-8") as file:
        losses = {
            (run["variant"], run["seed"]): float(run["held_out_loss"])
            for run in csv.DictReader(file)
        }
    found: dict[str, list[float]] = {}
    for (variant, seed), loss in losses.items():
        found.setdefault(variant, []).append(loss - losses["naive", seed])
    return found


def draw(picture: Picture) -> Figure:
    height = 0.7 + 0.4 * len(picture.rules)
    width = 2 + max(4.2, 2.1 * len(picture.texts))
    figure = Figure(figsize=(width, height), layout="constrained")
    (axes,) = figure.subplots(1, len(picture.texts), sharex=True, sharey=True, squeeze=False)
    for panel, (text, title) in zip(axes, picture.texts.items(), strict=True):
        _draw_panel(panel, picture, differences(HERE.parent / "study" / picture.study / text))
        panel.set_title(title, fontsize=9)
    axes[0].set_yticks(range(len(picture.rules)), picture.rules.values(), fontsize=8)
    axes[0].invert_yaxis()
    figure.supxlabel(
        "held-out loss less that of naive training (nats a token; left is better)", fontsize=9
    )
    return figure


def _draw_panel(panel: Axes, picture: Picture, by_variant: dict[str, list[float]]) -> None:
    for place, variant in enumerate(picture.rules):
        if variant not in by_variant:
            panel.text(0.008, place, _why_not(variant), va="center", fontsize=7, color="#777777")
            continue
        values = by_variant[variant]
        colour = COLOURS[2] if variant in picture.highlighted else "#999999"
        style: dict[str, Any] = {"height": 0.62, "color": colour}
        mean = fmean(values)
        panel.barh(place, mean, **style)
        panel.plot(values, [place] * len(values), ".", color="#222222", markersize=3)
        ends = min(*values, 0.0) if mean < 0 else max(*values, 0.0)
        side = {"ha": "right"} if mean < 0 else {"ha": "left"}
        shift = -0.008 if mean < 0 else 0.008
        panel.text(ends + shift, place, f"{mean:+.3f}", va="center", fontsize=8, **side)
    panel.axvline(0, color="#555555", linewidth=0.8)
    panel.set_xlim(*picture.limits)
    panel.set_xticks(picture.ticks)
    panel.tick_params(labelsize=8)
    tidy(panel)


def _why_not(variant: str) -> str:
    return "there is none" if variant == "oracle" else "not run"


if __name__ == "__main__":
    for name, picture in PICTURES.items():
        save(draw(picture), HERE / f"{name}.svg")
