"""Small SVG charts as markup: lines over steps, marks with error bars, stacked bars.

Charts have no script and no colours of their own. Colours come from the page's CSS classes (`k-before`, `k-after`, …),
so that light and dark mode share one picture. A chart is drawn at the width of a phone and scales up, so its text stays
readable there. Every mark has a `<title>`, which browsers show on hovering and screen readers read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 360
Z95 = 1.96  # half-width of a 95 % interval in standard errors (normal approximation)

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Mark:
    """One value on a row; `kind` selects CSS class and shape, `se` draws a 95 % interval."""

    kind: str
    label: str
    value: float
    se: float | None = None


@dataclass(frozen=True, slots=True)
class MarkRow:
    """A labelled row of marks."""

    label: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A line through `points` (x, y), or separate points with `dots`; `errors` are standard errors."""

    kind: str
    label: str
    points: tuple[tuple[float, float], ...]
    errors: tuple[float, ...] = ()
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar of parts (kind, label, share); `line` marks one more share."""

    label: str
    parts: tuple[tuple[str, str, float], ...]
    line: float | None = None


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers (1, 2 or 5 times a power of ten) that cover `low`..`high`.

    Args:
        low: Lower end.
        high: Upper end.
        count: Approximate number of intervals.
    """
    raw = max(high - low, 1e-9) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]


def mark_rows(
    rows: Sequence[MarkRow], *, low: float = 0.0, high: float = 1.0, line: tuple[str, float] | None = None
) -> Markup:
    """Draw rows of marks on one horizontal axis; marks of a row have lanes, so that intervals stay apart.

    Args:
        rows: Rows from top to bottom.
        low: Lower end of the axis.
        high: Upper end of the axis.
        line: Label and value of a dashed vertical line through all rows.
    """
    lane, gap, top, bottom = 17, 9, 6, 24
    left, right = 126, WIDTH - 38
    height = top + sum(lane * len(row.marks) + gap for row in rows) + bottom
    axis = ticks(low, high)
    x_of = _scale(axis[0], axis[-1], left, right)
    parts = []
    for tick in axis:
        parts.append(_element("line", class_="grid", x1=x_of(tick), x2=x_of(tick), y1=top, y2=height - bottom))
        parts.append(_text(_number(tick), x_of(tick), height - bottom + 15, "tick", "middle"))
    if line is not None:
        x, title = x_of(line[1]), _title(f"{line[0]}: {line[1]:.3f}")
        path = f"M{x:.1f} {top}V{height - bottom}"
        parts.append(_element("path", title, class_="reference", d=path))
    y = float(top)
    for row in rows:
        row_height = lane * len(row.marks) + gap
        parts.append(_text(row.label, left - 12, y + row_height / 2 + 4, "row", "end"))
        for number, mark in enumerate(row.marks):
            middle = y + gap / 2 + lane * (number + 0.5)
            half = Z95 * (mark.se or 0.0)
            start, end = x_of(mark.value - half), x_of(mark.value + half)
            title = f"{mark.label}: {mark.value:.3f}" + (f" ± {half:.3f}" if half else "")
            if half:
                caps = f"M{start:.1f} {middle - 4:.1f}v8M{end:.1f} {middle - 4:.1f}v8"
                path = f"M{start:.1f} {middle:.1f}H{end:.1f}{caps}"
                parts.append(_element("path", class_=f"bar k-{mark.kind}", d=path))
            parts.append(_shape(mark.kind, x_of(mark.value), middle, 5.0, title))
            parts.append(_text(f"{mark.value:.2f}", max(end, x_of(mark.value) + 5) + 5, middle + 4, "value"))
        y += row_height
    labels = (f"{row.label}: " + ", ".join(f"{mark.label} {mark.value:.2f}" for mark in row.marks) for row in rows)
    return _svg(height, parts, "; ".join(labels))


def stacked_bars(bars: Sequence[Bar]) -> Markup:
    """Draw bars of parts on one axis from 0 to 1, each below its label; large parts show their share."""
    left, right, top, label, thick, gap, bottom = 8, WIDTH - 8, 4, 16, 18, 8, 20
    height = top + len(bars) * (label + thick + gap) + bottom
    x_of = _scale(0.0, 1.0, left, right)
    parts = []
    for tick in ticks(0.0, 1.0):
        parts.append(_element("line", class_="grid", x1=x_of(tick), x2=x_of(tick), y1=top, y2=height - bottom))
        anchor = "middle" if 0 < tick < 1 else ("end" if tick else "start")
        parts.append(_text(f"{tick:.0%}", x_of(tick), height - 5, "tick", anchor))
    for number, bar in enumerate(bars):
        y, start = top + number * (label + thick + gap), 0.0
        parts.append(_text(bar.label, left, y + 12, "row"))
        for kind, name, share in bar.parts:
            x, width = x_of(start), x_of(start + share) - x_of(start)
            title = _title(f"{bar.label}, {name}: {share:.1%}")
            parts.append(_element("rect", title, class_=f"part k-{kind}", x=x, y=y + label, width=width, height=thick))
            if share >= 0.08:
                parts.append(_text(f"{share:.0%}", x + width / 2, y + label + 13, "inside", "middle"))
            start += share
        if bar.line is not None:
            title = _title(f"{bar.label}, ceiling: {bar.line:.1%}")
            path = f"M{x_of(bar.line):.1f} {y + label - 3:.1f}v{thick + 6}"
            parts.append(_element("path", title, class_="ceiling", d=path))
    labels = (f"{bar.label}: " + ", ".join(f"{name} {share:.0%}" for _, name, share in bar.parts) for bar in bars)
    return _svg(height, parts, "; ".join(labels))


def line_chart(series: Sequence[Series], *, low: float | None = None, high: float | None = None) -> Markup:
    """Draw lines over steps.

    Args:
        series: Lines and points.
        low: Lower end of y; None takes the smallest value.
        high: Upper end of y; None takes the largest value.

    Raises:
        ValueError: No series has a point.
    """
    top, bottom, left, right, height = 10, 34, 42, WIDTH - 12, 190
    points = [point for line in series for point in line.points]
    if not points:
        raise ValueError("a chart without points")
    values = [y for _, y in points]
    axis_y = ticks(min(values) if low is None else low, max(values) if high is None else high, 4)
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    x_of = _scale(first, last if last > first else first + 1, left, right)
    y_of = _scale(axis_y[0], axis_y[-1], height - bottom, top)
    parts = []
    for tick in axis_y:
        parts.append(_element("line", class_="grid", x1=left, x2=right, y1=y_of(tick), y2=y_of(tick)))
        parts.append(_text(_number(tick), left - 6, y_of(tick) + 4, "tick", "end"))
    for tick in ticks(first, last, 5):
        if first <= tick <= last and tick == int(tick):
            parts.append(_text(f"{tick:g}", x_of(tick), height - bottom + 15, "tick", "middle"))
    parts.append(_text("step", right, height - 3, "tick", "end"))
    for line in series:
        if not line.dots:
            parts.append(_path(line, x_of, y_of))
            continue
        for number, (x, y) in enumerate(line.points):
            half = Z95 * line.errors[number] if line.errors else 0.0
            if half:
                path = f"M{x_of(x):.1f} {y_of(y - half):.1f}V{y_of(y + half):.1f}"
                parts.append(_element("path", class_=f"bar k-{line.kind}", d=path))
            title = f"{line.label}, step {x:g}: {y:.3f}" + (f" ± {half:.3f}" if half else "")
            parts.append(_shape(line.kind, x_of(x), y_of(y), 4, title))
    labels = (
        f"{line.label} from {line.points[0][1]:.3g} to {line.points[-1][1]:.3g}" for line in series if line.points
    )
    return _svg(height, parts, "; ".join(labels))


def swatch(kind: str, *, line: bool = False) -> Markup:
    """Return the shape and colour of a kind for a legend; `line` draws a line."""
    if kind.startswith("error-"):
        shape = _element("rect", class_=f"part k-{kind}", x=1, y=1, width=12, height=12)
    else:
        shape = _element("path", class_=f"line k-{kind}", d="M0 7H14") if line else _shape(kind, 7, 7, 4)
    return Markup(f'<svg class="swatch" viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">{shape}</svg>')


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    """Return a map from `low`..`high` to pixels `start`..`end`; values outside stop at the edge."""
    return lambda value: start + (min(max(value, low), high) - low) / (high - low) * (end - start)


def _path(line: Series, x_of: Scale, y_of: Scale) -> str:
    path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in line.points)
    title = f"{line.label}: {line.points[0][1]:.3f} to {line.points[-1][1]:.3f}"
    return _element("path", _title(title), class_=f"line k-{line.kind}", d=f"M{path}")


def _shape(kind: str, x: float, y: float, size: float, title: str = "") -> str:
    """Draw a mark; shapes tell kinds apart as colours do: square, diamond, circle (hollow for `before`)."""
    inner, style = _title(title) if title else "", f"mark k-{kind}"
    if kind == "append_only":
        return _element("rect", inner, class_=style, x=x - size, y=y - size, width=2 * size, height=2 * size)
    if kind == "oracle":
        r = size * 1.3
        path = f"M{x:.1f} {y - r:.1f}l{r:.1f} {r:.1f}l{-r:.1f} {r:.1f}l{-r:.1f} {-r:.1f}z"
        return _element("path", inner, class_=style, d=path)
    return _element("circle", inner, class_=style, cx=x, cy=y, r=size)


def _text(text: str, x: float, y: float, style: str, anchor: str = "start") -> str:
    return _element("text", escape(text), class_=style, x=x, y=y, text_anchor=anchor)


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _element(name: str, inner: str = "", **attributes: str | float) -> str:
    """Return an SVG element; `class_` and `text_anchor` become `class` and `text-anchor`."""
    pairs = []
    for key, value in attributes.items():
        text = value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        pairs.append(f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    return f"<{name}{''.join(pairs)}>{inner}</{name}>" if inner else f"<{name}{''.join(pairs)}/>"


def _number(value: float) -> str:
    return f"{value:g}" if value == int(value) or abs(value) >= 10 else f"{value:.2f}".rstrip("0")


def _svg(height: float, parts: Sequence[str], label: str) -> Markup:
    size = f'viewBox="0 0 {WIDTH} {height:g}"'
    return Markup(f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>')
