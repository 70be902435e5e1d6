"""Draws rules.svg: what each rule does to the held-out loss, on four texts.

    PYTHONPATH=. python docs/pictures/rules.py    # in the folder of the project; needs vocagno[viz]

From the runs in docs/study/guidance.
"""

import csv
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from research.style import tidy
from vocagno.views.figure import COLOURS, save

HERE = Path(__file__).parent
STUDY = HERE.parent / "study" / "guidance"
TEXTS = {
    "clean": "clean text",
    "junk": "two thirds of it junk lines",
    "pages": "30 % of it mark-up, menus",
    "swap": "one word in seven replaced",
}
RULES = {
    "paper": "the paper's rule",
    "random": "words at random (85 %, 45 %)",
    "lines": "default: lines ≤ 2 nats a byte",
    "lines 2.5 and groups -1, like": "in-domain teacher: lines ≤ 2.5,\ngroups ≥ -1",
    "oracle": "all but the known noise",
}
"""Variants of the study, from the top down."""
HIGHLIGHTED = ("lines", "lines 2.5 and groups -1, like")


def differences(text: str) -> dict[str, list[float]]:
    """Held-out losses less those of naive training, order by order."""
    with (STUDY / text / "runs.csv").open(encoding="utf-8") as file:
        losses = {
            (run["variant"], run["seed"]): float(run["held_out_loss"])
            for run in csv.DictReader(file)
        }
    found: dict[str, list[float]] = {}
    for (variant, seed), loss in losses.items():
        found.setdefault(variant, []).append(loss - losses["naive", seed])
    return found


def draw() -> Figure:
    figure = Figure(figsize=(10.4, 2.7), layout="constrained")
    axes = figure.subplots(1, len(TEXTS), sharex=True, sharey=True)
    for panel, (text, title) in zip(axes, TEXTS.items(), strict=True):
        _panel(panel, differences(text))
        panel.set_title(title, fontsize=9)
    axes[0].set_yticks(range(len(RULES)), RULES.values(), fontsize=8)
    axes[0].invert_yaxis()
    figure.supxlabel(
        "held-out loss less that of naive training (nats a token; left is better)", fontsize=9
    )
    return figure


def _panel(panel: Axes, found: dict[str, list[float]]) -> None:
    for place, variant in enumerate(RULES):
        if variant not in found:
            panel.text(0.008, place, _why_not(variant), va="center", fontsize=7, color="#777777")
            continue
        values = found[variant]
        colour = COLOURS[2] if variant in HIGHLIGHTED else "#999999"
        style: dict[str, Any] = {"height": 0.62, "color": colour}
        mean = fmean(values)
        panel.barh(place, mean, **style)
        panel.plot(values, [place] * len(values), ".", color="#222222", markersize=3)
        ends = min(*values, 0.0) if mean < 0 else max(*values, 0.0)
        side = {"ha": "right"} if mean < 0 else {"ha": "left"}
        shift = -0.008 if mean < 0 else 0.008
        panel.text(ends + shift, place, f"{mean:+.3f}", va="center", fontsize=8, **side)
    panel.axvline(0, color="#555555", linewidth=0.8)
    panel.set_xlim(-0.25, 0.2)
    panel.set_xticks([-0.2, -0.1, 0, 0.1])
    panel.tick_params(labelsize=8)
    tidy(panel)


def _why_not(variant: str) -> str:
    return "there is none" if variant == "oracle" else "not run"


if __name__ == "__main__":
    save(draw(), HERE / "rules.svg")
