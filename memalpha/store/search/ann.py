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
from memalpha.store.search.bm25 import BM25, Found, add_bm25
from memalpha.store.search.normalize import share
from memalpha.store.search.vectors import decode

if TYPE_CHECKING:
    from memalpha.store.search.corpus import Corpus

SIZE = 50_000  # documents: up to here a search looks at every one, in a few milliseconds
NEAR = WORDED = 600
FAR = 100
MOST = 100  # results; for more, every document is looked at
RECENT = 1024  # documents beside the lists before they are added to them
_LOOKED_AT = 200_000  # codes, at least, or a quarter of all
_MOST = 1024  # lists
_FAVOURED = 3  # groups
_BLOCK = 16384


class Lists:
    """Vectors by slot as short codes in inverted lists: FAISS's IVF with 4-bit product quantisation.

    Codes take 1/32 of what vectors take. A quarter of the lists is gone through for a query (of a small memory, more):
    some milliseconds for a million, however well the vectors fall into clusters. Training is seeded.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self.size: int = index.ntotal
        index.nprobe = max(1, round(index.nlist * min(1.0, max(1 / 4, _LOOKED_AT / max(1, self.size)))))

    @classmethod
    def build(cls, rows: np.ndarray, slots: np.ndarray, stopped: Callable[[], bool] = lambda: False) -> Lists:
        """Lists of the vectors that `rows[slots]` stand for; raises `Stopped` soon after `stopped` says so."""
        count = min(_MOST, max(16, len(slots) // 1000))
        sample = np.random.default_rng(0).choice(slots, min(len(slots), 40 * count), replace=False)
        some = decode(rows[np.sort(sample)])
        dim = some.shape[1]
        parts = next(parts for parts in range(max(1, dim // 4), 0, -1) if dim % parts == 0)
        index: Any = faiss.index_factory(dim, f"IVF{count},PQ{parts}x4fs", faiss.METRIC_INNER_PRODUCT)
        index.cp.niter, index.cp.max_points_per_centroid = 8, 40
        index.train(some)
        return cls(_added(index, rows, slots, stopped))

    def extended(self, rows: np.ndarray, slots: np.ndarray, stopped: Callable[[], bool] = lambda: False) -> Lists:
        """A copy that has the vectors of `rows[slots]` as well."""
        return Lists(_added(faiss.clone_index(self._index), rows, slots, stopped))

    @classmethod
    def of_part(cls, part: np.ndarray) -> Lists:
        """The lists that gave a part of an index file."""
        return cls(faiss.deserialize_index(part))

    def fits(self, recent: int, number: int) -> bool:
        """Whether these, with `recent` ones added, would do for `number` documents: neither outgrown nor worn."""
        return self._index.nlist * 2 >= min(_MOST, number // 1000) and self.size + recent <= number * 3 // 2

    @property
    def part(self) -> np.ndarray:
        """All of it as bytes, uint8 `(n,)`."""
        return faiss.serialize_index(self._index)

    def near(
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


def _added(index: Any, rows: np.ndarray, slots: np.ndarray, stopped: Callable[[], bool]) -> Any:
    for start in range(0, len(slots), _BLOCK):
        if stopped():
            raise Stopped
        some = slots[start : start + _BLOCK]
        index.add_with_ids(decode(rows[some]), some)
    return index


class Near:
    """The lists of one corpus, built and brought up to date beside its searches."""

    def __init__(self, corpus: Corpus, background: Background) -> None:
        self._corpus, self._background = corpus, background
        self._lists: Lists | None = None
        self.since: list[int] = []  # slots that were filled since the lists were begun
        self._until = 0  # how many of these the lists that are being built will hold
        self.is_saved = True
        self._members: dict[int, np.ndarray] = {}  # bitmaps of groups, as of the lists

    def take(self, lists: Lists, since: list[int]) -> None:
        """Go on with lists that were saved."""
        self._lists, self.since = lists, since

    def parts(self) -> dict[str, np.ndarray]:
        """What `take` takes, as arrays."""
        if self._lists is None:
            return {}
        return {"lists": self._lists.part, "since": np.array(self.since, np.int64)}

    def lists(self) -> Lists | None:
        """The lists of a large memory, where there are any by now; has them built, or brought up to date, beside."""
        if len(self._corpus) <= SIZE:
            return None
        self._fetch()
        if not self._background.busy:
            self._begin(RECENT)
        return self._lists

    def build(self) -> None:
        """Build all that is not built, and return then."""
        self._fetch(wait=True)
        if len(self._corpus) > SIZE:
            self._begin(0)
            self._fetch(wait=True)

    def _begin(self, many: int) -> None:
        """Begin to build, where there are no lists or more than `many` documents beside them."""
        lists, rows, since = self._lists, self._corpus._vectors.rows, len(self.since)
        if lists is None or not lists.fits(since, len(self._corpus)):
            slots = np.flatnonzero(self._corpus._live)
            self._background.start(lambda stopped: Lists.build(rows, slots, stopped))
        elif since > many:
            some = self.recent()
            self._background.start(lambda stopped: lists.extended(rows, some, stopped))
        self._until = since

    def _fetch(self, *, wait: bool = False) -> None:
        lists = self._background.fetch(wait=wait)
        if lists is not None:
            self._lists, self.since, self.is_saved = lists, self.since[self._until :], False
            self._members.clear()

    def members(self, group: int) -> np.ndarray:
        """The documents of a group as a bitmap for `Lists.near`; of what came since, nothing is said."""
        if group not in self._members:
            self._members[group] = np.packbits(self._corpus._groups == group, bitorder="little")
        return self._members[group]

    def recent(self) -> np.ndarray:
        """The slots of the documents beside the lists, int64 `(n,)`."""
        since = np.array(self.since, np.int64)
        return since[self._corpus._live[since]]


class Candidates:
    """The documents that may be among the best for one query, with the statistics of the whole memory.

    `slots` int64 `(n,)`; `ends`: the smallest and largest score among all documents, by the part of a score.
    """

    def __init__(self, corpus: Corpus, query: Sequence[str], vector: np.ndarray | None, lists: Lists) -> None:
        self._corpus, live = corpus, corpus._live
        self._found = []
        for repeats, slots, counts in corpus._lexical.terms(query):
            here = live[slots]
            if here.any():
                self._found.append((repeats, slots[here], counts[here]))
        scores = corpus._scratch()
        number, words = len(corpus), corpus._group_words.sum()
        holders = add_bm25(scores, self._found, corpus._lexical.lengths, number, words)
        values = scores[holders]
        low, high = (0.0 if len(holders) < number else values.min()), values.max(initial=0.0)
        self.ends = {"bm25": (low, high)}
        if vector is None or corpus._near is None:
            self._prior = np.zeros(len(corpus._group_sizes))
            self.slots = holders[_largest(values, WORDED)].astype(np.int64)
        else:
            self._prior = self._group_prior(vector)
            values = values / max(high, 1e-9) + self._prior[corpus._groups[holders]]
            near = self._near(corpus._near, lists, vector)
            chosen = [holders[_largest(values, WORDED)], near, corpus._near.recent()]
            self.slots = np.unique(np.concatenate(chosen)).astype(np.int64)
            self._dense = corpus._vectors.scores(vector, self.slots)[0]
            far = lists.near(-vector, FAR, fast=True)
            low = corpus._vectors.scores(vector, far[live[far]])[0].min(initial=self._dense.min(initial=0.0))
            self.ends["dense"] = (low, self._dense.max(initial=0.0))
        self._bm25 = scores[self.slots]
        scores[holders] = 0.0

    def _near(self, near: Near, lists: Lists, vector: np.ndarray) -> np.ndarray:
        """The slots of the nearest documents, and of the nearest of groups that the prior favours where too few of
        these are among them."""
        corpus, prior = self._corpus, self._prior
        slots = lists.near(vector, NEAR)
        slots = slots[corpus._live[slots]]
        found = [slots]
        there = np.bincount(corpus._groups[slots], minlength=len(prior))
        usual = prior[corpus._groups[slots]].mean() if len(slots) else 0.0
        for group in np.argsort(-prior, kind="stable")[:_FAVOURED].tolist():
            if prior[group] > usual and there[group] < min(NEAR // 4, corpus._group_sizes[group]):
                more = lists.near(vector, NEAR // 4, near.members(group))
                found.append(more[corpus._live[more]])
        return np.concatenate(found)

    def dense(self, vector: np.ndarray) -> np.ndarray:
        """Inner products of the query's vector `(1, dim)` with each document's, float64 `(n,)`."""
        return self._dense

    def bm25(self, query: Sequence[str]) -> np.ndarray:
        """BM25 of each document, float64 `(n,)`."""
        return self._bm25

    def around(self, query: Sequence[str]) -> None:
        """There are no spans: a memory that has any is searched by `_Selection`."""

    def prior(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
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
            found = Found(repeats, terms, np.concatenate(places), np.concatenate(counts))
        bm25 = BM25(corpus._group_words[there])
        prior = np.zeros(len(corpus._group_sizes))
        prior[there] = (share(bm25.scores(found)) + share(corpus._prototypes.scores(vector)[0][there])) / 2
        return prior


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` largest values, and of those equal to the last."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])
