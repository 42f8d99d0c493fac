"""Searches of a bare `Corpus` with the keywords of `Memory.search`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memalpha.store.search.corpus import Corpus
from memalpha.store.search.ranking import ScoredEntry, SearchOptions


def search_many(corpus: Corpus, queries: Sequence[str], k: int = 10, **keywords: Any) -> list[list[ScoredEntry]]:
    """Return the best documents of a corpus for each query."""
    return corpus.search_many(queries, SearchOptions(k, **keywords))


def search(corpus: Corpus, query: str, k: int = 10, **keywords: Any) -> list[ScoredEntry]:
    """Return the best documents of a corpus for one query."""
    return search_many(corpus, [query], k, **keywords)[0]
