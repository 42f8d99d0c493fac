"""Tables that a notebook shows for a store, search hits and reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MAX_CELL = 200  # characters


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML, everything escaped.

    Args:
        title: Caption.
        header: Names of the columns.
        rows: Cells by row: a float has three decimals, None is empty, a text is cut after `MAX_CELL` characters.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
    return escape(text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…")
