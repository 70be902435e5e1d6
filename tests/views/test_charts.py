"""Charts as SVG: places follow from values, and nothing is drawn of nothing."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocagno.views.charts import COLOURS, DASHES, Line, chart, key, settled_range, short, ticks

LABELS = {"heading": "held-out loss", "x_label": "tokens", "y_label": "nats"}


def drawn(*lines, **options):
    """The picture as a tree; parsing fails where HTML would only forgive."""
    html = chart(lines, **LABELS | options)
    svg = re.search(r"<svg viewBox.*</svg>", html).group()
    return ElementTree.fromstring(re.sub(r"=([\w.:-]+)(?=[\s/>])", r'="\1"', svg))


def places(tree):
    polylines = [line.get("points").split() for line in tree.iter("polyline")]
    return [[tuple(map(float, point.split(","))) for point in points] for points in polylines]


def test_points_lie_where_their_values_are():
    line = Line("a", [(0, 1.0), (50, 3.0), (100, 2.0)], 0)
    (points,) = places(drawn(line, y_range=(1.0, 3.0)))
    xs, ys = zip(*points, strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
    assert ys[1] < ys[2] < ys[0]  # up is less
    assert ys[0] - ys[2] == pytest.approx(ys[2] - ys[1])


def test_markers_say_their_values_and_thin_lines_have_none():
    line = Line("run <1>", [(1000, 0.5), (2_000_000, 0.25)], 0)
    tree = drawn(line, Line("b", [(0, 1.0), (10, 1.0)], 1, is_thin=True))
    titles = [title.text for title in tree.iter("title")]
    assert titles == ["run <1>: 0.25 nats at 2 M", "run <1>: 0.5 nats at 1 k"]
    assert "run <1>, b" in tree.get("aria-label")


def test_values_that_are_no_numbers_are_left_out():
    tree = drawn(Line("a", [(0, math.nan), (1, 2.0), (2, math.inf), (3, 1.0)], 0))
    assert [len(points) for points in places(tree)] == [2]


def test_nothing_is_drawn_of_nothing():
    assert chart([Line("a", [], 0)], **LABELS) == ""
    assert drawn(Line("a", [(5, 1.0)], 0)) is not None
    assert drawn(Line("a", [(0, 1.0)], 0)) is not None


def test_the_steep_beginning_does_not_set_the_range():
    steep = Line("a", [(x, 9.0 if x < 10 else 2.0 - x / 100) for x in range(101)], 0)
    low, high = settled_range([steep])
    assert low < 1.0
    assert 1.9 < high < 2.0


@pytest.mark.parametrize("last", [100, 120, 900])
def test_a_curve_of_few_points_is_in_its_panel(last):
    """Held-out losses of a short run: what leads out of its first tenth is seen."""
    few = Line("a", [(0, 9.0), (100, 2.0), (last + 1, 1.5)], 0)
    low, high = settled_range([few])
    assert low < 1.5 < 9.0 < high
    _, high = settled_range([Line("a", [*few.points[:2], (1000, 1.5)], 0)])
    assert 2.0 < high < 3.0


@given(st.floats(-1e3, 1e3), st.floats(1e-2, 1e6))
def test_ticks_are_few_and_round(low, size):
    tick_values = ticks(low, low + size)
    assert 1 <= len(tick_values) <= 8
    assert all(low - 1e-6 * size <= tick <= low + size * (1 + 1e-6) for tick in tick_values)
    steps = [(b - a) / size for a, b in pairwise(tick_values)]
    assert max(steps, default=0) == pytest.approx(min(steps, default=0), abs=1e-6)


def test_every_run_looks_different():
    names = [f"run {number}" for number in range(COLOURS * len(DASHES))]
    styles = re.findall(r'class="(run\d)"( stroke-dasharray="[^"]*")?', key(names))
    assert len(set(styles)) == len(names)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.25, "0.25"), (999, "999"), (1500, "1.5 k"), (2e6, "2 M"), (3e9, "3 B")],
)
def test_numbers_are_shortened_to_thousands_millions_and_billions(number, text):
    assert short(number) == text
