"""Raw text around an entry: the spans of its source on either side, within a token budget."""

from __future__ import annotations

from collections.abc import Iterator

from memalpha.arguments import brief_repr
from memalpha.errors import UnknownEntry
from memalpha.store.backends.namespace import Namespace
from memalpha.store.search.span_bm25 import Span
from memalpha.types import MemoryEntry


def surrounding_spans(rows: Namespace, id: str, tokens: int, position: int | None) -> list[MemoryEntry]:
    """Return the spans around an entry, in the order of their source.

    They are an unbroken run, filled from the nearest span on. If the entry is a span, it is included even if it alone
    exceeds the budget.

    Args:
        rows: Namespace of the entry.
        id: Entry that is live at `position`.
        tokens: Budget for all spans together, in tokens of four characters.
        position: Log position; None for the current state.

    Raises:
        UnknownEntry: No live entry has the id.
    """
    entry = rows.entries.version_at(id, position)
    if entry is None:
        raise UnknownEntry(
            f"no live entry has the id {brief_repr(id)}" + ("" if position is None else f" at position {position}")
        )
    entry_span = [] if Span.from_origin(entry.source, entry.chunk, entry.turn, 0) is None else [entry]
    budget = 4 * tokens - sum(len(span.content) for span in entry_span)
    before: list[MemoryEntry] = []
    after: list[MemoryEntry] = []
    sides: list[tuple[Iterator[MemoryEntry], list[MemoryEntry]]] = [
        (rows.entries.spans(entry, position, after=False), before),
        (rows.entries.spans(entry, position, after=True), after),
    ]
    while sides:
        for side in list(sides):
            span = next(side[0], None)
            if span is None or len(span.content) > budget:
                sides.remove(side)
            else:
                side[1].append(span)
                budget -= len(span.content)
    return before[::-1] + entry_span + after
