"""Filters over many entries at once: a column holds one field's value of every slot.

Values are kept as numbers of the distinct ones: which of these pass is found first, then looked up for all slots
together. Equality is a look-up, and for ranges the distinct values stand in order, so that no operand, new or not, has
to be compared with all of them; `$contains` tries each, once, and remembers. A column is made when a filter first asks
for its field, and follows what is added from then on. What a filter means is said in `filters` alone: columns give what
`matches` gives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

import numpy as np

from memalpha.store.filters import (
    ORDER,
    And,
    Condition,
    Filter,
    Not,
    comparison_type,
    field_value,
    filter_fields,
    freeze,
    parse_time,
)
from memalpha.types import MemoryEntry, is_iso_time

_MOST_COLUMNS = 64
_MOST_VERDICTS = 64


class FilterColumns:
    """The columns that filters have asked for. `entries` gives all entries that have a slot now."""

    def __init__(self, entries: Callable[[], Iterable[MemoryEntry]]) -> None:
        self._entries = entries
        self._columns: dict[str, _Column] = {}

    def set(self, slot: int, entry: MemoryEntry) -> None:
        """An entry has come to a slot."""
        for field, column in self._columns.items():
            column.set(slot, field_value(entry, field))

    def mask(self, chosen: Filter, slots: Mapping[str, int], size: int) -> np.ndarray:
        """Which slots hold an entry that passes, bool `(size,)`; whatever at slots without an entry.

        `slots` has the slot of every entry by its id.
        """
        self._ensure_columns(filter_fields(chosen), slots)
        return self._mask(chosen, size)

    def numbers(self, field: str, slots: Mapping[str, int], size: int) -> np.ndarray:
        """A field's values as numbers, times in seconds since 1970: float64 `(size,)`; NaN for others, whatever
        at slots without an entry."""
        self._ensure_columns({field}, slots)
        return self._columns[field].numbers(size)

    def _ensure_columns(self, fields: set[str], slots: Mapping[str, int]) -> None:
        """See to it that these fields have columns."""
        held = self._columns
        missing = {field: _Column() for field in fields if field not in held or held[field].is_worn(len(slots))}
        for entry in self._entries() if missing else ():
            for field, column in missing.items():
                column.set(slots[entry.id], field_value(entry, field))
        held |= missing  # only once they are whole
        for field in fields:
            held[field] = held.pop(field)  # the one used last stands last
        while len(held) > max(_MOST_COLUMNS, len(fields)):
            del held[next(iter(held))]

    def _mask(self, chosen: Filter, size: int) -> np.ndarray:
        if isinstance(chosen, Condition):
            return self._columns[chosen.field].mask(chosen, size)
        if isinstance(chosen, Not):
            return ~self._mask(chosen.part, size)
        masks = [self._mask(part, size) for part in chosen.parts]
        together = np.logical_and if isinstance(chosen, And) else np.logical_or
        return together.reduce(masks) if masks else np.full(size, isinstance(chosen, And))


class _Column:
    """One field's values by slot."""

    def __init__(self) -> None:
        self._codes = np.zeros(0, np.int32)  # by slot: the number of its value
        self._values: list[Any] = []  # the distinct values
        self._numbers: dict[Any, int] = {}
        self._orders: dict[type, _Order] = {}  # by kind of value
        self._verdicts: dict[Any, np.ndarray] = {}  # by operand of `$contains`: which values hold it
        self._floats = np.zeros(0)  # the values as numbers

    def is_worn(self, entries: int) -> bool:
        """Whether most of the distinct values are no longer any entry's."""
        return len(self._values) > 1024 + 2 * entries

    def set(self, slot: int, value: Any) -> None:
        """Put a value at a slot."""
        self._make_room(slot + 1)
        number = self._numbers.setdefault(freeze(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
        self._codes[slot] = number

    def _make_room(self, size: int) -> None:
        if size > len(self._codes):
            room = np.zeros(max(32, size, 2 * len(self._codes)) - len(self._codes), np.int32)
            self._codes = np.concatenate([self._codes, room])

    def mask(self, condition: Condition, size: int) -> np.ndarray:
        """Which slots fulfil a condition, bool `(size,)`."""
        self._make_room(size)
        codes, numbers = self._codes[:size], self._fulfilling(condition)
        if len(numbers) == 1:
            mask = codes == numbers[0]
        elif self._values:
            verdicts = np.zeros(len(self._values), bool)
            verdicts[numbers] = True
            mask = verdicts.take(codes)
        else:
            mask = np.zeros(size, bool)
        return ~mask if condition.operator == "$ne" else mask

    def numbers(self, size: int) -> np.ndarray:
        """The values as numbers, float64 `(size,)`."""
        self._make_room(size)
        more = [to_number(value) for value in self._values[len(self._floats) :]]
        self._floats = np.concatenate([self._floats, more])
        return self._floats.take(self._codes[:size]) if len(self._floats) else np.full(size, np.nan)

    def _fulfilling(self, condition: Condition) -> Sequence[int] | np.ndarray:
        """The numbers of the distinct values that fulfil a condition; for `$ne`, of those that do not."""
        if condition.operator == "$contains":
            return self._containing(condition)
        if condition.operator in ORDER:
            return self._within(condition, condition.operator, condition.operand)
        return [number for operand in condition.operands for number in self._equal(condition, operand)]

    def _equal(self, condition: Condition, operand: Any) -> Iterable[int]:
        if isinstance(condition.comparable(operand), datetime):  # times have many spellings
            return self._within(condition, "$eq", operand)
        number = self._numbers.get(freeze(operand))
        return () if number is None else (number,)

    def _within(self, condition: Condition, operator: str, operand: Any) -> np.ndarray:
        bound = condition.comparable(operand)
        kind = comparison_type(bound)
        if kind is None:
            return np.zeros(0, np.int32)
        order = self._orders.setdefault(kind, _Order())
        if order.seen < len(self._values):
            keys = [condition.comparable(value) for value in self._values[order.seen :]]
            order.add([(key, number) for number, key in enumerate(keys, order.seen) if comparison_type(key) is kind])
            order.seen = len(self._values)
        return order.within(operator, bound)

    def _containing(self, condition: Condition) -> np.ndarray:
        key = freeze(condition.operand)
        known = self._verdicts.pop(key, np.zeros(0, bool))
        if len(known) < len(self._values):
            more = [condition.holds(value) for value in self._values[len(known) :]]
            known = np.concatenate([known, np.array(more, bool)])
        self._verdicts[key] = known  # the one used last stands last
        if len(self._verdicts) > _MOST_VERDICTS:
            del self._verdicts[next(iter(self._verdicts))]
        return np.flatnonzero(known)


class _Order:
    """The distinct values of one kind in order; `seen` of the column's values have been looked at."""

    def __init__(self) -> None:
        self.seen = 0
        self._keys = np.zeros(0, object)
        self._numbers = np.zeros(0, np.int32)

    def add(self, new: list[tuple[Any, int]]) -> None:
        """Put in values, each with its number."""
        new.sort(key=itemgetter(0))
        keys = np.empty(len(new), object)  # filled thus, texts stay Python's own
        keys[:] = [key for key, _ in new]
        places = [bisect_right(self._keys, key) for key in keys]
        self._keys = np.insert(self._keys, places, keys)
        self._numbers = np.insert(self._numbers, places, [number for _, number in new])

    def within(self, operator: str, bound: Any) -> np.ndarray:
        """The numbers of the values that are as far from the bound as the operator says."""
        above, upto = bisect_left(self._keys, bound), bisect_right(self._keys, bound)
        spans = {"$eq": (above, upto), "$gt": (upto, None), "$gte": (above, None), "$lt": (0, above), "$lte": (0, upto)}
        return self._numbers[slice(*spans[operator])]


def to_number(value: Any) -> float:
    """A field's value as a number, a time in seconds since 1970; NaN for others."""
    if isinstance(value, str) and is_iso_time(value):
        return parse_time(value).timestamp()
    return float(value) if isinstance(value, int | float) else np.nan
