"""Documents that a corpus holds, and the scored results of its searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from memalpha.store.search.span_bm25 import Span
from memalpha.types import MemoryEntry


@dataclass(frozen=True, slots=True)
class Document:
    """What is searched, in a group. `order` decides ties: larger is more recent. `span`: its place in a source."""

    id: str
    text: str
    group: str = ""
    order: int = 0
    span: Span | None = None
    entry: MemoryEntry | None = field(default=None, compare=False)  # what filters look at

    @classmethod
    def from_entry(cls, entry: MemoryEntry, created: int | None = None) -> Document:
        """A stored entry as a document: its content, grouped by category; the latest written is the most recent.
        `created`: the position that made its id, by which spans are ordered (without: its version's own)."""
        step = entry.valid_from if created is None else created
        span = Span.from_origin(entry.source, entry.chunk, entry.turn, step)
        return cls(entry.id, entry.content, entry.category, entry.valid_from, span, entry)


class ScoredEntry(NamedTuple):
    """One result. `explain` has the raw parts `dense` and `bm25`, the `group` prior and the terms of a `Boost`, where
    they were used; with spans, `bm25` is of the own words, and `around` what those around add to it. `entry`: what
    was found, where the search has read it."""

    id: str
    score: float
    explain: Mapping[str, float]
    entry: MemoryEntry | None = None
