"""A memory as its readers and its writer see it under a trust rule: with names, and others' words ranked lower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memalpha.agent.prompts import DEMOTED
from memalpha.agent.transcript import split_label
from memalpha.agent.trust.speakers import is_same
from memalpha.store.store import MemoryStore
from memalpha.types import Hit, MemoryEntry

OTHERS_SHARE = 0.5
"""Share of its score that a hit keeps if another than the owner said it."""


class AttributedMemory:
    """View of a memory in which an entry that another than the owner said begins with that person's name.

    Its score in a search is halved: of the same k hits, an entry of the owner that scores half as much comes first.
    Everything else is as in the memory.

    Args:
        store: The memory.
        owner: Person whose words need no name.
    """

    def __init__(self, store: MemoryStore, owner: str) -> None:
        self._store, self._owner = store, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, id: str) -> MemoryEntry:
        """Return an entry, named."""
        return self.name(self._store.get(id))

    def list(self, *args: Any, **keywords: Any) -> list[MemoryEntry]:
        """Return the entries of `MemoryStore.list`, named."""
        return [self.name(entry) for entry in self._store.list(*args, **keywords)]

    def recent(self, n: int) -> Sequence[MemoryEntry]:
        """Return the entries of `MemoryStore.recent`, named."""
        return [self.name(entry) for entry in self._store.recent(n)]

    def search(self, query: str, *args: Any, **keywords: Any) -> Sequence[Hit]:
        """Return the hits of `MemoryStore.search`, named and ranked."""
        return self.search_many([query], *args, **keywords)[0]

    def search_many(self, queries: Sequence[str], *args: Any, **keywords: Any) -> Sequence[Sequence[Hit]]:
        """Return the hits of `MemoryStore.search_many`, named and ranked."""
        results = self._store.search_many(queries, *args, **keywords)
        return [sorted(map(self._rank, hits), key=lambda hit: -hit.score) for hits in results]

    def _rank(self, hit: Hit) -> Hit:
        if self._is_owners(hit.entry):
            return hit
        explain = {**hit.explain, DEMOTED: OTHERS_SHARE}
        return replace(hit, entry=self.name(hit.entry), score=OTHERS_SHARE * hit.score, explain=explain)

    def name(self, entry: MemoryEntry) -> MemoryEntry:
        """Return an entry whose content begins with the name of its speaker, unless that is the owner."""
        if self._is_owners(entry) or is_same(split_label(entry.content)[0], entry.speaker):
            return entry
        return replace(entry, content=f"{' '.join(str(entry.speaker).split())}: {entry.content}")

    def _is_owners(self, entry: MemoryEntry) -> bool:
        return entry.speaker is None or is_same(entry.speaker, self._owner)
