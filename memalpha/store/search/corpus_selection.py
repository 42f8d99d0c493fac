"""Documents of a corpus that one search covers, with the statistics of these alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from memalpha.store.search.bm25 import SelectedPostings, TermMatches
from memalpha.store.search.passages import PassageMatches
from memalpha.store.search.ranking import Selection
from memalpha.store.search.vectors import BLOCK, add_by_group, inner_products, unit_directions

if TYPE_CHECKING:
    from memalpha.store.search.corpus import Corpus


class CorpusSelection(Selection):
    """Select documents of a corpus by their slots.

    `slots`, int64 `(n,)`, are in the order of their groups, unless they are the whole memory.
    """

    def __init__(self, corpus: Corpus, slots: np.ndarray, *, is_whole: bool) -> None:
        groups = corpus._groups[slots]
        if not is_whole:
            order = np.argsort(groups, kind="stable")
            slots, groups = slots[order], groups[order]
        super().__init__(groups, len(corpus._group_numbers))
        self._corpus, self._whole, self.slots = corpus, is_whole, slots

    @cached_property
    def _lexical(self) -> SelectedPostings:
        return SelectedPostings(self._corpus._lexical, self.slots)

    @cached_property
    def lengths(self) -> np.ndarray:
        return self._lexical.lengths

    def match_terms(self, query: Sequence[str]) -> TermMatches | None:
        return self._lexical.match_terms(query)

    def match_passages(self, query: Sequence[str]) -> PassageMatches | None:
        return self._corpus._passages.match(query, self._lexical.document_of_slot)

    def spans(self) -> np.ndarray | None:
        return self._corpus._spans[self.slots] if self._corpus._source_numbers else None

    @cached_property
    def _should_gather(self) -> bool:
        return not self._whole and self._corpus._vectors.should_gather(self.slots)

    @cached_property
    def _rows(self) -> np.ndarray:
        return self._corpus._vectors.vectors_at(self.slots)

    @cached_property
    def _prototypes(self) -> np.ndarray:
        """Return the prototypes of the selected documents, float32 `(group_count, dim)`."""
        sums = np.zeros((self.size, self._corpus.embedder.dim))
        for start in range(0, len(self.slots), BLOCK):
            block = slice(start, start + BLOCK)
            rows = self._rows[block] if self._should_gather else self._corpus._vectors.vectors_at(self.slots[block])
            add_by_group(sums, self.groups[block], rows)
        return unit_directions(sums)

    def dense_scores(self, vector: np.ndarray) -> np.ndarray:
        if self._should_gather:
            return inner_products(vector, self._rows)[0]
        return self._corpus._vectors.scores(vector, self.slots)[0]

    def prototype_scores(self, vector: np.ndarray) -> np.ndarray:
        if self._whole:
            return self._corpus._prototypes.scores(vector)[0]
        return inner_products(vector, self._prototypes)[0]
