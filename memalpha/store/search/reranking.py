"""Second stage of a search: a reranker scores query and text together, over the first hits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from memalpha.errors import MemalphaError, StoreError
from memalpha.store.embedding import load_cross_encoder
from memalpha.types import Hit

RERANKED = 50  # hits that a reranker scores, or as many as are asked for
Reranker = Callable[[str, Sequence[str]], Sequence[float]]


def rerank(query: str, hits: Sequence[Hit], reranker: Reranker | str) -> list[Hit]:
    """Sort hits by a reranker's scores, best first.

    Args:
        query: Query of the search.
        hits: Hits, best first. Of a long entry the best passage is scored.
        reranker: Called with the query and the texts, returns a score for each; or the directory or hub name of a
            sentence-transformers cross-encoder.

    Returns:
        Hits with the reranker's score; `explain` has it as "rerank". Equal scores keep their order.

    Raises:
        StoreError: The reranker raised, or returned something else than a finite number for each text.
        EmbedderError: The cross-encoder cannot be loaded.
    """
    if not hits:
        return []
    score = load_cross_encoder(reranker) if isinstance(reranker, str) else reranker
    texts = [hit.passage or hit.entry.content for hit in hits]
    try:
        scores = [float(value) for value in score(query, texts)]
    except MemalphaError:
        raise
    except Exception as error:  # somebody's own code can raise anything
        raise StoreError(f"reranker: it raised {type(error).__name__}, or returned no numbers: {error}") from error
    if len(scores) != len(hits) or not all(map(math.isfinite, scores)):
        raise StoreError(f"reranker: a finite number for each of {len(hits)} texts is needed, {len(scores)} came")
    reranked = [
        replace(hit, score=value, explain={**hit.explain, "rerank": value})
        for hit, value in zip(hits, scores, strict=True)
    ]
    return sorted(reranked, key=lambda hit: -hit.score)
