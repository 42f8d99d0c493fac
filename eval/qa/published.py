"""Recompute the averages of eval/PUBLISHED.md from the values in its tables: `python eval/qa/published.py`.

A table has a column "printed", followed by columns headed `= equal` or `= 282, 96, …` (weights, one for each column
between the first and "printed"). The script prints each average with the printed value and the value that the file
claims. It exits with 1 if a claimed value is wrong, or if bold type does not mark exactly the values that differ from
the printed ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "PUBLISHED.md"


class Average(NamedTuple):
    """One recomputed cell: printed value, claimed value (`bold`: it differs from the printed one), computed value."""

    row: str
    weights: str
    printed: str
    claimed: str
    bold: bool
    computed: float

    @property
    def wrong(self) -> str:
        """Error of the cell, or "". Rounded values and a rounded mean may differ by one unit."""
        unit = 10.0 ** -len(self.printed.partition(".")[2])
        if abs(self.computed - float(self.claimed)) > 0.501 * unit:
            return f"comes out as {self.computed:.4f}"
        differs = abs(self.computed - float(self.printed)) > 1.001 * unit
        return "" if differs == self.bold else "should be in bold" if differs else "should not be in bold"


def averages(text: str) -> Iterator[Average]:
    """Yield all recomputed cells of a Markdown text."""
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if "printed" in cells:
            head = cells
        elif not cells:
            head = []
        elif head and not set(cells[0]) <= {"-", ":"}:
            yield from _row(head, cells)


def _row(head: list[str], cells: list[str]) -> Iterator[Average]:
    printed_column = head.index("printed")
    values = [float(cell) for cell in cells[1:printed_column]]
    for heading, cell in zip(head[printed_column + 1 :], cells[printed_column + 1 :], strict=True):
        weighting = heading.removeprefix("=").strip()
        weights = [1.0] * len(values) if weighting == "equal" else [float(weight) for weight in weighting.split(",")]
        mean = sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
        yield Average(cells[0], weighting, cells[printed_column], cell.strip("*"), cell.startswith("**"), mean)


def main() -> int:
    """Print all averages; return 1 if the file has an error."""
    recomputed = list(averages(FILE.read_text(encoding="utf-8")))
    for average in recomputed:
        print(
            f"{average.row:32} {average.weights:26} printed {average.printed:>6}  {average.computed:8.4f} "
            f"{average.wrong}"
        )
    return int(not recomputed or any(average.wrong for average in recomputed))


if __name__ == "__main__":
    sys.exit(main())
