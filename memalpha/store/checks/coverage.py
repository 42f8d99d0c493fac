"""Retrieval, origins and coverage: how well searches reach the entries, and the entries their source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from memalpha.store.checks.findings import Coverage, Finding, RawSpan, RetrievalCounts
from memalpha.types import Chunk, MemoryEntry

if TYPE_CHECKING:
    from memalpha.store.store import MemoryStore

SUPPORT = 0.6
"""Cosine from which a fact covers a raw span."""
_MAX_OWN_QUERIES = 200  # entries of a category whose own contents are queries


def measure_retrieval(
    store: MemoryStore, position: int, entries: Sequence[MemoryEntry], queries: Sequence[str] | None, k: int
) -> RetrievalCounts:
    """Count the queries that reach each category.

    Args:
        store: Store to search.
        position: Log position to search at.
        entries: Entries that are live at `position`.
        queries: Questions; None asks for entries by their own contents, at most 200 of a category, evenly spaced.
        k: Hits per query.
    """
    by_category: dict[str, list[MemoryEntry]] = {name: [] for name in store.schema.category_names}
    for entry in entries:
        by_category[entry.category].append(entry)
    counts = {name: {"entries": len(members), "asked": 0, "found": 0} for name, members in by_category.items()}
    if queries is not None:
        for hits in store.search_many(queries, k, as_of=position):
            for name, count in counts.items():
                count["asked"] += 1
                count["found"] += any(hit.entry.category == name for hit in hits)
        return RetrievalCounts(k, False, counts)
    sample = [
        members[int(index)]
        for members in by_category.values()
        for index in np.linspace(0, len(members) - 1, min(len(members), _MAX_OWN_QUERIES))
    ]
    results = store.search_many([entry.content for entry in sample], k, as_of=position)
    for entry, hits in zip(sample, results, strict=True):
        counts[entry.category]["asked"] += 1
        counts[entry.category]["found"] += any(hit.entry.id == entry.id for hit in hits)
    return RetrievalCounts(k, True, counts)


def find_unretrieved(entries: Sequence[MemoryEntry], retrieval: RetrievalCounts) -> list[Finding]:
    """Return a finding for each category with live entries that no query reaches."""
    findings = []
    for name, counts in retrieval.categories.items():
        if counts["entries"] and counts["asked"] and not counts["found"]:
            queries = "its own contents" if retrieval.own else f"{counts['asked']} queries"
            message = f"no entry of {name} is among the {retrieval.k} best hits for {queries}"
            members = tuple(entry for entry in entries if entry.category == name)
            findings.append(Finding("unretrieved", "own" if retrieval.own else "queries", message, members))
    return findings


def is_from(entry: MemoryEntry, source: str) -> bool:
    """Return True if an entry has this source; the last part of a path is enough."""
    return entry.source is not None and (entry.source == source or PurePath(entry.source).name == PurePath(source).name)


def find_orphans(
    entries: Sequence[MemoryEntry], source_entries: Sequence[MemoryEntry], chunks: Sequence[Chunk] | None
) -> list[Finding]:
    """Return findings for entries whose origin is missing or dangling.

    Args:
        entries: Live entries.
        source_entries: Those of them that name the source of `chunks`.
        chunks: Chunks of the source; None checks no chunk and turn.
    """
    without = [entry for entry in entries if not _has_origin(entry)]
    unsourced = [entry for entry in entries if entry.source is None and _has_origin(entry)]
    cases = [
        ("no origin", "no source, chunk or turn, which others have", without if len(without) < len(entries) else []),
        ("no source", "a chunk or turn, but of no source", unsourced),
    ]
    if chunks is not None:
        turns = {chunk.index: {turn.id for turn in chunk.turns} for chunk in chunks}
        dangling = [
            entry
            for entry in source_entries
            if (entry.chunk is not None and entry.chunk not in turns)
            or (entry.turn is not None and not any(entry.turn in ids for ids in _turn_ids(turns, entry.chunk)))
        ]
        cases.append(("dangling", "a chunk or turn that its source does not have", dangling))
    return [Finding("orphan", reason, message, tuple(members)) for reason, message, members in cases if members]


def measure_coverage(
    store: MemoryStore,
    entries: Sequence[MemoryEntry],
    source_entries: Sequence[MemoryEntry],
    chunks: Sequence[Chunk] | None,
) -> Coverage | None:
    """Count the raw spans that written facts cover.

    Args:
        store: Store whose vectors decide what is near.
        entries: Live entries.
        source_entries: Those of them that name the source of `chunks`.
        chunks: Chunks of the source; their spans are covered by all entries. None takes the entries with a turn as
            spans and the others as facts.

    Returns:
        The counts, or None if `chunks` is None and there are no such spans or no facts.
    """
    if chunks is None:
        raw, facts = [e for e in entries if e.turn is not None], [e for e in entries if e.turn is None]
        if not raw or not facts:
            return None
        keyed = [((entry.source, entry.chunk), RawSpan(entry.chunk, entry.turn, entry.content)) for entry in raw]
        origin_chunks = {(entry.source, entry.chunk) for entry in facts if entry.chunk is not None}
        by_origin: set[int] = set()
    else:
        facts = entries
        keyed = [((None, chunk.index), span) for chunk in chunks for span in _spans(chunk)]
        origin_chunks = {(None, entry.chunk) for entry in source_entries}
        origins = {(entry.chunk, entry.turn) for entry in source_entries}
        by_origin = {number for number, (_, span) in enumerate(keyed) if (span.chunk, span.turn) in origins}
    vectors = store._embed(list(dict.fromkeys([span.text for _, span in keyed] + [e.content for e in facts])))
    fact_rows = np.array([vectors[fact.content] for fact in facts])
    supported = {n for n, (_, span) in enumerate(keyed) if facts and (fact_rows @ vectors[span.text]).max() >= SUPPORT}
    chunk_keys = {key for key, _ in keyed}
    return Coverage(
        spans=len(keyed),
        by_origin=len(by_origin),
        by_content=len(supported - by_origin),
        chunks=len(chunk_keys),
        chunks_by_origin=len(chunk_keys & origin_chunks),
        uncovered=tuple(span for number, (_, span) in enumerate(keyed) if number not in by_origin | supported),
    )


def _has_origin(entry: MemoryEntry) -> bool:
    return entry.source is not None or entry.chunk is not None or entry.turn is not None


def _turn_ids(turns: Mapping[int, set[str | None]], chunk: int | None) -> Iterable[set[str | None]]:
    return turns.values() if chunk is None else [turns.get(chunk, set())]


def _spans(chunk: Chunk) -> list[RawSpan]:
    if chunk.text is not None:
        return [RawSpan(chunk.index, None, chunk.text)]
    return [RawSpan(chunk.index, turn.id, turn.text) for turn in chunk.turns]
