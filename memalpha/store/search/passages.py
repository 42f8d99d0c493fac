"""Passages of long entries: windows of whole sentences, indexed by their words.

An entry of more than `WINDOW` words is about several things. Its BM25 is that of its best passage (the idea of passage
retrieval: Kaszkiel, Zobel, "Effective ranking with arbitrary passages", JASIST 2001). A word that the passage lacks
counts as often as the rest of the entry has it, times `CONTEXT / words of the entry`. So the entry's other words count
like those of a text of `CONTEXT` words around the passage.

Words are those of `bm25.words`: without stop words. Document frequencies stay those of whole entries, and mean lengths
assume entries cut into equal parts. So only entries that hold a word of the query are ever cut or looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from memalpha.store.search.bm25 import K1, B, LexicalIndex, words

WINDOW = 80  # words of a passage at most
CONTEXT = 64  # words that the rest of an entry counts as
_SENTENCE = re.compile(r"(?<=[.!?\u061f\u0964])\s+|\n+|(?<=[\u3002\uff01\uff1f])")


@lru_cache(maxsize=1024)
def split_passages(text: str) -> tuple[str, ...]:
    """Split a text into windows of whole sentences, of at most `WINDOW` words each.

    A longer sentence is cut at blanks, or between characters where it has none. A text that fits is one passage.
    """
    if len(words(text)) <= WINDOW:
        return (text,)
    windows, start, end, size = [], 0, 0, 0
    for piece_start, piece_end, count in _pieces(text):
        if size and size + count > WINDOW:
            windows.append(text[start:end].strip())
            start, size = piece_start, 0
        end, size = piece_end, size + count
    return (*windows, text[start:end].strip())


def _pieces(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and word count of the sentences of a text, of parts of those that are too long."""
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    start = 0
    for end in dict.fromkeys([*ends, len(text)]):
        yield from _cut(text, start, end)
        start = end


def _cut(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    count = len(words(text[start:end]))
    if count <= WINDOW or end - start < 2:
        yield start, end, count
        return
    middle = (start + end) // 2
    blank = text.find(" ", middle, end - 1)
    middle = middle if blank < 0 else blank + 1
    yield from _cut(text, start, middle)
    yield from _cut(text, middle, end)


def count_passages(lengths: np.ndarray) -> np.ndarray:
    """Return the number of passages of entries by their lengths in words, float64 `(n,)`: an estimate, not a count."""
    return np.ceil(np.maximum(lengths, 1) / WINDOW)


def effective_total(lengths: np.ndarray) -> tuple[int, int]:
    """Return the number of passages of entries, and their words; a passage of a long entry has `CONTEXT` more."""
    counts = count_passages(lengths).astype(np.int64)
    return int(counts.sum()), int(lengths.sum() + CONTEXT * counts[lengths > WINDOW].sum())


class PassageMatches(NamedTuple):
    """Matches of a query's terms among passages of long documents, those of one document beside each other.

    Attributes:
        terms: Number of the term, as in the matches of documents, `(m,)`.
        passages: Index of the passage, `(m,)`.
        counts: Count of the term in the passage, `(m,)`.
        documents: Index of each passage's document in the selection, `(p,)`.
        lengths: Words of each passage, `(p,)`.
        numbers: Number of each passage within its document, from 0, `(p,)`.
    """

    terms: np.ndarray
    passages: np.ndarray
    counts: np.ndarray
    documents: np.ndarray
    lengths: np.ndarray
    numbers: np.ndarray

    def best(self, idf: np.ndarray, lengths: np.ndarray, inverse_mean: float) -> PassageScores:
        """Return the best passage of each document that has any here.

        Args:
            idf: Weight of each term.
            lengths: Words of each document of the selection.
            inverse_mean: 1 / the mean length of `effective_total`.
        """
        is_first = np.diff(self.documents, prepend=-1) != 0
        starts, owners = np.flatnonzero(is_first), np.cumsum(is_first) - 1  # of each passage, among these documents
        documents = self.documents[starts]
        document_lengths = lengths[documents]
        share = CONTEXT / document_lengths
        keys = self.terms * len(starts) + owners[self.passages]
        totals = np.bincount(keys, self.counts, len(idf) * len(starts))
        filled = np.flatnonzero(totals)
        mean_lengths = document_lengths / count_passages(document_lengths)
        rest = np.zeros(len(totals))  # of terms that a passage lacks
        terms, holders = filled // len(starts), filled % len(starts)
        counts = totals[filled] * share[holders]
        rest[filled] = idf[terms] * counts / (counts + _penalties(mean_lengths, inverse_mean)[holders])
        scores = np.bincount(holders, rest[filled], len(starts))[owners]
        penalties = _penalties(self.lengths, inverse_mean)[self.passages]
        gains = idf[self.terms] * self.counts / (self.counts + penalties) - rest[keys]
        scores += np.bincount(self.passages, gains, len(owners))
        best = np.lexsort((self.numbers, -scores, owners))[starts]
        return PassageScores(documents, scores[best], self.numbers[best])


class PassageScores(NamedTuple):
    """Best passages of documents: index of the document, score and number of its best passage, each `(d,)`."""

    documents: np.ndarray
    scores: np.ndarray
    numbers: np.ndarray


def _penalties(lengths: np.ndarray, inverse_mean: float) -> np.ndarray:
    """Return the length penalties of passages of some words, with the rest of their entries."""
    return K1 * (1.0 - B + B * (lengths + CONTEXT) * inverse_mean)


class PassageIndex:
    """Count of each term in the passages of long documents, by slot of the document.

    Passages of removed documents are excluded by the selections until `settle` drops them, as in `LexicalIndex`.
    """

    def __init__(self) -> None:
        self.lexical = LexicalIndex()
        self.slots = np.zeros(0, np.int64)  # of the document, by passage; -1 where a passage was dropped
        self.numbers = np.zeros(0, np.int64)  # of the passage within its document

    def add(self, slots: np.ndarray, texts: Sequence[str]) -> None:
        """Add the passages of long documents at as many slots `(n,)`."""
        passages = [split_passages(text) for text in texts]
        sizes = list(map(len, passages))
        first = len(self.slots)
        self.slots = np.concatenate([self.slots, np.repeat(slots, sizes)])
        self.numbers = np.concatenate([self.numbers, *map(np.arange, sizes)]).astype(np.int64)
        self.lexical.add(np.arange(first, len(self.slots)), [part for parts in passages for part in parts])

    def settle(self, live: np.ndarray) -> None:
        """Drop the passages of slots that are not `live` (bool by slot)."""
        if len(self.slots):
            is_live = (self.slots >= 0) & live[self.slots]
            self.slots[~is_live] = -1
            self.lexical.settle(is_live)

    def match(self, query: Sequence[str], document_of_slot: np.ndarray) -> PassageMatches | None:
        """Return the matches among the passages of selected documents; None if there are none.

        Args:
            query: Terms of the query.
            document_of_slot: Index of each slot's document in the selection, -1 where it is not selected.
        """
        postings = self.lexical.term_postings(query)
        if not len(self.slots) or not postings:
            return None
        passages = np.concatenate([part for _, part, _ in postings])
        slots = self.slots[passages]
        selected = np.flatnonzero((slots >= 0) & (document_of_slot[slots] >= 0))
        if not len(selected):
            return None
        terms = np.repeat(np.arange(len(postings)), [len(part) for _, part, _ in postings])[selected]
        counts = np.concatenate([counts for _, _, counts in postings])[selected]
        passages = passages[selected]
        is_match = np.zeros(len(self.slots), bool)
        is_match[passages] = True
        indices = np.cumsum(is_match) - 1
        matching = np.flatnonzero(is_match)
        documents = document_of_slot[self.slots[matching]].astype(np.int64)
        lengths = self.lexical.lengths[matching].astype(np.int64)
        return PassageMatches(terms, indices[passages], counts, documents, lengths, self.numbers[matching])
