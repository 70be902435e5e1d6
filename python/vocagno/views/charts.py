"""Line charts as inline SVG: no script and no network, colours from the page's style."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vocagno.views.html import to_html

WIDTH, HEIGHT = 520, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 12, 40
_MOST_MARKERS = 40
COLOURS = 6
"""Number of line colours in page.css. Further lines repeat them with other dashes."""
DASHES = ("", "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    """(x, y), x ascending."""
    number: int
    """Number of the line's run, which decides its colour and dashes."""
    is_thin: bool = False
    """Thin and without markers: a curve that only accompanies another."""


def chart(
    lines: Sequence[Line],
    *,
    heading: str,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
    is_percent: bool = False,
) -> str:
    """Draws a chart of lines as a `<figure>`. Returns "" if no line has a point.

    Args: y_range: lowest and highest y of the panel; by default `settled_range(lines)`.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    xs = [x for line in lines for x, _ in line.points]
    x_low, x_high = min(*xs, 0.0), max(*xs, 0.0)
    across = _Scale(x_low, x_high or 1.0, _LEFT, WIDTH - _RIGHT)
    up = _Scale(*(y_range or settled_range(lines)), HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(across, up, x_label, y_label, is_percent=is_percent)]
    # A nested picture cuts off what lies outside the panel. Its margin lets markers at the edge be
    # drawn whole.
    panel = _LEFT, _TOP - 4, WIDTH - _LEFT - _RIGHT + 6, HEIGHT - _TOP - _BOTTOM + 8
    inside = "x={0} y={1} width={2} height={3} viewBox='{0} {1} {2} {3}'".format(*panel)
    curves = (_line(line, across, up, y_label) for line in lines)
    parts.append(f"<svg {inside}>{''.join(curves)}</svg>")
    names = ", ".join(dict.fromkeys(line.name for line in lines))
    label = to_html(f"{heading} over {x_label}: {names}")
    return (
        f"<figure class=chart><figcaption>{to_html(heading)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img aria-label="{label}">'
        f"{''.join(parts)}</svg></figure>"
    )


def key(names: Sequence[str]) -> str:
    """Draws the key of a page of charts: a sample of each run's line, and its name."""
    items = []
    for number, name in enumerate(names):
        sample = f'<line x1=0 y1=6 x2=34 y2=6 class="{_kind(number)}"{_dashes(number)} />'
        items.append(f"<li><svg width=34 height=12>{sample}</svg> {to_html(name)}</li>")
    return f"<ul class=chart-key>{''.join(items)}</ul>"


def settled_range(lines: Sequence[Line]) -> tuple[float, float]:
    """Returns the range of the values with a margin, without the first tenth of each line, where
    losses fall steeply."""
    values = []
    for line in lines:
        start = line.points[-1][0] / 10
        # The last value of the first tenth counts, too: a line of few points begins there.
        next_xs = [*(x for x, _ in line.points[1:]), math.inf]
        segments = zip(line.points, next_xs, strict=True)
        settled = [y for (_, y), next_x in segments if next_x > start and math.isfinite(y)]
        values += settled or [y for _, y in line.points if math.isfinite(y)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 0.5
    return low - margin, high + margin


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Returns about `most` round numbers in a range, in steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values in [low, high] to positions on the page in [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def _axes(across: _Scale, up: _Scale, x_label: str, y_label: str, *, is_percent: bool) -> str:
    parts = []
    for tick in ticks(up.low, up.high, 5):
        y, text = up(tick), f"{tick:.0%}" if is_percent else short(tick)
        parts.append(f"<line x1={_LEFT} y1={y} x2={WIDTH - _RIGHT} y2={y} class=grid />")
        parts.append(f"<text x={_LEFT - 8} y={y + 4} class=end>{text}</text>")
    for tick in ticks(across.low, across.high):
        x = across(tick)
        parts.append(f"<text x={x} y={HEIGHT - _BOTTOM + 18} class=middle>{short(tick)}</text>")
    parts.append(
        f"<text x={(_LEFT + WIDTH - _RIGHT) / 2} y={HEIGHT - 4} class=middle>{to_html(x_label)}"
        "</text>"
    )
    if y_label:
        middle = (_TOP + HEIGHT - _BOTTOM) / 2
        parts.append(
            f'<text x=12 y={middle} class=middle transform="rotate(-90 12 {middle})">'
            f"{to_html(y_label)}</text>"
        )
    return "".join(parts)


def _line(line: Line, across: _Scale, up: _Scale, y_label: str) -> str:
    finite = [(x, y) for x, y in line.points if math.isfinite(y)]
    vertices = " ".join(f"{across(x)},{up(y)}" for x, y in finite)
    kind = _kind(line.number) + (" thin" if line.is_thin else "")
    parts = [f'<polyline points="{vertices}" class="{kind}"{_dashes(line.number)} />']
    if not line.is_thin:
        step = 1 + len(finite) // _MOST_MARKERS
        for x, y in finite[::-1][::step]:  # from the end, so that the last value has a marker
            title = f"<title>{to_html(line.name)}: {y:.4g} {to_html(y_label)} at {short(x)}</title>"
            centre = f"cx={across(x)} cy={up(y)}"
            parts.append(f'<circle {centre} r=3 class="{_kind(line.number)}">{title}</circle>')
    return "".join(parts)


def _kind(number: int) -> str:
    return f"run{number % COLOURS}"


def _dashes(number: int) -> str:
    dashes = DASHES[number // COLOURS % len(DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def short(number: float) -> str:
    """Formats a number with four digits and a unit of thousands, such as `1.5 M`."""
    for size, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:.4g}"
