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

from typing import NamedTuple

import numpy as np

from memalpha.store.lexical import K1, B, Found

SHARES = (1 / 2, 1 / 4, 1 / 8)


class Span(NamedTuple):
    """Where a raw span stands: in its source, by the chunk and then the step, which no two of a chunk share."""

    source: str
    chunk: int
    step: int

    @classmethod
    def of(cls, source: str | None, chunk: int | None, turn: str | None, step: int) -> Span | None:
        """The place of an entry made at `step`: it has one if it names its source and its turn there."""
        return None if source is None or turn is None else cls(source, -1 if chunk is None else chunk, step)


class Neighbours:
    """BM25 of n documents, some of which are spans of a source, for queries found among them.

    `sources` `(n,)`: the number of each span's source, 0 for what is no span; `chunks`, `steps` `(n,)`: what the spans
    of a source are ordered by, no two alike; `lengths` `(n,)`: words of each. At least one is a span.
    """

    def __init__(self, sources: np.ndarray, chunks: np.ndarray, steps: np.ndarray, lengths: np.ndarray) -> None:
        order = np.lexsort((steps, chunks, sources))
        self._order = order[np.count_nonzero(sources == 0) :]  # the spans, source by source
        line = sources[self._order]
        # Where each stands on a line that has empty places between two sources, so that no share gets across.
        self._line = np.arange(len(line)) + len(SHARES) * np.cumsum(np.diff(line, prepend=line[:1]) != 0)
        lengths = self._spread(lengths.astype(np.float64))
        mean = lengths.sum() / len(lengths)
        self._penalties = K1 * (1.0 - B + B * lengths / mean) if mean else lengths

    def _spread(self, counts: np.ndarray) -> np.ndarray:
        """What documents have, float64 `(n,)`, in which each span gets its share of those around it as well."""
        line = np.zeros(int(self._line[-1]) + 1)
        line[self._line] = counts[self._order]
        near = line.copy()
        for far, share in enumerate(SHARES, start=1):
            part = share * line
            near[far:] += part[:-far]
            near[:-far] += part[far:]
        counts[self._order] = near[self._line]
        return counts

    def scores(self, found: Found | None) -> np.ndarray:
        """Scores of all documents for a query whose terms are `found`: float64 `(n,)`, 0 where nothing reaches."""
        size = len(self._penalties)
        total = np.zeros(size)
        if found is None:
            return total
        ends = np.searchsorted(found.terms, np.arange(len(found.repeats) + 1))
        for repeats, start, end in zip(found.repeats.tolist(), ends[:-1], ends[1:], strict=True):
            counts = self._spread(np.bincount(found.places[start:end], found.counts[start:end], size))
            holders = np.count_nonzero(counts)
            idf = np.log(1.0 + (size - holders + 0.5) / (holders + 0.5)) * repeats
            total += idf * counts / (counts + self._penalties)
        return total
