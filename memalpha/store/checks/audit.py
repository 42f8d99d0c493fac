"""Audit of a memory by rules alone: no language model, no clock, always the same answer.

There are five kinds of findings, the worst first. Each claims no more than its rule.

- `contradiction`: live entries give different values for one slot (`Ana's city: Oslo`; see `slots`). Free text is not
  understood, so nothing is claimed of it. A slot that may have several values (`hobby`) is reported all the same.
  Lines of a chat (`Ana: I like tea`) give their speaker no values.
- `stale`: a live entry is outdated, for one of four reasons. `later`: another live entry gives its slot another value
  with a later date. `ended`: an entry with a later date ended after it was written, and not by an undo. `replaced`:
  another entry that said the same has been updated to something else since. `says`: its own text is labelled as
  outdated, or says that it is no longer true.
- `duplicate`: live entries say the same, by one of three tests. `text`: they differ only in case, spacing and closing
  marks. `words`: they have the same stemmed words in any order, function words aside. `meaning`: their cosine is at
  least `near`, or at least .85 where one has all words of the other. Entries that differ in a name, a number or a
  negation, or have a slot, are never near: there, another word is another fact.
- `unretrieved`: no entry of a category is among the k best hits of any query. Without queries, every entry's own
  content is its query (at most 200 of a category, evenly spaced).
- `orphan`: live entries lack an origin. `no origin`: none at all, where other entries have one. `no source`: a chunk
  or turn of no source. `dangling`: a chunk or turn that their source, where it is given, does not have.

Coverage says how many raw spans (the turns of `source`, else entries with a turn) a written fact covers. `doctor`
checks that versions follow from the log; an audit does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from memalpha.arguments import brief_repr, check_count, check_items, check_texts, check_type, is_finite_number
from memalpha.errors import StoreError
from memalpha.store.checks.coverage import (
    find_orphans,
    find_unretrieved,
    is_from,
    measure_coverage,
    measure_retrieval,
)
from memalpha.store.checks.duplicates import find_duplicates
from memalpha.store.checks.findings import KINDS, Audit, Finding
from memalpha.store.checks.slot_checks import find_contradictions, find_stale
from memalpha.store.store import MemoryStore
from memalpha.types import Chunk, MemoryEntry

NEAR = 0.95


def audit(
    store: MemoryStore,
    *,
    queries: Sequence[str] | None = None,
    k: int = 10,
    near: float = NEAR,
    source: tuple[str, Sequence[Chunk]] | None = None,
) -> Audit:
    """Audit a store's namespace as of one moment.

    All entries are compared with each other, which takes time in the square of their number.

    Args:
        store: Store to audit.
        queries: Questions that this memory has to answer, such as a task's; None searches by the entries' own contents.
        k: Hits per query.
        near: Cosine from which two entries mean the same.
        source: Name that entries have as their source (its last part is enough), and its chunks.

    Raises:
        StoreError: `near` is not above 0 and at most 1, or `k` is below 1.
    """
    check_type("store", store, MemoryStore)
    if not is_finite_number(near) or not 0 < near <= 1:
        raise StoreError(f"near {brief_repr(near)}: a cosine above 0 and at most 1 is needed")
    check_count("k", k)
    if k < 1:
        raise StoreError(f"k {k!r}: 1 or more is needed")
    if queries is not None:
        queries = check_texts("queries", queries)
    if source is not None:
        check_type("source", source, tuple)
        if len(source) != 2 or not isinstance(source[0], str):
            raise StoreError(f"source {brief_repr(source)}: a name and its chunks are needed")
        chunks = check_items("source", source[1], of="chunks")
        for chunk in chunks:
            check_type("source", chunk, Chunk)
        source = source[0], chunks
    result = Audit(store._namespace.name)
    with store._transaction():
        position, entries = store._namespace.log.position, store._namespace.entries.live()
        result.findings += find_contradictions(entries)
        result.findings += stale_findings(store)
    vectors = store._embed(list(dict.fromkeys(entry.content for entry in entries)))
    rows = np.array([vectors[entry.content] for entry in entries], np.float32)
    result.findings += find_duplicates(entries, rows, near)
    result.retrieval = measure_retrieval(store, position, entries, queries, k)
    result.findings += find_unretrieved(entries, result.retrieval)
    source_entries = [entry for entry in entries if source is not None and is_from(entry, source[0])]
    result.findings += find_orphans(entries, source_entries, source[1] if source else None)
    result.coverage = measure_coverage(store, entries, source_entries, source[1] if source else None)
    counts = Counter(finding.kind for finding in result.findings)
    result.counts = {"entries": len(entries), **{kind: counts[kind] for kind in KINDS}}
    return result


def stale_findings(store: MemoryStore) -> list[Finding]:
    """Return the findings of kind `stale` alone."""
    with store._transaction():
        entries, namespace = store._namespace.entries.live(), store._namespace
        ended = [version for version in namespace.entries.all_versions() if version.valid_to is not None]
        return find_stale(entries, ended, namespace)


def find_conflicts(store: MemoryStore, histories: Sequence[Sequence[MemoryEntry]]) -> list[Finding]:
    """Return contradictions between some entries of a store, and those of them that are outdated.

    Args:
        store: Store of the entries.
        histories: Versions of each entry, oldest first. Other entries of the store are not compared.
    """
    live = [version for versions in histories for version in versions if version.valid_to is None]
    ended = [version for versions in histories for version in versions if version.valid_to is not None]
    with store._transaction():
        return find_contradictions(live) + find_stale(live, ended, store._namespace)
