"""What a search makes of the documents that it is over: their parts, the sums of these, and the priors of groups.

Nothing here knows where documents come from: `Selection` is filled from a corpus in memory (`retrieval`) or from what a
server sends (`postgres_search`), so that both score alike. What a score is made of is said in `retrieval`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from memalpha.errors import StoreError
from memalpha.store.search.bm25 import BM25, Found
from memalpha.store.search.normalize import scale, share
from memalpha.store.search.span_bm25 import Neighbours

if TYPE_CHECKING:
    from memalpha.store.search.ann import Candidates
    from memalpha.store.search.corpus import Boost

Route = Literal["soft", "flat", "dense", "bm25", "hard"]
ROUTES: tuple[Route, ...] = ("soft", "flat", "dense", "bm25", "hard")


def check(route: str, k: int) -> None:
    """Raise `StoreError` for an unknown route and a negative k."""
    if route not in ROUTES:
        raise StoreError(f"route {route!r} is not one of {', '.join(ROUTES)}")
    if k < 0:
        raise StoreError(f"k {k}: 0 or more is needed")


class Selection(ABC):
    """The documents that a search is over, with the statistics of these alone.

    `groups` int64 `(n,)`: the group of each document, a number below `size`.
    """

    ends: ClassVar[Mapping[str, tuple[float, float]]] = {}  # of the scores: those of the documents themselves

    def __init__(self, groups: np.ndarray, size: int) -> None:
        self.groups, self.size = groups, size

    @property
    @abstractmethod
    def lengths(self) -> np.ndarray:
        """Words of each document, `(n,)`."""

    @abstractmethod
    def find(self, query: Sequence[str]) -> Found | None:
        """Where a query's terms are among the documents; None where no document holds any."""

    @abstractmethod
    def spans(self) -> np.ndarray | None:
        """The number of each document's source (0: no span), its chunk and its step, int64 `(n, 3)`; None where there
        are no spans."""

    @abstractmethod
    def dense(self, vector: np.ndarray) -> np.ndarray:
        """Inner products of a query's vector `(1, dim)` with each document's, float64 `(n,)`."""

    @abstractmethod
    def near(self, vector: np.ndarray) -> np.ndarray:
        """Inner products of a query's vector `(1, dim)` with the prototypes of the first groups, float64."""

    @cached_property
    def _neighbours(self) -> Neighbours | None:
        spans = self.spans()
        if spans is None or not spans[:, 0].any():
            return None
        sources, chunks, steps = spans.T
        return Neighbours(sources, chunks, steps, self.lengths)

    @cached_property
    def _bm25(self) -> BM25:
        return BM25(self.lengths)

    @cached_property
    def _group_bm25(self) -> BM25:
        return BM25(self.lengths, self.groups, self.size)

    def bm25(self, query: Sequence[str]) -> np.ndarray:
        """The words of layer two: BM25 of each document, float64 `(n,)`."""
        return self._bm25.scores(self.find(query))

    def around(self, query: Sequence[str]) -> np.ndarray | None:
        """The same with the words around spans, float64 `(n,)`; None where there are no spans."""
        return None if self._neighbours is None else self._neighbours.scores(self.find(query))

    def prior(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        """Layer one: the prior of each document's group, float64 `(n,)`."""
        return self._group_prior(query, vector)[self.groups]

    def best_groups(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        """Which documents are in the best round(sqrt(groups)) groups, bool `(n,)`."""
        prior = self._group_prior(query, vector)
        best = np.sort(prior[np.unique(self.groups)])
        return prior[self.groups] >= best[-max(1, round(len(best) ** 0.5))]

    def _group_prior(self, query: Sequence[str], vector: np.ndarray) -> np.ndarray:
        near = np.zeros(self.size)
        scores = self.near(vector)
        near[: len(scores)] = scores
        return (share(self._group_bm25.scores(self.find(query))) + share(near)) / 2


class Parts(NamedTuple):
    """What the scores of documents are made of.

    `kept`: which of the selection's documents these are; `parts`: what a result explains its score by, `terms`: what
    adds up to it, `(n,)` each; `ends`: the smallest and largest dense score where these are scaled.
    """

    kept: np.ndarray | slice
    parts: dict[str, np.ndarray]
    terms: list[np.ndarray]
    ends: tuple[float, float] | None


def score(
    selection: Selection | Candidates,
    query: Sequence[str],
    vector: np.ndarray | None,
    route: Route,
    boost: Boost | None,
    numbers: Callable[[str], np.ndarray],
) -> Parts:
    """The parts of a query's scores; `vector` `(1, dim)` unless the route is "bm25". `numbers` gives a field of the
    entries as numbers, in the selection's order."""
    kept: np.ndarray | slice = slice(None)
    parts: dict[str, np.ndarray] = {}
    if vector is not None:
        parts["dense"] = selection.dense(vector)
    if route != "dense":
        parts["bm25"] = selection.bm25(query)
    if route == "hard" and isinstance(selection, Selection):
        assert vector is not None
        kept = selection.best_groups(query, vector)
        parts = {name: values[kept] for name, values in parts.items()}
    ends = None
    if route == "dense" or route == "bm25":
        terms = [parts[route]]
    else:
        near = selection.around(query) if route == "soft" else None
        if near is not None:
            parts["around"] = near - parts["bm25"]
        ends = selection.ends.get("dense") or (parts["dense"].min(), parts["dense"].max())
        worded = scale(parts["bm25"] if near is None else near, selection.ends.get("bm25"))
        terms = [scale(parts["dense"], ends), worded]
    if route == "soft" and vector is not None:
        parts["group"] = selection.prior(query, vector)
        terms.append(parts["group"])
    if boost is not None:
        more = boost.terms(lambda field: numbers(field)[kept])
        parts |= more
        terms += more.values()
    return Parts(kept, parts, terms, ends)
