"""Words of the surroundings: BM25 of raw spans in which the spans around each count as well, by how near they are.

A turn of a conversation often answers a question whose words stand in the turn before it. So a span has its own words
once, those of the spans beside it half as often, then a quarter and an eighth: a share is halved with every step away
in the source, and ends before it falls below a tenth. That is BM25F (Robertson, Zaragoza, Taylor: "Simple BM25
extension to multiple weighted fields", CIKM 2004) with the steps as fields: weighted counts and lengths go into one
BM25, whose document frequency is the number of documents that a word reaches. Neighbours are those of the documents
that a search is over, so what is left out of it neither helps nor stands between. Halves of whole numbers are exact in
floating point: no order of adding them up makes a difference.
"""

from __future__ import annotations

import numpy as np

from memalpha.store.lexical import K1, B, Found

SHARES = (1 / 2, 1 / 4, 1 / 8)


class Neighbours:
    """BM25 of n documents, of which some are spans of a source, for queries found among them.

    `sources` `(n,)`: the number of each span's source, 0 for what is no span; `chunks`, `steps` `(n,)`: what the spans
    of a source are ordered by, no two alike; `lengths` `(n,)`: words of each.
    """

    def __init__(self, sources: np.ndarray, chunks: np.ndarray, steps: np.ndarray, lengths: np.ndarray) -> None:
        self._size = size = len(sources)
        order = np.lexsort((steps, chunks, sources))
        order = order[np.count_nonzero(sources == 0) :]
        line = sources[order]
        reach = 1 + 2 * len(SHARES)
        self._around = np.full((size, reach), size, np.int32)  # itself, then those around it; `size` for none
        self._around[:, 0] = np.arange(size)
        for far in range(1, len(SHARES) + 1):
            near, other = order[:-far], order[far:]
            together = line[:-far] == line[far:]
            near, other = near[together], other[together]
            self._around[near, 2 * far - 1], self._around[other, 2 * far] = other, near
        self._weights = np.array([1.0, *np.repeat(SHARES, 2)])
        lengths = self._spread(np.arange(size), lengths)
        mean = lengths.sum() / size
        self._penalties = K1 * (1.0 - B + B * lengths / mean) if mean else lengths

    def _spread(self, places: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Counts `(m,)` at places `(m,)` and, by share, at the places around them: float64 `(n,)`."""
        weighed = counts[:, None] * self._weights
        return np.bincount(self._around[places].ravel(), weighed.ravel(), self._size + 1)[: self._size]

    def scores(self, found: Found | None) -> np.ndarray:
        """Scores of all documents for a query whose terms are `found`: float64 `(n,)`, 0 where nothing reaches."""
        total = np.zeros(self._size)
        if found is None:
            return total
        ends = np.searchsorted(found.terms, np.arange(len(found.repeats) + 1))
        for repeats, start, end in zip(found.repeats.tolist(), ends[:-1], ends[1:], strict=True):
            counts = self._spread(found.places[start:end], found.counts[start:end])
            holders = np.count_nonzero(counts)
            idf = np.log(1.0 + (self._size - holders + 0.5) / (holders + 0.5)) * repeats
            total += idf * counts / (counts + self._penalties)
        return total
