"""Words of the surroundings: BM25 of raw spans in which the spans around each count as well, by how near they are.

A turn of a conversation often answers a question whose words stand in the turn before it. So a word that a span lacks
is taken from the spans around it in its source, up to three steps away: for every one of them as often as it is there,
times `(m / (m + length)) ** steps`, with `m` the mean length of a span. That is backing off (Katz, "Estimation of
probabilities from sparse data", 1987) with the weight of a Dirichlet prior of m words (Zhai, Lafferty: "A study of
smoothing methods for language models", SIGIR 2001): a span of mean length counts what stands beside it by half, a short
one leans on it more, a long one less, and no word of its own counts twice because all around repeat it. The counts, and
lengths to which all words around add by the same weights, go into one BM25 (as in BM25F of Robertson, Zaragoza, Taylor,
CIKM 2004), whose document frequency is the number of documents that a word reaches. Neighbours and means are those of
the documents that a search is over, so what is left out of it neither helps nor stands between.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from memalpha.store.search.bm25 import K1, B, TermMatches

REACH = 3  # steps


class Span(NamedTuple):
    """Where a raw span stands: in its source, by the chunk and then the step, which no two of a chunk share."""

    source: str
    chunk: int
    step: int

    @classmethod
    def from_origin(cls, source: str | None, chunk: int | None, turn: str | None, step: int) -> Span | None:
        """The place of an entry made at `step`: it has one if it names its source and its turn there."""
        return None if source is None or turn is None else cls(source, -1 if chunk is None else chunk, step)


class NeighbourBM25:
    """BM25 of n documents, some of which are spans of a source, for queries found among them.

    `sources` `(n,)`: the number of each span's source, 0 for what is no span; `chunks`, `steps` `(n,)`: what the spans
    of a source are ordered by, no two alike; `lengths` `(n,)`: words of each. At least one is a span.
    """

    def __init__(self, sources: np.ndarray, chunks: np.ndarray, steps: np.ndarray, lengths: np.ndarray) -> None:
        order = np.lexsort((steps, chunks, sources))
        line = sources[order]
        first = np.diff(line, prepend=-1) != 0
        apart = (line == 0) | first & np.append(first[1:], True)  # no span, or the only one of its source
        # All stand on one line, with empty places around each source, so that nothing gets across, and at both ends.
        gaps = first & ~(apart & np.append(True, apart[:-1]))
        self._places = np.empty(len(order), np.int64)
        self._places[order] = np.arange(len(order)) + REACH * (1 + np.cumsum(gaps))
        self._room = int(self._places[order[-1]]) + 1 + REACH

        mean = lengths[sources > 0].mean()
        spans = order[~apart]
        weights = np.zeros(self._room)
        weights[self._places[spans]] = mean / (mean + lengths[spans]) if mean else 0.0
        self._weights = [weights[REACH:-REACH]]  # by steps, of the places between the ends
        while len(self._weights) < REACH:  # multiplied, not raised: the last digit must not depend on the place
            self._weights.append(self._weights[-1] * self._weights[0])
        near = np.zeros(self._room)
        near[self._places] = lengths
        near[REACH:-REACH] += self._around(near)
        mean = math.fsum(near[self._places]) / len(lengths)  # exact in whatever order the documents come
        self._penalties = K1 * (1.0 - B + B * near / mean) if mean else near

    def _around(self, own: np.ndarray) -> np.ndarray:
        """What the places between the ends of the line get of what the others have."""
        size = self._room - REACH
        around = np.zeros(size - REACH)
        for steps, weights in enumerate(self._weights, start=1):
            around += weights * (own[REACH - steps : size - steps] + own[REACH + steps : size + steps])
        return around

    def scores(self, found: TermMatches | None) -> np.ndarray:
        """Scores of all documents for a query whose terms are `found`: float64 `(n,)`, 0 where nothing reaches."""
        size = len(self._places)
        if found is None:
            return np.zeros(size)
        total = np.zeros(self._room)
        places = self._places[found.documents]
        ends = np.searchsorted(found.terms, np.arange(len(found.repeats) + 1))
        for repeats, start, end in zip(found.repeats.tolist(), ends[:-1], ends[1:], strict=True):
            near = np.bincount(places[start:end], found.counts[start:end], self._room)
            near = near.astype(np.float64, copy=False)  # whole numbers where nothing was counted
            inner = near[REACH:-REACH]
            np.copyto(inner, self._around(near), where=inner == 0.0)
            holders = np.count_nonzero(near)
            idf = math.log(1.0 + (size - holders + 0.5) / (holders + 0.5)) * repeats
            total += idf * near / (near + self._penalties)
        return total[self._places]
