"""Search of a large memory without looking at every document.

Above `SIZE` documents a search of the whole memory looks at candidates alone: the `NEAR` documents whose vectors are
nearest by the codes of `Lists` (and a quarter as many of a group that the prior favours, if they are not among these),
the `WORDED` best by the query's words and their group, and what came since the lists were built. Their scores are those
of the exact search, part by part:

- dense: the inner products themselves, not those of codes;
- bm25 and the group prior: from the postings of the query's terms and from running counts, exactly;
- the scale of dense: its upper end is the best candidate's, its lower end that of the documents which the lists find
  nearest to the opposite of the query. Here alone a score can differ from the exact one, and all by the same factor.

So what can go wrong is that one of the best is not among the candidates: recall@10 was 0.99 and more at a million
(`eval/store/scale.py`). Filtered searches, past states, the route "hard", and "soft" where there are raw spans, look at
every document in question at any size, and so does every search while the lists of a memory are being built first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from memalpha.store.search.background import Background, Stopped
from memalpha.store.search.bm25 import BM25, TermMatches, add_bm25
from memalpha.store.search.normalize import share_of_best
from memalpha.store.search.vectors import decode

if TYPE_CHECKING:
    from memalpha.store.search.corpus import Corpus

EXACT_LIMIT = 50_000  # documents: up to here a search looks at every one, in a few milliseconds
NEAREST = BEST_BY_WORDS = 600
FARTHEST = 100
MAX_RESULTS = 100  # results; for more, every document is looked at
MAX_RECENT = 1024  # documents beside the lists before they are added to them
_MIN_CODES = 200_000  # codes, at least, or a quarter of all
_MAX_LISTS = 1024  # lists
_EXTRA_GROUPS = 3  # groups
_BLOCK = 16384


class InvertedLists:
    """Vectors by slot as short codes in inverted lists: FAISS's IVF with 4-bit product quantisation.

    Codes take 1/32 of what vectors take. A quarter of the lists is gone through for a query (of a small memory, more):
    some milliseconds for a million, however well the vectors fall into clusters. Training is seeded.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self.size: int = index.ntotal
        index.nprobe = max(1, round(index.nlist * min(1.0, max(1 / 4, _MIN_CODES / max(1, self.size)))))

    @classmethod
    def build(cls, rows: np.ndarray, slots: np.ndarray, stopped: Callable[[], bool] = lambda: False) -> InvertedLists:
        """Lists of the vectors that `rows[slots]` stand for; raises `Stopped` soon after `stopped` says so."""
        count = min(_MAX_LISTS, max(16, len(slots) // 1000))
        sample = np.random.default_rng(0).choice(slots, min(len(slots), 40 * count), replace=False)
        some = decode(rows[np.sort(sample)])
        dim = some.shape[1]
        parts = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
        index: Any = faiss.index_factory(dim, f"IVF{count},PQ{parts}x4fs", faiss.METRIC_INNER_PRODUCT)
        index.cp.niter, index.cp.max_points_per_centroid = 8, 40
        index.train(some)
        return cls(_add_rows(index, rows, slots, stopped))

    def with_rows(
        self, rows: np.ndarray, slots: np.ndarray, stopped: Callable[[], bool] = lambda: False
    ) -> InvertedLists:
        """A copy that has the vectors of `rows[slots]` as well."""
        return InvertedLists(_add_rows(faiss.clone_index(self._index), rows, slots, stopped))

    @classmethod
    def from_bytes(cls, part: np.ndarray) -> InvertedLists:
        """The lists that gave a part of an index file."""
        return cls(faiss.deserialize_index(part))

    def is_current(self, recent: int, number: int) -> bool:
        """Whether these, with `recent` ones added, would do for `number` documents: neither outgrown nor worn."""
        return self._index.nlist * 2 >= min(_MAX_LISTS, number // 1000) and self.size + recent <= number * 3 // 2

    @property
    def bytes(self) -> np.ndarray:
        """All of it as bytes, uint8 `(n,)`."""
        return faiss.serialize_index(self._index)

    def nearest(
        self, vector: np.ndarray, count: int, among: np.ndarray | None = None, *, fast: bool = False
    ) -> np.ndarray:
        """The slots of about the `count` vectors nearest to one `(1, dim)`, `among` those of a bitmap (uint8, 8 slots
        each); some may have been given up since. `fast`: going through a quarter of the lists that it usually does."""
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
        some = slots[start : start + _BLOCK]
        index.add_with_ids(decode(rows[some]), some)
    return index


class ApproximateIndex:
    """The lists of one corpus, built and brought up to date beside its searches."""

    def __init__(self, corpus: Corpus, background: Background) -> None:
        self._corpus, self._background = corpus, background
        self._lists: InvertedLists | None = None
        self.since: list[int] = []  # slots that were filled since the lists were begun
        self._until = 0  # how many of these the lists that are being built will hold
        self.is_saved = True
        self._members: dict[int, np.ndarray] = {}  # bitmaps of groups, as of the lists

    def restore(self, lists: InvertedLists, since: list[int]) -> None:
        """Go on with lists that were saved."""
        self._lists, self.since = lists, since

    def to_arrays(self) -> dict[str, np.ndarray]:
        """What `take` takes, as arrays."""
        if self._lists is None:
            return {}
        return {"lists": self._lists.bytes, "since": np.array(self.since, np.int64)}

    def ready_lists(self) -> InvertedLists | None:
        """The lists of a large memory, where there are any by now; has them built, or brought up to date, beside."""
        if len(self._corpus) <= EXACT_LIMIT:
            return None
        self._fetch()
        if not self._background.is_busy:
            self._begin(MAX_RECENT)
        return self._lists

    def build(self) -> None:
        """Build all that is not built, and return then."""
        self._fetch(wait=True)
        if len(self._corpus) > EXACT_LIMIT:
            self._begin(0)
            self._fetch(wait=True)

    def _begin(self, many: int) -> None:
        """Begin to build, where there are no lists or more than `many` documents beside them."""
        lists, rows, since = self._lists, self._corpus._vectors.rows, len(self.since)
        if lists is None or not lists.is_current(since, len(self._corpus)):
            slots = np.flatnonzero(self._corpus._live)
            self._background.start(lambda stopped: InvertedLists.build(rows, slots, stopped))
        elif since > many:
            some = self.live_recent_slots()
            self._background.start(lambda stopped: lists.with_rows(rows, some, stopped))
        self._until = since

    def _fetch(self, *, wait: bool = False) -> None:
        lists = self._background.fetch(wait=wait)
        if lists is not None:
            self._lists, self.since, self.is_saved = lists, self.since[self._until :], False
            self._members.clear()

    def group_bitmap(self, group: int) -> np.ndarray:
        """The documents of a group as a bitmap for `Lists.near`; of what came since, nothing is said."""
        if group not in self._members:
            self._members[group] = np.packbits(self._corpus._groups == group, bitorder="little")
        return self._members[group]

    def live_recent_slots(self) -> np.ndarray:
        """The slots of the documents beside the lists, int64 `(n,)`."""
        since = np.array(self.since, np.int64)
        return since[self._corpus._live[since]]


class Candidates:
    """The documents that may be among the best for one query, with the statistics of the whole memory.

    `slots` int64 `(n,)`; `score_ranges`: the smallest and largest score among all documents, by the part of a score.
    """

    def __init__(self, corpus: Corpus, query: Sequence[str], vector: np.ndarray | None, lists: InvertedLists) -> None:
        self._corpus, live = corpus, corpus._live
        self._found = []
        for repeats, slots, counts in corpus._lexical.term_postings(query):
            here = live[slots]
            if here.any():
                self._found.append((repeats, slots[here], counts[here]))
        scores = corpus._scratch()
        number, words = len(corpus), corpus._group_words.sum()
        holders = add_bm25(scores, self._found, corpus._lexical.lengths, number, words)
        values = scores[holders]
        low, high = (0.0 if len(holders) < number else values.min()), values.max(initial=0.0)
        self.score_ranges = {"bm25": (low, high)}
        if vector is None or corpus._near is None:
            self._prior = np.zeros(len(corpus._group_sizes))
            self.slots = holders[_indices_of_largest(values, BEST_BY_WORDS)].astype(np.int64)
        else:
            self._prior = self._group_prior(vector)
            values = values / max(high, 1e-9) + self._prior[corpus._groups[holders]]
            near = self._near(corpus._near, lists, vector)
            chosen = [holders[_indices_of_largest(values, BEST_BY_WORDS)], near, corpus._near.live_recent_slots()]
            self.slots = np.unique(np.concatenate(chosen)).astype(np.int64)
            self._dense = corpus._vectors.scores(vector, self.slots)[0]
            far = lists.nearest(-vector, FARTHEST, fast=True)
            low = corpus._vectors.scores(vector, far[live[far]])[0].min(initial=self._dense.min(initial=0.0))
            self.score_ranges["dense"] = (low, self._dense.max(initial=0.0))
        self._bm25 = scores[self.slots]
        scores[holders] = 0.0

    def _near(self, near: ApproximateIndex, lists: InvertedLists, vector: np.ndarray) -> np.ndarray:
        """The slots of the nearest documents, and of the nearest of groups that the prior favours where too few of
        these are among them."""
        corpus, prior = self._corpus, self._prior
        slots = lists.nearest(vector, NEAREST)
        slots = slots[corpus._live[slots]]
        found = [slots]
        there = np.bincount(corpus._groups[slots], minlength=len(prior))
        usual = prior[corpus._groups[slots]].mean() if len(slots) else 0.0
        for group in np.argsort(-prior, kind="stable")[:_EXTRA_GROUPS].tolist():
            if prior[group] > usual and there[group] < min(NEAREST // 4, corpus._group_sizes[group]):
                more = lists.nearest(vector, NEAREST // 4, near.group_bitmap(group))
                found.append(more[corpus._live[more]])
        return np.concatenate(found)

    def dense_scores(self, vector: np.ndarray) -> np.ndarray:
        """Inner products of the query's vector `(1, dim)` with each document's, float64 `(n,)`."""
        return self._dense

    def bm25_scores(self, query: Sequence[str]) -> np.ndarray:
        """BM25 of each document, float64 `(n,)`."""
        return self._bm25

    def neighbour_scores(self, query: Sequence[str]) -> None:
        """There are no spans: a memory that has any is searched by `_Selection`."""

    def group_prior(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        """The prior of each document's group, float64 `(n,)`."""
        return self._prior[self._corpus._groups[self.slots]]

    def _group_prior(self, vector: np.ndarray) -> np.ndarray:
        """The prior of each group, float64 `(groups,)`."""
        corpus = self._corpus
        there = np.flatnonzero(corpus._group_sizes)
        places, counts = [], []
        for _, slots, how_often in self._found:
            together = np.bincount(corpus._groups[slots], how_often, len(corpus._group_sizes))[there]
            places.append(np.flatnonzero(together))
            counts.append(together[places[-1]])
        found = None
        if places:
            terms = np.repeat(np.arange(len(places)), list(map(len, places)))
            repeats = np.array([repeats for repeats, _, _ in self._found])
            found = TermMatches(repeats, terms, np.concatenate(places), np.concatenate(counts))
        bm25 = BM25(corpus._group_words[there])
        prior = np.zeros(len(corpus._group_sizes))
        prior[there] = (
            share_of_best(bm25.scores(found)) + share_of_best(corpus._prototypes.scores(vector)[0][there])
        ) / 2
        return prior


def _indices_of_largest(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` largest values, and of those equal to the last."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])
