"""`SearchOptions`: the keywords of a search, checked once and handed to everything that searches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np

from memalpha.arguments import brief_repr, check_count, check_flag, is_finite_number
from memalpha.errors import StoreError
from memalpha.store.filters import Filter, Where, parse_filter
from memalpha.store.search.boost import Boost
from memalpha.store.search.ranking import COMBINED_ROUTES, ROUTES, Route
from memalpha.store.search.reranking import Reranker

WEIGHTED_PARTS = ("dense", "bm25", "group")


@dataclass(frozen=True)
class SearchOptions:
    """Keywords of `Memory.search`, where they are explained, as one checked value.

    `filter` combines `category` and `where`; None matches everything. Raises `StoreError` for an invalid value.
    """

    k: int = 10
    _: KW_ONLY
    category: str | None = None
    where: Where = None
    route: Route = "soft"
    boost: Boost | None = None
    as_of: int | str | None = None
    around: int = 0
    exact: bool = False
    weights: Mapping[str, float] | None = None
    min_score: float | None = None
    vector: Sequence[float] | np.ndarray | None = None
    reranker: Reranker | str | None = None
    filter: Filter | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.route, str) or self.route not in ROUTES:
            raise StoreError(f"route {brief_repr(self.route)} is not one of {', '.join(ROUTES)}")
        check_count("k", self.k)
        check_count("around", self.around)
        check_flag("exact", self.exact)
        if self.boost is not None and not isinstance(self.boost, Boost):
            raise StoreError(f"boost {brief_repr(self.boost)}: a Boost is needed")
        if self.reranker is not None and not isinstance(self.reranker, str) and not callable(self.reranker):
            raise StoreError(f"reranker {brief_repr(self.reranker)}: a function or the name of a model is needed")
        if self.weights is not None and not isinstance(self.weights, Mapping):
            raise StoreError(f"weights {brief_repr(self.weights)}: a mapping of parts to numbers is needed")
        for name, value in {"min_score": self.min_score, **(self.weights or {})}.items():
            if name not in ("min_score", *WEIGHTED_PARTS):
                raise StoreError(f"weights: {brief_repr(name)} is not one of {', '.join(WEIGHTED_PARTS)}")
            is_number = is_finite_number(value)
            if not (is_number or (name == "min_score" and value is None)):
                raise StoreError(f"{name} {brief_repr(value)}: a finite number is needed")
        object.__setattr__(self, "filter", parse_filter(self.where, category=self.category))

    @property
    def needs_coverage(self) -> bool:
        """True if the share of the query that the embedder knows weighs its part: not with a `vector`."""
        return self.route in COMBINED_ROUTES and self.vector is None

    def query_vectors(self, number: int, dim: int) -> np.ndarray | None:
        """Return the given vector for each of `number` queries, float32 `(number, dim)` of length 1; None without one.

        Raises:
            StoreError: It is not `dim` finite numbers, or all of them are 0.
        """
        if self.vector is None:
            return None
        try:
            row = np.asarray(self.vector)
            row = np.zeros(0) if row.dtype.kind not in "fiu" else row.astype(np.float64)
        except ValueError:  # rows of several lengths
            row = np.zeros(0)
        norm = float(np.linalg.norm(row)) if row.shape == (dim,) else 0.0
        if not (math.isfinite(norm) and norm > 0):
            raise StoreError(f"vector: {dim} finite numbers, not all 0, are needed, as the store's embedder gives them")
        return np.repeat((row / norm).astype(np.float32)[None], number, axis=0)
