"""BM25 of raw spans in which the words of neighbouring spans count as well, by how near and how short they are.

A turn of a conversation often answers a question whose words stand in the turn before it. So a word that a span lacks
is taken from the spans around it in its source, up to three steps away. Each of these counts it as often as it is
there, times `(m / (m + length)) ** steps` of the receiving span, with `m` the mean length of a passage, `NEAR` words at
most. That is backing off (Katz, "Estimation of probabilities from sparse data", 1987) with the weight of a Dirichlet
prior of m words (Zhai, Lafferty: "A study of smoothing methods for language models", SIGIR 2001).

What surrounds a span counts by its length, not only by steps: a span of more than `NEAR` words lends its words, and
lets those behind it pass, by `(NEAR / length) ** 8` alone. So the turns of a dialogue help each other, and the long
replies of an assistant do not drown the short messages between them. Spans of more than `passages.WINDOW` words neither
lend nor borrow: they are searched by passage. A span's own word never counts twice because its neighbours repeat it.

The counts, and lengths to which all neighbouring words add by the same weights, go into one BM25 (as in BM25F of
Robertson, Zaragoza, Taylor, CIKM 2004). Its document frequency is the number of documents that a word reaches with a
count of `REACHED` or more. Neighbours and means are those of the searched documents, so entries that a filter excludes
have no influence.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from memalpha.store.search.bm25 import K1, B, TermMatches
from memalpha.store.search.passages import CONTEXT, WINDOW, count_passages

REACH = 3  # steps
NEAR = 32  # words up to which a span lends all of its words
REACHED = 0.1  # smallest count with which a document counts as holding a word
_SPARSE = 24  # a word that fewer than 1 / _SPARSE of the spans hold is spread from its holders alone


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
    """BM25 of n documents, some of which are spans of a source.

    Attributes:
        inverse_mean: 1 / the mean length of passages, with the neighbours' words.
    """

    def __init__(self, sources: np.ndarray, chunks: np.ndarray, positions: np.ndarray, lengths: np.ndarray) -> None:
        """Lay out the documents, of which at least one is a span.

        Args:
            sources: Number of each span's source, 0 for documents that are no spans, `(n,)`.
            chunks: Chunk of each span `(n,)`.
            positions: Log position that created each span `(n,)`; chunk and position are unique within a source.
            lengths: Words of each document `(n,)`.
        """
        order = np.lexsort((positions, chunks, sources))
        ordered_sources, ordered_lengths = sources[order], lengths[order]
        lends = NEAR / np.maximum(ordered_lengths, NEAR)
        for _ in range(3):  # not `**`: the last digit must not depend on the index
            lends = lends * lends
        lends[(ordered_sources == 0) | (ordered_lengths > WINDOW)] = 0.0
        first = np.diff(ordered_sources, prepend=-1) != 0
        # Runs of spans that lend lie on one line, with gaps between them and at both ends, so no words cross.
        is_linked = lends > 0
        previous_linked = np.append(False, is_linked[:-1]) & ~first
        self._linked = order[is_linked]
        starts = (is_linked & ~previous_linked)[is_linked]
        self._line_indices = np.arange(len(self._linked)) + REACH * np.cumsum(starts)
        self._line_of_document = np.full(len(order), -1, np.int64)
        self._line_of_document[self._linked] = self._line_indices
        self._line_size = (int(self._line_indices[-1]) if len(self._linked) else REACH) + 1 + REACH

        counts = count_passages(lengths)
        mass = min(float(NEAR), lengths.sum() / counts.sum())
        linked_lengths = lengths[self._linked]
        self._lends = self._line(lends[is_linked])
        received = self._line(mass / (mass + linked_lengths) if mass else np.zeros(len(linked_lengths)))
        inside = slice(REACH, self._line_size - REACH)
        self._weights = []  # before and after, by steps, for the indices between the ends
        weight = np.ones(self._line_size - 2 * REACH)
        before, after = weight, weight
        for steps in range(1, REACH + 1):
            weight = weight * received[inside]  # not a power: the last digit must not depend on the index
            before = before * self._shifted(self._lends, -steps)
            after = after * self._shifted(self._lends, steps)
            self._weights.append((weight * before, weight * after))
        around = np.zeros(self._line_size)
        around[inside] = self._sum_neighbours(self._line(linked_lengths))
        effective = lengths / counts + np.where(lengths > WINDOW, CONTEXT, 0)
        effective[self._linked] += around[self._line_indices]
        mean = math.fsum(effective * counts) / counts.sum()  # exact in any order of the documents
        self.inverse_mean = 1.0 / mean if mean else 0.0
        effective_lengths = lengths.astype(np.float64)
        effective_lengths[self._linked] = effective[self._linked]
        self._penalties = K1 * (1.0 - B + B * effective_lengths * self.inverse_mean)

    def _line(self, values: np.ndarray) -> np.ndarray:
        """Return values of the linked documents on the line, 0 in the gaps."""
        line = np.zeros(self._line_size)
        line[self._line_indices] = values
        return line

    def _shifted(self, line: np.ndarray, steps: int) -> np.ndarray:
        """Return the values some steps away, for the indices between the ends of the line."""
        return line[REACH + steps : self._line_size - REACH + steps]

    def _sum_neighbours(self, line: np.ndarray) -> np.ndarray:
        """Return the weighted sums of neighbouring values, for the indices between the ends of the line."""
        around = np.zeros(self._line_size - 2 * REACH)
        for steps, (before, after) in enumerate(self._weights, start=1):
            around += before * self._shifted(line, -steps)
            around += after * self._shifted(line, steps)
        return around

    def _spread(self, indices: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the counts of a word on the line, with those of its neighbours where a span lacks it.

        Args:
            indices: Indices on the line of the spans that hold the word.
            counts: Its counts there.
        """
        line = np.bincount(indices, counts, self._line_size).astype(np.float64, copy=False)
        if len(indices) * _SPARSE > self._line_size:
            inner = line[REACH : self._line_size - REACH]
            np.copyto(inner, self._sum_neighbours(line), where=inner == 0.0)
            return line
        around = np.zeros(self._line_size)
        for steps, (before, after) in enumerate(self._weights, start=1):
            for weights, step in ((before, steps), (after, -steps)):  # from a span to the one `step` after it
                targets = indices + step
                inside = (targets >= REACH) & (targets < self._line_size - REACH)
                around[targets[inside]] += weights[targets[inside] - REACH] * counts[inside]
        around[indices] = counts
        return around

    def scores(self, matches: TermMatches | None) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and term weights for a query's matches.

        Returns:
            Scores of all documents, float64 `(n,)`, 0 where no word reaches, and the weight of each term `(t,)`.
        """
        size = len(self._line_of_document)
        total = np.zeros(size)
        if matches is None:
            return total, np.zeros(0)
        idf = np.zeros(len(matches.repeats))
        ends = np.searchsorted(matches.terms, np.arange(len(matches.repeats) + 1))
        for term, (start, end) in enumerate(pairwise(ends.tolist())):
            if start == end:
                continue
            documents, counts = matches.documents[start:end], matches.counts[start:end].astype(np.float64)
            indices = self._line_of_document[documents]
            is_linked = indices >= 0
            line = self._spread(indices[is_linked], counts[is_linked])
            reached = np.flatnonzero(line[self._line_indices])
            reached_documents, reached_counts = self._linked[reached], line[self._line_indices[reached]]
            alone, alone_counts = documents[~is_linked], counts[~is_linked]
            holders = len(alone) + np.count_nonzero(reached_counts >= REACHED)
            idf[term] = math.log(1.0 + (size - holders + 0.5) / (holders + 0.5)) * matches.repeats[term]
            total[alone] += idf[term] * alone_counts / (alone_counts + self._penalties[alone])
            penalties = self._penalties[reached_documents]
            total[reached_documents] += idf[term] * reached_counts / (reached_counts + penalties)
        return total, idf
