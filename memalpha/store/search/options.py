"""`SearchOptions`: the keywords of a search, checked once and handed to everything that searches."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral

from memalpha.errors import StoreError
from memalpha.store.filters import Filter, Where, parse_filter
from memalpha.store.search.boost import Boost
from memalpha.store.search.ranking import ROUTES, Route


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
    filter: Filter | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.route not in ROUTES:
            raise StoreError(f"route {self.route!r} is not one of {', '.join(ROUTES)}")
        if not isinstance(self.k, Integral) or self.k < 0:
            raise StoreError(f"k {self.k!r}: a whole number from 0 is needed")
        check_token_count(self.around)
        object.__setattr__(self, "filter", parse_filter(self.where, category=self.category))


def check_token_count(around: int) -> None:
    """Raise `StoreError` unless the number of tokens around an entry is a whole number from 0."""
    if not isinstance(around, int) or around < 0:
        raise StoreError(f"around: {around!r} tokens: a whole number from 0 is needed")
