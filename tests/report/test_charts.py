"""Charts: where marks and intervals land, and that their text is safe and readable."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.report.charts import Mark, MarkRow, Series, line_chart, mark_rows, ticks

numbers = st.floats(-1e4, 1e4, allow_nan=False)


def elements(svg: str, name: str, kind: str) -> list[ET.Element]:
    return [item for item in ET.fromstring(svg).iter(name) if kind in item.attrib.get("class", "").split()]


@given(numbers, st.floats(1e-3, 1e4))
def test_ticks_cover_the_range_in_few_round_steps(low: float, span: float) -> None:
    positions = ticks(low, low + span)
    assert positions[0] <= low + 1e-6 * span and positions[-1] >= low + span - 1e-6 * span
    assert 2 <= len(positions) <= 9


def test_marks_stand_at_their_value_with_a_95_percent_interval() -> None:
    svg = mark_rows([MarkRow("a", (Mark("before", "b", 0.5, 0.05), Mark("after", "a", 1.0)))])
    half, full = (float(item.attrib["cx"]) for item in ET.fromstring(svg).iter("circle"))
    zero = float(elements(svg, "line", "grid")[0].attrib["x1"])
    assert half - zero == pytest.approx((full - zero) / 2, abs=0.2)
    [bar] = elements(svg, "path", "bar")
    start, end = float(bar.attrib["d"][1:].split()[0]), float(bar.attrib["d"].split("H")[1].split("M")[0])
    assert (end - start) / (full - zero) == pytest.approx(2 * 1.96 * 0.05, abs=0.005)


@given(st.lists(st.tuples(st.integers(0, 300), numbers), min_size=1, max_size=40, unique_by=lambda point: point[0]))
def test_any_line_stays_inside_its_picture(points: list[tuple[int, float]]) -> None:
    line = Series("after", "x", tuple((float(x), y) for x, y in sorted(points)))
    root = ET.fromstring(line_chart([line]))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    [path] = list(root.iter("path"))
    places = [tuple(map(float, pair.split())) for pair in path.attrib["d"].removeprefix("M").split("L")]
    assert len(places) == len(points)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)


def test_labels_are_escaped() -> None:
    assert "<script>" not in mark_rows([MarkRow("<script>", (Mark("after", '"<script>', 0.5),))])
