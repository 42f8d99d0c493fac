"""Filters over many entries at once: a column holds one field's value of every slot.

A column stores the number of each slot's distinct value. A filter is evaluated on the distinct values and the result is
then looked up for all slots. Equality is a dict look-up. For ranges the distinct values are sorted, so an operand is
never compared with all of them. `$contains` tests each distinct value once per operand.

A column is built when a filter first needs its field, and updated from then on. `filters` alone defines what a filter
means: columns give what `matches` gives.
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
    """Columns of the fields that filters use; `entries` returns all entries that have a slot."""

    def __init__(self, entries: Callable[[], Iterable[MemoryEntry]]) -> None:
        self.entries = entries
        self._columns: dict[str, _Column] = {}

    def set(self, slot: int, entry: MemoryEntry) -> None:
        """Record that a slot holds an entry."""
        for field, column in self._columns.items():
            column.set(slot, field_value(entry, field))

    def mask(self, where: Filter, slots: Mapping[str, int], size: int) -> np.ndarray:
        """Return a mask of the slots whose entry matches, bool `(size,)`; undefined for empty slots.

        Args:
            where: Filter.
            slots: Slot of every entry by id.
            size: Number of slots.
        """
        self._ensure_columns(filter_fields(where), slots)
        return self._mask(where, size)

    def numbers(self, field: str, slots: Mapping[str, int], size: int) -> np.ndarray:
        """Return a field's values as numbers, float64 `(size,)`; undefined for empty slots.

        Times are in seconds since 1970; values that are no numbers are NaN.

        Args:
            field: Field of the entries.
            slots: Slot of every entry by id.
            size: Number of slots.
        """
        self._ensure_columns({field}, slots)
        return self._columns[field].numbers(size)

    def _ensure_columns(self, fields: set[str], slots: Mapping[str, int]) -> None:
        """Build the missing columns of these fields, and drop those unused for longest."""
        columns = self._columns
        missing = {field: _Column() for field in fields if field not in columns or columns[field].is_worn(len(slots))}
        for entry in self.entries() if missing else ():
            for field, column in missing.items():
                column.set(slots[entry.id], field_value(entry, field))
        columns |= missing  # only once they are complete
        for field in fields:
            columns[field] = columns.pop(field)  # in order of last use
        while len(columns) > max(_MOST_COLUMNS, len(fields)):
            del columns[next(iter(columns))]

    def _mask(self, where: Filter, size: int) -> np.ndarray:
        if isinstance(where, Condition):
            return self._columns[where.field].mask(where, size)
        if isinstance(where, Not):
            return ~self._mask(where.part, size)
        masks = [self._mask(part, size) for part in where.parts]
        combine = np.logical_and if isinstance(where, And) else np.logical_or
        return combine.reduce(masks) if masks else np.full(size, isinstance(where, And))


class _Column:
    """Values of one field by slot."""

    def __init__(self) -> None:
        self._codes = np.zeros(0, np.int32)  # number of the value, by slot
        self._values: list[Any] = []  # the distinct values
        self._numbers: dict[Any, int] = {}
        self._orders: dict[type, _Order] = {}  # by kind of value
        self._verdicts: dict[Any, np.ndarray] = {}  # mask of the values that contain it, by operand of `$contains`
        self._floats = np.zeros(0)  # the values as numbers

    def is_worn(self, entries: int) -> bool:
        """Return True if most of the distinct values belong to no entry any more."""
        return len(self._values) > 1024 + 2 * entries

    def set(self, slot: int, value: Any) -> None:
        """Store the value of a slot."""
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
        """Return a mask of the slots that fulfil a condition, bool `(size,)`."""
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
        """Return the values as numbers, float64 `(size,)`."""
        self._make_room(size)
        new_floats = [to_number(value) for value in self._values[len(self._floats) :]]
        self._floats = np.concatenate([self._floats, new_floats])
        return self._floats.take(self._codes[:size]) if len(self._floats) else np.full(size, np.nan)

    def _fulfilling(self, condition: Condition) -> Sequence[int] | np.ndarray:
        """Return the numbers of the distinct values that fulfil a condition; for `$ne`, of those that do not."""
        if condition.operator == "$contains":
            key = freeze(condition.operand)
            verdicts = self._verdicts.pop(key, np.zeros(0, bool))
            if len(verdicts) < len(self._values):
                new_verdicts = [condition.holds(value) for value in self._values[len(verdicts) :]]
                verdicts = np.concatenate([verdicts, np.array(new_verdicts, bool)])
            self._verdicts[key] = verdicts  # in order of last use
            if len(self._verdicts) > _MOST_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
            return np.flatnonzero(verdicts)
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
        if order.value_count < len(self._values):
            keys = [condition.comparable(value) for value in self._values[order.value_count :]]
            order.add(
                [(key, number) for number, key in enumerate(keys, order.value_count) if comparison_type(key) is kind]
            )
            order.value_count = len(self._values)
        return order.within(operator, bound)


class _Order:
    """Sorted distinct values of one kind, among the first `value_count` values of a column."""

    def __init__(self) -> None:
        self.value_count = 0
        self._keys = np.zeros(0, object)
        self._numbers = np.zeros(0, np.int32)

    def add(self, new: list[tuple[Any, int]]) -> None:
        """Insert values, each with its number."""
        new.sort(key=itemgetter(0))
        keys = np.empty(len(new), object)  # filled this way, texts stay Python objects
        keys[:] = [key for key, _ in new]
        indices = [bisect_right(self._keys, key) for key in keys]
        self._keys = np.insert(self._keys, indices, keys)
        self._numbers = np.insert(self._numbers, indices, [number for _, number in new])

    def within(self, operator: str, bound: Any) -> np.ndarray:
        """Return the numbers of the values that compare to the bound as the operator requires."""
        first, end = bisect_left(self._keys, bound), bisect_right(self._keys, bound)
        spans = {"$eq": (first, end), "$gt": (end, None), "$gte": (first, None), "$lt": (0, first), "$lte": (0, end)}
        return self._numbers[slice(*spans[operator])]


def to_number(value: Any) -> float:
    """Return a field's value as a number, a time in seconds since 1970; NaN for others."""
    if isinstance(value, str) and is_iso_time(value):
        return parse_time(value).timestamp()
    return float(value) if isinstance(value, int | float) else np.nan
