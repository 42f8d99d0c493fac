"""Boosts: importance and recency of entries as further terms of a search score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memalpha.arguments import brief_repr, is_finite_number
from memalpha.errors import StoreError
from memalpha.store.filters import parse_time
from memalpha.types import is_iso_time


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
