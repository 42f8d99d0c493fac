"""Approximate search of a large memory, which scores candidates instead of every document.

Above `EXACT_LIMIT` documents, a search of the whole memory scores these candidates:

- the `NEAREST` documents by the codes of `InvertedLists`, and a quarter as many of a group that the prior favours;
- the `BEST_BY_WORDS` best by the query's words and their group's prior;
- documents that were added since the lists were built.

Their scores equal those of the exact search, part by part:

- dense: inner products of the vectors themselves, not of codes;
- bm25 and the group prior: exact, from the postings of the query's terms and from running counts;
- the scale of dense: its maximum is the best candidate's, its minimum that of the documents nearest to the opposite of
  the query. Only here can a score differ from the exact one, and then all scores by the same factor.

So the only possible error is that one of the best is no candidate. Recall@10 was at least 0.99 at a million documents
(`eval/store/scale.py`). Every document is scored in filtered searches, the route "hard", "soft" with raw spans, and
while the first lists of a memory are being built. A past state has the lists of the present one (see
`NamespaceIndex._rewind`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from memalpha.store.search.background import Background, Stopped
from memalpha.store.search.bm25 import BM25, TermMatches, add_bm25
from memalpha.store.search.normalize import share_of_best
from memalpha.store.search.ranking import LexicalScores
from memalpha.store.search.vectors import decode

if TYPE_CHECKING:
    from memalpha.store.search.corpus import Corpus

EXACT_LIMIT = 50_000  # documents; up to here every one is scored, in a few milliseconds
NEAREST = BEST_BY_WORDS = 600
FARTHEST = 100
MAX_RESULTS = 100  # for more results, every document is scored
MAX_RECENT = 1024  # documents outside the lists before they are added
_MIN_CODES = 200_000  # codes compared per query, or a quarter of all if that is more
_MAX_LISTS = 1024
_EXTRA_GROUPS = 3  # groups whose nearest documents may be added
_BLOCK = 16384


class InvertedLists:
    """Vectors by slot as short codes in inverted lists: FAISS's IVF with 4-bit product quantisation.

    Codes take 1/32 of the vectors' memory. A query compares a quarter of the lists (more in a small memory): some
    milliseconds for a million vectors, however they cluster. Training is seeded.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self.size: int = index.ntotal
        index.nprobe = max(1, round(index.nlist * min(1.0, max(1 / 4, _MIN_CODES / max(1, self.size)))))

    @classmethod
    def build(cls, rows: np.ndarray, slots: np.ndarray, stopped: Callable[[], bool] = lambda: False) -> InvertedLists:
        """Train and fill lists.

        Args:
            rows: Encoded vectors by slot.
            slots: Slots to index.
            stopped: Called often; the build raises `Stopped` soon after it returns True.
        """
        count = min(_MAX_LISTS, max(16, len(slots) // 1000))
        sample = np.random.default_rng(0).choice(slots, min(len(slots), 40 * count), replace=False)
        training_rows = decode(rows[np.sort(sample)])
        dim = training_rows.shape[1]
        codes = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
        index: Any = faiss.index_factory(dim, f"IVF{count},PQ{codes}x4fs", faiss.METRIC_INNER_PRODUCT)
        index.cp.niter, index.cp.max_points_per_centroid = 8, 40
        index.train(training_rows)
        return cls(_add_rows(index, rows, slots, stopped))

    def with_rows(
        self, rows: np.ndarray, slots: np.ndarray, stopped: Callable[[], bool] = lambda: False
    ) -> InvertedLists:
        """Return a copy that also holds the vectors of `rows[slots]`.

        Args:
            rows: Encoded vectors by slot.
            slots: Slots to add.
            stopped: Called often; this raises `Stopped` soon after it returns True.
        """
        return InvertedLists(_add_rows(faiss.clone_index(self._index), rows, slots, stopped))

    @classmethod
    def from_bytes(cls, part: np.ndarray) -> InvertedLists:
        """Return the lists that `bytes` gave."""
        return cls(faiss.deserialize_index(part))

    def is_current(self, added: int, number: int) -> bool:
        """Return True if there are enough lists for `number` documents, and few dead vectors after adding `added`."""
        return self._index.nlist * 2 >= min(_MAX_LISTS, number // 1000) and self.size + added <= number * 3 // 2

    @property
    def bytes(self) -> np.ndarray:
        """Serialized lists, uint8 `(n,)`."""
        return faiss.serialize_index(self._index)

    def nearest(
        self, vector: np.ndarray, count: int, among: np.ndarray | None = None, *, fast: bool = False
    ) -> np.ndarray:
        """Return the slots of about `count` nearest vectors; some may have been removed since.

        Args:
            vector: Query `(1, dim)`.
            count: Number of slots.
            among: Bitmap of slots to search (uint8, 8 slots each); None searches all.
            fast: Compare only a quarter of the usual lists.
        """
        params: Any = faiss.SearchParametersIVF()
        params.nprobe = max(1, self._index.nprobe // 4) if fast else self._index.nprobe
        if among is not None:
            selector = faiss.IDSelectorBitmap(among)  # pyright: ignore[reportCallIssue]: FAISS's wrapper takes arrays
            params.sel = selector
        slots = self._index.search(vector, count, params=params)[1][0]
        return slots[slots >= 0]


def _add_rows(index: Any, rows: np.ndarray, slots: np.ndarray, stopped: Callable[[], bool]) -> Any:
    for start in range(0, len(slots), _BLOCK):
        if stopped():
            raise Stopped
        block = slots[start : start + _BLOCK]
        index.add_with_ids(decode(rows[block]), block)
    return index


class ApproximateIndex:
    """Inverted lists of one corpus, built and updated in the background of its searches."""

    def __init__(self, corpus: Corpus, background: Background) -> None:
        self._corpus, self._background = corpus, background
        self._lists: InvertedLists | None = None
        self.since: list[int] = []  # slots filled since the build of the lists started
        self._until = 0  # number of these that the lists being built will hold
        self.is_saved = True
        self._members: dict[int, np.ndarray] = {}  # bitmaps of groups, as of the lists

    @property
    def is_built(self) -> bool:
        """True if there are lists."""
        return self._lists is not None

    def restore(self, lists: InvertedLists, since: list[int]) -> None:
        """Take over saved lists, and the slots filled since they were built."""
        self._lists, self.since = lists, since

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the lists and the recent slots as arrays."""
        if self._lists is None:
            return {}
        return {"lists": self._lists.bytes, "since": np.array(self.since, np.int64)}

    def ready_lists(self) -> InvertedLists | None:
        """Return the lists if they are built, and start building or updating them in the background if needed."""
        if len(self._corpus) <= EXACT_LIMIT:
            return None
        self._fetch()
        if not self._background.is_busy:
            self._start_build(MAX_RECENT)
        return self._lists

    def build(self) -> None:
        """Build or update the lists, and wait for them."""
        self._fetch(wait=True)
        if len(self._corpus) > EXACT_LIMIT:
            self._start_build(0)
            self._fetch(wait=True)

    def _start_build(self, recent_limit: int) -> None:
        """Start a build if there are no suitable lists or more than `recent_limit` documents outside them."""
        lists, rows, since = self._lists, self._corpus._vectors.rows, len(self.since)
        if lists is None or not lists.is_current(since, len(self._corpus)):
            slots = np.flatnonzero(self._corpus._live)
            self._background.start(lambda stopped: InvertedLists.build(rows, slots, stopped))
        elif since > recent_limit:
            recent = self.live_recent_slots()
            self._background.start(lambda stopped: lists.with_rows(rows, recent, stopped))
        self._until = since

    def _fetch(self, *, wait: bool = False) -> None:
        lists = self._background.fetch(wait=wait)
        if lists is not None:
            self._lists, self.since, self.is_saved = lists, self.since[self._until :], False
            self._members.clear()

    def group_bitmap(self, group: int) -> np.ndarray:
        """Return a group's slots as a bitmap for `InvertedLists.nearest`, as of the last build."""
        if group not in self._members:
            self._members[group] = np.packbits(self._corpus._groups == group, bitorder="little")
        return self._members[group]

    def live_recent_slots(self) -> np.ndarray:
        """Return the slots of live documents outside the lists, int64 `(n,)`."""
        since = np.array(self.since, np.int64)
        return since[self._corpus._live[since]]


class Candidates:
    """Documents that may be among the best for one query, with the statistics of the whole memory.

    Attributes:
        slots: Slots of the candidates, int64 `(n,)`.
        score_ranges: Minimum and maximum over all documents, by part of the score.
    """

    def __init__(self, corpus: Corpus, query: Sequence[str], vector: np.ndarray | None, lists: InvertedLists) -> None:
        self._corpus, live = corpus, corpus._live
        self._postings = []
        for repeats, slots, counts in corpus._lexical.term_postings(query):
            here = live[slots]
            self._postings.append((repeats, slots[here], counts[here]))
        scores = corpus._scratch()
        number = len(corpus)
        passages, total = corpus._passage_totals.tolist()
        inverse_mean = passages / total if total else 0.0
        holders = add_bm25(scores, self._postings, corpus._lexical.lengths, number, inverse_mean)
        values = scores[holders]
        low, high = (0.0 if len(holders) < number else values.min()), values.max(initial=0.0)
        self.score_ranges = {"bm25": (low, high)}
        if vector is None or corpus._approximate is None:
            self._prior = np.zeros(len(corpus._group_sizes))
            self.slots = holders[_indices_of_largest(values, BEST_BY_WORDS)].astype(np.int64)
        else:
            self._prior = self._prior_by_group(vector)
            values = values / max(high, 1e-9) + self._prior[corpus._groups[holders]]
            near = self._nearest_slots(corpus._approximate, lists, vector)
            chosen = [
                holders[_indices_of_largest(values, BEST_BY_WORDS)],
                near,
                corpus._approximate.live_recent_slots(),
            ]
            self.slots = np.unique(np.concatenate(chosen)).astype(np.int64)
            self._dense = corpus._vectors.scores(vector, self.slots)[0]
            far = lists.nearest(-vector, FARTHEST, fast=True)
            low = corpus._vectors.scores(vector, far[live[far]])[0].min(initial=self._dense.min(initial=0.0))
            self.score_ranges["dense"] = (low, self._dense.max(initial=0.0))
        self._bm25 = LexicalScores(scores[self.slots], np.full(len(self.slots), np.nan))
        scores[holders] = 0.0
        if passages > number:
            self._score_passages(query, inverse_mean)

    def _score_passages(self, query: Sequence[str], inverse_mean: float) -> None:
        """Score long candidates by their best passage, and the range of bm25 with them."""
        corpus = self._corpus
        document_of_slot = np.full(len(corpus._lexical.lengths), -1, np.int32)
        document_of_slot[self.slots] = np.arange(len(self.slots))
        matches = corpus._passages.match(query, document_of_slot)
        if matches is not None:
            bm25 = BM25(np.zeros(len(corpus)))
            idf = bm25.idf(*np.array([(repeats, len(slots)) for repeats, slots, _ in self._postings]).T)
            best = matches.best(idf, corpus._lexical.lengths[self.slots], inverse_mean)
            self._bm25.scores[best.documents], self._bm25.passages[best.documents] = best.scores, best.numbers
            low = self.score_ranges["bm25"][0]
            self.score_ranges["bm25"] = (min(low, self._bm25.scores.min()), self._bm25.scores.max())

    def _nearest_slots(self, index: ApproximateIndex, lists: InvertedLists, vector: np.ndarray) -> np.ndarray:
        """Return the slots of the nearest documents, with more of the groups that the prior favours."""
        corpus, prior = self._corpus, self._prior
        slots = lists.nearest(vector, NEAREST)
        slots = slots[corpus._live[slots]]
        slot_arrays = [slots]
        group_counts = np.bincount(corpus._groups[slots], minlength=len(prior))
        mean_prior = prior[corpus._groups[slots]].mean() if len(slots) else 0.0
        for group in np.argsort(-prior, kind="stable")[:_EXTRA_GROUPS].tolist():
            if prior[group] > mean_prior and group_counts[group] < min(NEAREST // 4, corpus._group_sizes[group]):
                more = lists.nearest(vector, NEAREST // 4, index.group_bitmap(group))
                slot_arrays.append(more[corpus._live[more]])
        return np.concatenate(slot_arrays)

    def dense_scores(self, vector: np.ndarray) -> np.ndarray:
        """Return the inner products of the query's vector `(1, dim)` with the documents', float64 `(n,)`."""
        return self._dense

    def bm25_scores(self, query: Sequence[str]) -> LexicalScores:
        """Return BM25 of each document."""
        return self._bm25

    def neighbour_scores(self, query: Sequence[str]) -> None:
        """Return None: a memory with spans is searched by `CorpusSelection`."""

    def group_prior(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        """Return the prior of each document's group, float64 `(n,)`."""
        return self._prior[self._corpus._groups[self.slots]]

    def _prior_by_group(self, vector: np.ndarray) -> np.ndarray:
        """Return the prior of each group, float64 `(groups,)`."""
        corpus = self._corpus
        filled = np.flatnonzero(corpus._group_sizes)
        holders, counts = [], []
        for _, slots, term_counts in self._postings:
            group_counts = np.bincount(corpus._groups[slots], term_counts, len(corpus._group_sizes))[filled]
            holders.append(np.flatnonzero(group_counts))
            counts.append(group_counts[holders[-1]])
        matches = None
        if holders:
            terms = np.repeat(np.arange(len(holders)), list(map(len, holders)))
            repeats = np.array([repeats for repeats, _, _ in self._postings])
            matches = TermMatches(repeats, terms, np.concatenate(holders), np.concatenate(counts))
        bm25 = BM25(corpus._group_words[filled])
        prior = np.zeros(len(corpus._group_sizes))
        prior[filled] = (
            share_of_best(bm25.scores(matches)[0]) + share_of_best(corpus._prototypes.scores(vector)[0][filled])
        ) / 2
        return prior


def _indices_of_largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values, and of those equal to the last."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])
