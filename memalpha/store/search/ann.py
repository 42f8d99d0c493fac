"""Approximate search of a large memory, which scores candidates instead of every document.

Above `EXACT_LIMIT` documents, a search of the whole memory by vectors scores these candidates:

- the `NEAREST` documents by an index of FAISS, and a quarter as many of a group that the prior favours;
- the `BEST_BY_WORDS` best by the query's words and their group's prior.

Their scores equal those of the exact search, part by part: bm25 and the prior are computed for all documents, and dense
scores are products of the vectors themselves, not of the index's codes. Only the scale of dense can differ, and then
all scores by the same factor: its maximum is the best candidate's, its minimum that of the documents nearest to the
opposite of the query. So the only possible error is that one of the best is no candidate (`eval/store/scale.py`
measures that).

Every document is scored in filtered searches, of past states, by the routes "hard" and "bm25", and by "soft" with raw
spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from memalpha.store.search.ranking import CATEGORY_WEIGHT, LexicalScores, Selection

if TYPE_CHECKING:
    from memalpha.store.search.options import Route

EXACT_LIMIT = 50_000  # documents; up to here every one is scored, in a few milliseconds
NEAREST = BEST_BY_WORDS = 600
FARTHEST = 100
MAX_RESULTS = 100  # for more results, every document is scored
LISTS = 256
_ROWS_PER_LIST = 40  # in training
_EXTRA_GROUPS = 3  # groups whose nearest documents may be added
_BLOCK = 16384


class ApproximateIndex:
    """FAISS's inverted lists of 4-bit codes (IVF, PQ) over vectors by slot.

    Codes take 1/32 of the vectors' memory. A query compares all of them: of a million, some milliseconds more than a
    quarter of the lists take, which miss one of seven of the nearest where vectors do not cluster. Training is seeded.
    Removed slots stay until the index is built anew.
    """

    def __init__(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Train the index and add the vectors `rows[slots]`."""
        dim = rows.shape[1]
        codes = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
        self._index: Any = faiss.index_factory(dim, f"IVF{LISTS},PQ{codes}x4fs", faiss.METRIC_INNER_PRODUCT)
        self._index.cp.niter, self._index.cp.max_points_per_centroid = 8, _ROWS_PER_LIST
        sample = np.random.default_rng(0).choice(slots, min(len(slots), _ROWS_PER_LIST * LISTS), replace=False)
        self._index.train(rows[np.sort(sample)])
        self._trained_for = len(slots)
        self.add(rows, slots)

    def add(self, rows: np.ndarray, slots: np.ndarray) -> None:
        """Add the vectors `rows[slots]`."""
        for start in range(0, len(slots), _BLOCK):
            block = slots[start : start + _BLOCK]
            self._index.add_with_ids(rows[block], block)

    def is_worn(self, count: int) -> bool:
        """Return True if the index was trained for far fewer than `count` documents, or holds many removed ones."""
        return count > 4 * self._trained_for or self._index.ntotal > 2 * count

    def nearest(
        self, vector: np.ndarray, count: int, among: np.ndarray | None = None, *, fast: bool = False
    ) -> np.ndarray:
        """Return the slots of about `count` nearest vectors; some may have been removed since.

        Args:
            vector: Query `(1, dim)`.
            count: Number of slots.
            among: Mask of the slots to search, bool `(slots,)`; None searches all.
            fast: Compare a quarter of the lists only.
        """
        params: Any = faiss.SearchParametersIVF()
        params.nprobe = LISTS // 4 if fast else LISTS
        if among is not None:
            bitmap = np.packbits(among, bitorder="little")
            selector = faiss.IDSelectorBitmap(bitmap)  # pyright: ignore[reportCallIssue]: FAISS's wrapper takes arrays
            params.sel = selector
        slots = self._index.search(vector, count, params=params)[1][0]
        return slots[slots >= 0]


class Candidates:
    """Documents that may be among the best for one query, with the statistics of the whole memory.

    Attributes:
        slots: Slots of the candidates, int64 `(n,)`.
        score_ranges: Minimum and maximum over all documents, by part of the score.
    """

    def __init__(
        self, whole: Selection, index: ApproximateIndex, query: Sequence[str], vector: np.ndarray, route: Route
    ) -> None:
        """Choose the candidates.

        Args:
            whole: Selection of all documents.
            index: Index of their vectors.
            query: Terms of the query.
            vector: Embedding of the query `(1, dim)`.
            route: Route of the search: "soft", "flat" or "dense".
        """
        group_prior = whole.group_priors(query, vector) if route == "soft" else np.zeros(whole.size)
        described = whole.description_scores(vector) if route == "soft" else None
        prior = group_prior if described is None else group_prior + CATEGORY_WEIGHT * described
        chosen = [self._nearest(whole, index, vector, prior)]
        lexical = None if route == "dense" else whole.bm25_scores(query)
        if lexical is not None:
            holders = np.flatnonzero(lexical.scores)
            values = lexical.scores[holders]
            low, high = 0.0 if len(holders) < len(whole.slots) else values.min(), values.max(initial=0.0)
            self.score_ranges = {"bm25": (low, high)}
            values = values / max(high, 1e-9) + prior[whole.groups[holders]]
            chosen.append(holders[_indices_of_largest(values, BEST_BY_WORDS)])
        documents = np.unique(np.concatenate(chosen))
        self.slots = whole.slots[documents]
        self._dense = whole.products(vector, documents)
        self._prior = group_prior[whole.groups[documents]]
        self._category = None if described is None else described[whole.groups[documents]]
        if lexical is not None:
            self._lexical = LexicalScores(
                lexical.scores[documents], lexical.passages[documents], confidence=lexical.confidence
            )
            far = whole.products(vector, whole.documents_at(index.nearest(-vector, FARTHEST, fast=True)))
            lowest = far.min(initial=self._dense.min(initial=0.0))
            self.score_ranges["dense"] = (lowest, self._dense.max(initial=0.0))

    @staticmethod
    def _nearest(whole: Selection, index: ApproximateIndex, vector: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """Return the nearest documents, with more of the groups that the prior favours."""
        documents = whole.documents_at(index.nearest(vector, NEAREST))
        groups = whole.groups[documents]
        counts, sizes = np.bincount(groups, minlength=whole.size), whole.group_sizes
        chosen, mean_prior = [documents], prior[groups].mean() if len(documents) else 0.0
        for group in np.argsort(-prior, kind="stable")[:_EXTRA_GROUPS].tolist():
            if prior[group] > mean_prior and counts[group] < min(NEAREST // 4, sizes[group]):
                chosen.append(whole.documents_at(index.nearest(vector, NEAREST // 4, whole.slots_in_group(group))))
        return np.concatenate(chosen)

    def dense_scores(self, vector: np.ndarray) -> np.ndarray:
        """Return the inner products of the query's vector `(1, dim)` with the documents', float64 `(n,)`."""
        return self._dense

    def bm25_scores(self, query: Sequence[str]) -> LexicalScores:
        """Return BM25 of each document."""
        return self._lexical

    def neighbour_scores(self, query: Sequence[str]) -> None:
        """Return None: a memory with spans is searched exactly."""

    def marks(self) -> np.ndarray:
        """Return that no document is a span: a memory with spans is searched exactly."""
        return np.zeros((len(self.slots), 2), bool)

    def group_prior(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        """Return the prior of each document's group, float64 `(n,)`."""
        return self._prior

    def category_prior(self, vector: np.ndarray) -> np.ndarray | None:
        """Return the similarity of the query to what each document's group is for, float64 `(n,)`; None if equal."""
        return self._category


def _indices_of_largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values, and of those equal to the last."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])
