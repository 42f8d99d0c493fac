"""The raw text around an entry: the spans of its source on either side, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator

from memalpha.errors import StoreError, UnknownEntry
from memalpha.store.backends.namespace import Namespace
from memalpha.store.search.span_bm25 import Span
from memalpha.types import MemoryEntry


def surrounding_spans(rows: Namespace, id: str, tokens: int, position: int | None) -> list[MemoryEntry]:
    """The spans around an entry that is live, or was at a position, in the order of their source: an unbroken run,
    nearest first, of at most `tokens` (characters / 4) in all.

    The entry itself is among them if it is a span, even where it alone is longer. Raises `UnknownEntry`, and
    `StoreError` for a number of tokens below 0.
    """
    entry = rows.at(id, position)
    if entry is None:
        raise UnknownEntry(
            f"no live entry has the id {id!r}" + ("" if position is None else f" at position {position}")
        )
    if not isinstance(tokens, int) or tokens < 0:
        raise StoreError(f"around: {tokens!r} tokens: a whole number from 0 is needed")
    own = [] if Span.from_origin(entry.source, entry.chunk, entry.turn, 0) is None else [entry]
    room = 4 * tokens - sum(len(span.content) for span in own)
    before: list[MemoryEntry] = []
    after: list[MemoryEntry] = []
    sides: list[tuple[Iterator[MemoryEntry], list[MemoryEntry]]] = [
        (rows.spans(entry, position, after=False), before),
        (rows.spans(entry, position, after=True), after),
    ]
    while sides:
        for side in list(sides):
            span = next(side[0], None)
            if span is None or len(span.content) > room:
                sides.remove(side)
            else:
                side[1].append(span)
                room -= len(span.content)
    return before[::-1] + own + after
