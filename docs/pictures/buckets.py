"""Draws buckets.svg: one place of a text, the candidates of both sides, and the buckets that join
them.

    python docs/pictures/buckets.py                    # from buckets.json; needs vocagno[viz]
    python docs/pictures/buckets.py runs/quickstart    # first measures it

The second needs `make quickstart`, and a run of python/vocagno/quickstart/distilled.yaml.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

import vocagno
from vocagno.views.figure import COLOURS, GREY, save
from vocagno.views.passage import visible

HERE = Path(__file__).parent
BEFORE, NEXT = "Solve $3x + 6 = ", "15"
MODELS = {"teacher": "teacher", "naive": "student, naive", "distilled": "student, distilled"}
"""Runs of the quickstart, and their names in the picture."""
CANDIDATES, BUCKETS, TOKENS, LEAST = 16, 3, 4, 0.0005
"""Of the teacher; drawn; drawn of a side in each, and what a student's has at least."""

OF_TEACHER, OF_BUCKET, OF_STUDENT = 0.0, 2.9, 4.1
BOX = 1.9, 0.78
"""Left edges, and width and height of the box of a token."""
FILLS = {"teacher": COLOURS[0], "naive": "#BBBBBB", "distilled": COLOURS[1]}


def measure(folder: Path) -> dict[str, Any]:
    """The probabilities of tokens and buckets where `NEXT` starts, by the models in `folder`."""
    text = BEFORE + NEXT
    own, other = (
        vocagno.TokenSpans(f"{folder}/tokenizers/{one}") for one in ("student", "teacher")
    )
    ours, theirs = own.encode([text]), other.encode([text])
    row = int(np.flatnonzero(ours.spans[:, 0] == len(text.encode()) - len(NEXT))[0])
    start = int(vocagno.starts(ours.spans, theirs.spans)[row])
    sides = dict.fromkeys(("naive", "distilled"), (own, ours.ids[:row]))
    sides["teacher"] = other, theirs.ids[:start]
    p = {}
    for name, (spans, ids) in sides.items():
        p[name] = _probabilities(folder / name, [*spans.prefix_ids, *ids])
    buckets = vocagno.buckets(own, other)
    known = np.argsort(-p["teacher"], kind="stable")[:CANDIDATES]
    mass = np.bincount(buckets.teacher[known] + 1, p["teacher"][known], buckets.count + 1)[1:]
    found = []
    for bucket in np.argsort(-mass, kind="stable")[:BUCKETS]:
        its = np.flatnonzero(buckets.student == bucket)
        drawn = its[p["distilled"][its] >= LEAST]
        found.append(
            {
                "teacher's tokens": _named(
                    other, known[buckets.teacher[known] == bucket], p["teacher"]
                ),
                "student's tokens": _named(own, drawn, p["distilled"]),
                "teacher": round(float(mass[bucket]), 4),
                **{name: round(float(p[name][its].sum()), 4) for name in ("naive", "distilled")},
            }
        )
    return {"text": text, "next": NEXT, "buckets": found}


def _probabilities(run: Path, ids: list[int]) -> np.ndarray:
    """Of each id after `ids`."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(run / "final")(torch.tensor([ids])).logits
    return logits[0, -1].double().softmax(-1).numpy()


def _named(side: vocagno.TokenSpans, ids: np.ndarray, p: np.ndarray) -> list[tuple[str, float]]:
    """The likeliest of `ids`, the others as one."""
    ids = ids[np.argsort(-p[ids], kind="stable")]
    shown = ids if len(ids) <= TOKENS else ids[: TOKENS - 1]
    pieces = side.text_pieces()
    names = [visible((pieces[one] or b"").decode(errors="replace")) for one in shown]
    found = [(name, float(p[one])) for name, one in zip(names, shown, strict=True)]
    if rest := len(ids) - len(shown):
        found.append((f"{rest} others", float(p[ids[len(shown) :]].sum())))
    return [(name, round(value, 4)) for name, value in found]


def draw(found: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    tokens, bars = figure.subplots(1, 2, width_ratios=[2, 1])
    top = 0.0
    for one in found["buckets"]:
        sides = one["teacher's tokens"], one["student's tokens"]
        height = max(2, *map(len, sides))
        _draw_bucket(tokens, one, top - height / 2, height)
        for place, (name, fill) in enumerate(FILLS.items()):
            y = top - height / 2 + 0.56 * (1 - place)
            bars.barh(y, one[name], 0.5, color=fill, label=None if top else MODELS[name])
            bars.text(one[name] + 0.02, y, f"{one[name]:.3f}", va="center", fontsize=8)
        top -= height + 0.5
    for axes in (tokens, bars):
        axes.set_ylim(top + 0.3, 1.1)
        axes.set_yticks([])
        axes.set_xticks([])
        axes.set_frame_on(False)
    tokens.set_xlim(-0.1, OF_STUDENT + BOX[0] + 0.1)
    for x, title in ((OF_TEACHER, "teacher's candidates"), (OF_STUDENT, "student's tokens")):
        tokens.text(x + BOX[0] / 2, 0.35, title, ha="center", fontsize=9)
    tokens.text(OF_BUCKET + 0.15, 0.35, "buckets", ha="center", fontsize=9)
    bars.set_xlim(0, 1.2)
    bars.legend(loc="lower right", frameon=False, fontsize=8)
    bars.set_title("probability of the bucket", fontsize=9)
    before = found["text"].removesuffix(found["next"]).splitlines()[-1]
    tokens.set_title(f"what follows “{before}” ({found['next']})", fontsize=9)
    return figure


def _draw_bucket(axes: Axes, one: dict[str, Any], middle: float, height: float) -> None:
    corner = OF_BUCKET, middle - 0.4 * height
    style = {
        "boxstyle": "round,pad=0,rounding_size=0.15",
        "facecolor": "#EEEEEE",
        "edgecolor": GREY,
    }
    axes.add_patch(FancyBboxPatch(corner, 0.3, 0.8 * height, linewidth=0.7, **style))
    for key, left, end, fill in (
        ("teacher's tokens", OF_TEACHER, OF_TEACHER + BOX[0], "#DCEAF4"),
        ("student's tokens", OF_STUDENT, OF_STUDENT, "#FADCC8"),
    ):
        given = [f"{name}  {p:.3f}" for name, p in one[key]]
        for number, label in enumerate(given):
            y = middle + (len(given) - 1) / 2 - number
            axes.add_patch(
                Rectangle(
                    (left, y - BOX[1] / 2), *BOX, facecolor=fill, edgecolor=GREY, linewidth=0.7
                )
            )
            axes.text(left + BOX[0] / 2, y, label, ha="center", va="center", fontsize=8)
            near = OF_BUCKET if left == OF_TEACHER else OF_BUCKET + 0.3
            axes.plot([end, near], [y, middle], color=GREY, linewidth=0.8, zorder=0.5)


if __name__ == "__main__":
    results = HERE / "buckets.json"
    if len(sys.argv) > 1:
        measured = measure(Path(sys.argv[1]))
        results.write_text(
            json.dumps(measured, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
    save(draw(json.loads(results.read_text(encoding="utf-8"))), HERE / "buckets.svg")
