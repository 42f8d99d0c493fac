"""The keywords of a search, checked once and handed to everything that searches: routes, boosts, all the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

import numpy as np

from memalpha.arguments import brief_repr, check_count, check_flag, is_finite_number
from memalpha.errors import StoreError
from memalpha.store.fields import parse_time
from memalpha.store.filters import Filter, Where, parse_filter
from memalpha.types import is_iso_time

Reranker = Callable[[str, Sequence[str]], Sequence[float]]
Route = Literal["soft", "flat", "dense", "bm25", "hard"]
ROUTES: tuple[Route, ...] = ("soft", "flat", "dense", "bm25", "hard")
COMBINED_ROUTES: tuple[Route, ...] = ("soft", "flat", "hard")
WEIGHTED_PARTS = ("dense", "bm25", "group", "category", "role", "question")


@dataclass(frozen=True, slots=True)
class Boost:
    """Weights of importance and recency, added to the score of any route.

    Attributes:
        importance: Weight of the entry's importance.
        recency: Weight of `0.5 ** (age / half_life)`, where age is the number of days from the entry's timestamp to
            `now`. An entry without a timestamp gets 0, one of the future the full weight.
        half_life: Days in which recency halves.
        now: ISO 8601 date or time, in UTC unless it names a zone; no clock is read. Required for recency.

    Raises:
        StoreError: A weight is not a finite number, `now` is no date, or recency lacks `now`.
    """

    importance: float = 0.0
    recency: float = 0.0
    half_life: float = 30.0
    now: str | None = None

    def __post_init__(self) -> None:
        for name in ("importance", "recency", "half_life"):
            value = getattr(self, name)
            if not is_finite_number(value):
                raise StoreError(f"boost: {name} {brief_repr(value)}: a finite number is needed")
        if self.half_life <= 0:
            raise StoreError(f"boost: half_life {self.half_life!r}: days above 0 are needed")
        if self.now is None and self.recency:
            raise StoreError('boost: recency needs now, such as now="2025-01-10"')
        if self.now is not None and not (isinstance(self.now, str) and is_iso_time(self.now)):
            raise StoreError(f"boost: now {brief_repr(self.now)} is no ISO 8601 date or time (2024-05-01)")

    def terms(self, numbers: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
        """Return the score terms by name; `numbers` returns a field of the entries as numbers `(n,)`."""
        terms = {}
        if self.importance:
            terms["importance"] = self.importance * numbers("importance")
        if self.recency and self.now is not None:
            age = np.maximum(parse_time(self.now).timestamp() - numbers("timestamp"), 0.0) / 86400
            terms["recency"] = self.recency * np.nan_to_num(0.5 ** (age / self.half_life))
        return terms


SEARCH_KEYWORDS = frozenset(
    ("category", "where", "route", "boost", "as_of", "around", "exact", "weights", "min_score", "vector", "reranker")
)
"""Keywords of `Memory.search`."""


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
    filter: Filter | None = field(default=None, init=False, repr=False, compare=False)

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
        if self.where is not None or self.category is not None:
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
