"""Documents that a corpus holds, and the scored results of its searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from memalpha.store.search.span_bm25 import Span
from memalpha.types import MemoryEntry


@dataclass(frozen=True, slots=True)
class Document:
    """Text to search for, in a group.

    Attributes:
        id: Id of the entry.
        text: Text to search.
        group: Group of layer one.
        order: Tie-breaker; larger is more recent.
        span: Place in a source, if the document is a raw span.
        entry: Entry that filters look at.
    """

    id: str
    text: str
    group: str = ""
    order: int = 0
    span: Span | None = None
    entry: MemoryEntry | None = field(default=None, compare=False)

    @classmethod
    def from_entry(cls, entry: MemoryEntry, created: int | None = None) -> Document:
        """Return a stored entry as a document, grouped by category; the latest version is the most recent.

        `created` is the log position that made the id and orders spans; None takes that of the version.
        """
        position = entry.valid_from if created is None else created
        span = Span.from_origin(entry.source, entry.chunk, entry.turn, position)
        return cls(entry.id, entry.content, entry.category, entry.valid_from, span, entry)


class ScoredEntry(NamedTuple):
    """One search result.

    Attributes:
        id: Id of the entry.
        score: Score; larger is better.
        explain: The parts of the score that were used: raw `dense` and `bm25`, the `group` prior, terms of a `Boost`.
            With spans, `bm25` is of the span's words alone, and `around` is what its neighbours add.
    """

    id: str
    score: float
    explain: Mapping[str, float]
