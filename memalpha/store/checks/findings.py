"""Results of an audit: findings, retrieval counts and coverage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from memalpha.types import MemoryEntry

Kind = Literal["contradiction", "stale", "duplicate", "unretrieved", "orphan"]
KINDS: tuple[Kind, ...] = ("contradiction", "stale", "duplicate", "unretrieved", "orphan")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a memory.

    Attributes:
        kind: Kind of fault.
        reason: Rule that the entries break; see `audit` for the reasons of each kind.
        message: The fault in words.
        entries: Live entries that the finding is about, oldest first.
        against: Versions, live or ended, that speak against the first entry.
    """

    kind: Kind
    reason: str
    message: str
    entries: tuple[MemoryEntry, ...]
    against: tuple[MemoryEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class RetrievalCounts:
    """Counts of what searches return, by category.

    Attributes:
        k: Hits per query.
        own: True if the contents of entries were the queries, False if the caller gave queries.
        categories: By category the live `entries`, the queries `asked`, and the queries that `found` an entry of the
            category (with `own`, that very entry).
    """

    k: int
    own: bool
    categories: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class RawSpan:
    """A turn of a chunk, or a chunk without turns."""

    chunk: int | None
    turn: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """Counts of the raw spans that live facts cover.

    Attributes:
        spans: All raw spans.
        by_origin: Spans that a fact names as its origin.
        by_content: Further spans that a fact is near to (see `coverage.SUPPORT`).
        chunks: All chunks.
        chunks_by_origin: Chunks that a fact names as its origin.
        uncovered: Spans that no fact covers.
    """

    spans: int
    by_origin: int
    by_content: int
    chunks: int
    chunks_by_origin: int
    uncovered: tuple[RawSpan, ...]


@dataclass(slots=True)
class Audit:
    """Audit of one namespace. `counts` holds the number of entries, and of findings by kind."""

    namespace: str
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    retrieval: RetrievalCounts | None = None
    coverage: Coverage | None = None
