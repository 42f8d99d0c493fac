"""BM25 of raw spans in which the words of neighbouring spans count as well, by how near they are.

A turn of a conversation often answers a question whose words stand in the turn before it. So a word that a span lacks
is taken from the spans around it in its source, up to three steps away. Each of these counts it as often as it is
there, times `(m / (m + length)) ** steps`, with `m` the mean length of a span.

That is backing off (Katz, "Estimation of probabilities from sparse data", 1987) with the weight of a Dirichlet prior of
m words (Zhai, Lafferty: "A study of smoothing methods for language models", SIGIR 2001). A span of mean length counts
its neighbours by half, a short one more, a long one less. A span's own word never counts twice because its neighbours
repeat it.

The counts, and lengths to which all neighbouring words add by the same weights, go into one BM25 (as in BM25F of
Robertson, Zaragoza, Taylor, CIKM 2004). Its document frequency is the number of documents that a word reaches.
Neighbours and means are those of the searched documents, so entries that a filter excludes have no influence.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from memalpha.store.search.bm25 import K1, B, TermMatches

REACH = 3  # steps


class Span(NamedTuple):
    """Origin of a raw span: its source, the chunk, and the log position that created it."""

    source: str
    chunk: int
    position: int

    @classmethod
    def from_origin(cls, source: str | None, chunk: int | None, turn: str | None, position: int) -> Span | None:
        """Return the span of an entry with this origin; None if it lacks a source or a turn.

        Args:
            source: Source of the entry.
            chunk: Chunk within the source; None sorts before all others.
            turn: Turn within the chunk.
            position: Log position that created the entry, by which spans of a chunk are ordered.
        """
        return None if source is None or turn is None else cls(source, -1 if chunk is None else chunk, position)


class NeighbourBM25:
    """BM25 of n documents, some of which are spans of a source."""

    def __init__(self, sources: np.ndarray, chunks: np.ndarray, positions: np.ndarray, lengths: np.ndarray) -> None:
        """Lay out the documents, of which at least one is a span.

        Args:
            sources: Number of each span's source, 0 for documents that are no spans, `(n,)`.
            chunks: Chunk of each span `(n,)`.
            positions: Log position that created each span `(n,)`; chunk and position are unique within a source.
            lengths: Words of each document `(n,)`.
        """
        order = np.lexsort((positions, chunks, sources))
        ordered_sources = sources[order]
        first = np.diff(ordered_sources, prepend=-1) != 0
        is_alone = (ordered_sources == 0) | first & np.append(
            first[1:], True
        )  # no span, or the only span of its source
        # All documents lie on one line, with gaps between sources and at both ends, so no words cross.
        gaps = first & ~(is_alone & np.append(True, is_alone[:-1]))
        self._line_indices = np.empty(len(order), np.int64)
        self._line_indices[order] = np.arange(len(order)) + REACH * (1 + np.cumsum(gaps))
        self._line_size = int(self._line_indices[order[-1]]) + 1 + REACH

        mean = lengths[sources > 0].mean()
        spans = order[~is_alone]
        weights = np.zeros(self._line_size)
        weights[self._line_indices[spans]] = mean / (mean + lengths[spans]) if mean else 0.0
        self._weights = [weights[REACH:-REACH]]  # by steps, for the indices between the ends
        while len(self._weights) < REACH:  # not a power: the last digit must not depend on the index
            self._weights.append(self._weights[-1] * self._weights[0])
        effective_lengths = np.zeros(self._line_size)
        effective_lengths[self._line_indices] = lengths
        effective_lengths[REACH:-REACH] += self._sum_neighbours(effective_lengths)
        mean = math.fsum(effective_lengths[self._line_indices]) / len(lengths)  # exact in any order of the documents
        self._penalties = K1 * (1.0 - B + B * effective_lengths / mean) if mean else effective_lengths

    def _sum_neighbours(self, line_values: np.ndarray) -> np.ndarray:
        """Return the weighted sums of neighbouring values, for the indices between the ends of the line."""
        size = self._line_size - REACH
        around = np.zeros(size - REACH)
        for steps, weights in enumerate(self._weights, start=1):
            around += weights * (line_values[REACH - steps : size - steps] + line_values[REACH + steps : size + steps])
        return around

    def scores(self, matches: TermMatches | None) -> np.ndarray:
        """Return the scores of all documents for a query's matches, float64 `(n,)`; 0 where no word reaches."""
        size = len(self._line_indices)
        if matches is None:
            return np.zeros(size)
        total = np.zeros(self._line_size)
        indices = self._line_indices[matches.documents]
        ends = np.searchsorted(matches.terms, np.arange(len(matches.repeats) + 1))
        for repeats, start, end in zip(matches.repeats.tolist(), ends[:-1], ends[1:], strict=True):
            counts = np.bincount(indices[start:end], matches.counts[start:end], self._line_size)
            counts = counts.astype(np.float64, copy=False)  # integers if there is nothing to count
            inner = counts[REACH:-REACH]
            np.copyto(inner, self._sum_neighbours(counts), where=inner == 0.0)
            holders = np.count_nonzero(counts)
            idf = math.log(1.0 + (size - holders + 0.5) / (holders + 0.5)) * repeats
            total += idf * counts / (counts + self._penalties)
        return total[self._line_indices]
