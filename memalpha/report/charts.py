"""Small SVG charts as markup: lines over steps, marks with error bars, stacked bars.

Charts have no script and no colours of their own. Colours come from the page's CSS classes (`k-before`, `k-after`, …),
so that light and dark mode share one picture. A chart is drawn at the width of a phone and scales up, so its text stays
readable there. Every mark has a `<title>`, which browsers show on hovering and screen readers read. The markup is that
of the template `charts.html`; scales and axes are computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

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


def mark_rows(rows: Sequence[MarkRow], *, line: tuple[str, float] | None = None) -> Markup:
    """Draw rows of marks on one axis from 0 to 1; marks of a row have lanes, so that intervals stay apart.

    Args:
        rows: Rows from top to bottom.
        line: Label and value of a dashed vertical line through all rows.
    """
    axis = ticks(0.0, 1.0)
    return _draw("marks", WIDTH, rows, axis, _scale(axis[0], axis[-1], 126, WIDTH - 38), line)


def stacked_bars(bars: Sequence[Bar]) -> Markup:
    """Draw bars of parts on one axis from 0 to 1, each below its label; large parts show their share."""
    return _draw("bars", WIDTH, bars, ticks(0.0, 1.0), _scale(0.0, 1.0, 8, WIDTH - 8))


def line_chart(series: Sequence[Series], *, low: float | None = None, high: float | None = None) -> Markup:
    """Draw lines over steps; one series has a point, at least.

    Args:
        series: Lines and points.
        low: Lower end of y; None takes the smallest value.
        high: Upper end of y; None takes the largest value.
    """
    points = [point for line in series for point in line.points]
    steps, values = [x for x, _ in points], [y for _, y in points]
    axis_y = ticks(min(values) if low is None else low, max(values) if high is None else high, 4)
    first, last = min(steps), max(steps)
    axis_x = [tick for tick in ticks(first, last, 5) if first <= tick <= last and tick == int(tick)]
    x_of = _scale(first, last if last > first else first + 1, 42, WIDTH - 12)
    return _draw("lines", WIDTH, series, axis_x, axis_y, x_of, _scale(axis_y[0], axis_y[-1], 156, 10))


def swatch(kind: str, *, line: bool = False) -> Markup:
    """Return the shape and colour of a kind for a legend; `line` draws a line."""
    return _draw("swatch", kind, line)


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    """Return a map from `low`..`high` to pixels `start`..`end`; values outside stop at the edge."""
    return lambda value: start + (min(max(value, low), high) - low) / (high - low) * (end - start)


LOADER = PackageLoader("memalpha.report")
ENVIRONMENT = Environment(
    loader=LOADER,
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: "" if value is None else value,
)


def _draw(macro: str, *arguments: object) -> Markup:
    """Return what a macro of `charts.html` draws, on one line."""
    text = str(getattr(ENVIRONMENT.get_template("charts.html").module, macro)(*arguments))
    return Markup("".join(line.strip() for line in text.split("\n")))


def format_pixels(value: float | str) -> str:
    """Return a coordinate with one decimal, none for a whole number; a text as it is."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def format_figure(value: float) -> str:
    """Return a number with three significant digits, at least those before the decimal point."""
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
ENVIRONMENT.filters |= {"pixels": format_pixels, "figure": format_figure, "spec": format}
ENVIRONMENT.globals["z95"] = Z95
