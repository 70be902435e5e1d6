"""Line charts as inline SVG: no script and no network, colours from the page's style."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vocagno.views.html import escaped

WIDTH, HEIGHT = 520, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 12, 40
_MOST_MARKERS = 40
COLOURS = 6
"""Of lines in the page's style; further lines have other dashes."""
DASHES = ("", "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    """(x, y), x ascending."""
    number: int
    """Of its run, for colour and dashes."""
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
    """A chart of lines; "" if no line has a point. `y_range`: default: `settled_range`."""
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    xs = [x for line in lines for x, _ in line.points]
    x_low, x_high = min(*xs, 0.0), max(*xs, 0.0)
    across = _Scale(x_low, x_high or 1.0, _LEFT, WIDTH - _RIGHT)
    up = _Scale(*(y_range or settled_range(lines)), HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(across, up, x_label, y_label, is_percent=is_percent)]
    # A nested picture cuts off what lies outside the panel.
    place = _LEFT, _TOP - 4, WIDTH - _LEFT - _RIGHT + 6, HEIGHT - _TOP - _BOTTOM + 8
    inside = "x={0} y={1} width={2} height={3} viewBox='{0} {1} {2} {3}'".format(*place)
    curves = (_line(line, across, up, y_label) for line in lines)
    parts.append(f"<svg {inside}>{''.join(curves)}</svg>")
    names = ", ".join(dict.fromkeys(line.name for line in lines))
    label = escaped(f"{heading} over {x_label}: {names}")
    return (
        f"<figure class=chart><figcaption>{escaped(heading)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img aria-label="{label}">'
        f"{''.join(parts)}</svg></figure>"
    )


def key(names: Sequence[str]) -> str:
    """What each line is: the runs in their order."""
    items = []
    for number, name in enumerate(names):
        sample = f'<line x1=0 y1=6 x2=34 y2=6 class="{_kind(number)}"{_dashes(number)} />'
        items.append(f"<li><svg width=34 height=12>{sample}</svg> {escaped(name)}</li>")
    return f"<ul class=chart-key>{''.join(items)}</ul>"


def settled_range(lines: Sequence[Line]) -> tuple[float, float]:
    """The range of the values, without the first tenth of each line, where losses fall steeply. A
    value from which a line leads out of its first tenth counts, or little of a short one is seen.
    """
    values = []
    for line in lines:
        start = line.points[-1][0] / 10
        following = [*(x for x, _ in line.points[1:]), math.inf]
        both = zip(line.points, following, strict=True)
        settled = [y for (_, y), x in both if x > start and math.isfinite(y)]
        values += settled or [y for _, y in line.points if math.isfinite(y)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 0.5
    return low - margin, high + margin


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers in a range, at most so many, 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Scale:
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
        f"<text x={(_LEFT + WIDTH - _RIGHT) / 2} y={HEIGHT - 4} class=middle>{escaped(x_label)}"
        "</text>"
    )
    if y_label:
        middle = (_TOP + HEIGHT - _BOTTOM) / 2
        parts.append(
            f'<text x=12 y={middle} class=middle transform="rotate(-90 12 {middle})">'
            f"{escaped(y_label)}</text>"
        )
    return "".join(parts)


def _line(line: Line, across: _Scale, up: _Scale, y_label: str) -> str:
    finite = [(x, y) for x, y in line.points if math.isfinite(y)]
    places = " ".join(f"{across(x)},{up(y)}" for x, y in finite)
    kind = _kind(line.number) + (" thin" if line.is_thin else "")
    parts = [f'<polyline points="{places}" class="{kind}"{_dashes(line.number)} />']
    if not line.is_thin:
        every = 1 + len(finite) // _MOST_MARKERS
        for x, y in finite[::-1][::every]:
            title = f"<title>{escaped(line.name)}: {y:.4g} {escaped(y_label)} at {short(x)}</title>"
            place = f"cx={across(x)} cy={up(y)}"
            parts.append(f'<circle {place} r=3 class="{_kind(line.number)}">{title}</circle>')
    return "".join(parts)


def _kind(number: int) -> str:
    return f"run{number % COLOURS}"


def _dashes(number: int) -> str:
    dashes = DASHES[number // COLOURS % len(DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def short(number: float) -> str:
    """A number with a unit: 1.5 M."""
    for size, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:.4g}"
