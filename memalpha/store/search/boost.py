"""Boosts: importance and recency of entries as further terms of a search score."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memalpha.errors import StoreError
from memalpha.store.filters import parse_time
from memalpha.types import is_iso_time


@dataclass(frozen=True, slots=True)
class Boost:
    """What else a score is made of, added to any route's: `importance` times the entry's own, and `recency` times
    `0.5 ** (age / half_life)`, the age being the days from the entry's timestamp to `now` (ISO, UTC unless it says
    otherwise; nothing here asks a clock). An entry without a timestamp gets none, one of the future all of it.

    Raises `StoreError` for what is no number, and for recency without `now`.
    """

    importance: float = 0.0
    recency: float = 0.0
    half_life: float = 30.0
    now: str | None = None

    def __post_init__(self) -> None:
        for name in ("importance", "recency", "half_life"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise StoreError(f"boost: {name} {value!r}: a finite number is needed")
        if self.half_life <= 0:
            raise StoreError(f"boost: half_life {self.half_life!r}: days above 0 are needed")
        if self.now is None and self.recency:
            raise StoreError('boost: recency needs now, such as now="2025-01-10"')
        if self.now is not None and not (isinstance(self.now, str) and is_iso_time(self.now)):
            raise StoreError(f"boost: now {self.now!r} is no ISO 8601 date or time (2024-05-01)")

    def terms(self, numbers: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
        """The terms by name, from the fields of the entries as numbers `(n,)`."""
        terms = {}
        if self.importance:
            terms["importance"] = self.importance * numbers("importance")
        if self.recency and self.now is not None:
            age = np.maximum(parse_time(self.now).timestamp() - numbers("timestamp"), 0.0) / 86400
            terms["recency"] = self.recency * np.nan_to_num(0.5 ** (age / self.half_life))
        return terms
