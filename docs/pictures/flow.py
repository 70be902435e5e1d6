"""Draws `flow.svg`: one text from two tokenizers to the weights of a loss, computed as it is drawn.

python docs/pictures/flow.py > docs/pictures/flow.svg
"""

import sys
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

import vocagno

TEXT = "Probability, Uncertainty"
STUDENT = ["Pro", "b", "ability", ",", " Un", "certain", "ty"]  # TinyLlama's tokens,
TEACHER = ["Probability", ",", " Unc", "ertainty"]  # and Qwen2.5's
TEACHER_NLL = [np.nan, 0.3, 2.6, 0.1]
STUDENT_NLL = np.array([4.0, 2.0, 0.5, 0.9, 3.1, 5.0, 0.4], np.float32)
TOP_FRACTION = 0.4

LEFT, BYTE, WIDTH, HEIGHT = 190, 29, 900, 392
TEACHER_Y, STUDENT_Y, BOX = 78, 178, 30
LINES = {"student’s loss": 250, "teacher’s loss, max": 282, "excess": 314, "trained on": 356}
INK, FAINT, TEACHER_INK, KEPT = "#1f2328", "#57606a", "#0072B2", "#D55E00"


def spans(tokens: Sequence[str]) -> np.ndarray:
    """(n, 2) bytes of tokens that tile a text."""
    ends = np.cumsum([len(token.encode()) for token in tokens])
    return np.stack([ends - [len(token.encode()) for token in tokens], ends], axis=1)


def picture() -> Iterator[str]:
    student, teacher = spans(STUDENT), spans(TEACHER)
    mapping = vocagno.align(student, teacher)
    loss = vocagno.reduce(TEACHER_NLL, mapping, how="max")
    excess = STUDENT_NLL - loss
    competing = np.isfinite(excess)
    count = int(np.ceil(TOP_FRACTION * competing.sum()))
    kept = ~competing
    kept[np.argsort(-np.where(competing, excess, -np.inf), kind="stable")[:count]] = True

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="15" '
        'font-family="ui-sans-serif, system-ui, sans-serif" text-anchor="middle">'
    )
    yield f"<title>{escape(TEXT)}: tokens of both sides, losses, and what is trained on</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>'
    yield from row_name("the text", 38)
    for place, character in enumerate(TEXT):
        yield words(LEFT + BYTE * (place + 0.5), 38, character, INK, "monospace")
    yield from row_name("teacher’s tokens", TEACHER_Y + 20)
    yield from row_name("and its losses, in nats", TEACHER_Y + 48, FAINT)
    for token, span, nll in zip(TEACHER, teacher, TEACHER_NLL, strict=True):
        yield box(span, TEACHER_Y, TEACHER_INK, "#e8f2f9")
        yield words(middle(span), TEACHER_Y + 20, token.strip(), TEACHER_INK)
        yield words(middle(span), TEACHER_Y + 48, number(nll), TEACHER_INK)
    yield from row_name("student’s tokens", STUDENT_Y + 20)
    for row, (first, stop) in enumerate(mapping):
        for other in range(first, stop):
            yield (
                f'<line x1="{middle(teacher[other]):g}" y1="{TEACHER_Y + 56}" '
                f'x2="{middle(student[row]):g}" y2="{STUDENT_Y - 2}" stroke="{TEACHER_INK}"/>'
            )
    for name, y in LINES.items():
        yield from row_name(name, y)
    for row, (token, span) in enumerate(zip(STUDENT, student, strict=True)):
        ink, fill = (KEPT, "#fdeee2") if kept[row] else (FAINT, "#f6f8fa")
        yield box(span, STUDENT_Y, ink, fill)
        shown = (token.strip(), *map(number, (STUDENT_NLL[row], loss[row], excess[row])))
        places = (STUDENT_Y + 20, *list(LINES.values())[:3])
        for text, y in zip(shown, places, strict=True):
            yield words(middle(span), y, text, ink if y in (places[0], places[3]) else INK)
        if kept[row]:
            place = f'cx="{middle(span):g}" cy="{LINES["trained on"] - 5}"'
            yield f'<circle {place} r="7" fill="{KEPT}"/>'
    note = f"the top {TOP_FRACTION:.0%} of those with an excess, and all without one"
    yield words(LEFT, LINES["trained on"] + 24, note, FAINT, anchor="start")
    yield "</svg>"


def row_name(name: str, y: float, ink: str = INK) -> Iterator[str]:
    yield words(12, y, name, ink, anchor="start")


def words(
    x: float, y: float, text: str, ink: str, family: str | None = None, anchor: str | None = None
) -> str:
    more = f' font-family="{family}"' if family else ""
    more += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{ink}"{more}>{escape(text)}</text>'


def box(span: np.ndarray, y: float, ink: str, fill: str) -> str:
    start, end = (LEFT + BYTE * int(place) for place in span)
    return (
        f'<rect x="{start + 1}" y="{y}" width="{end - start - 2}" height="{BOX}" rx="4" '
        f'fill="{fill}" stroke="{ink}"/>'
    )


def middle(span: np.ndarray) -> float:
    return LEFT + BYTE * float(span.mean())


def number(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "–"


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    print(*picture(), sep="\n")
