"""Filters on entries: a mapping of fields to required values or comparisons.

    {"user": "ana", "timestamp": {"$gte": "2024-05-01"}, "$or": [{"chunk": 3}, {"tags": {"$contains": "trip"}}]}

A key is a field of the entry (`fields.FILTERED`) or a key of its metadata. `a.b` is the key b of the mapping a;
`metadata.a` is the metadata key a even if an entry field has that name. All conditions of one mapping must hold. A
plain value means `$eq`.

`$eq`, `$ne`, `$in` and `$nin` compare JSON values: 1 equals 1.0 but not true, and a missing field is null. `$gt`,
`$gte`, `$lt` and `$lte` compare numbers with numbers and texts with texts; they are false for anything else, missing
fields included. For a field of the entry itself, a value of a type that it never has is refused. `timestamp` and
`expires` are compared as times (UTC unless they say otherwise). `$contains` looks for a text in a text or a value in a
list. `{"$exists": true}` holds for entries whose field is there and not null. `$ne`, `$nin` and `$not` are exact
negations, so they hold for entries without the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import ge, gt, le, lt
from typing import Any

from memalpha.arguments import brief_repr
from memalpha.errors import InvalidArgument, StoreError
from memalpha.store.fields import FILTERED, NUMBERS, TIMES, iso_hint, parse_time
from memalpha.types import MemoryEntry, is_iso_time

COMPARISONS = ("$eq", "$ne", "$in", "$nin", "$exists", "$gt", "$gte", "$lt", "$lte", "$contains")
COMBINATIONS = ("$and", "$or", "$not")
Where = Mapping[str, Any] | None
ORDER = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
_MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparison of one field; `operator` is one of `COMPARISONS`, but neither "$nin" nor "$exists"."""

    field: str
    operator: str
    operand: Any

    def holds(self, value: Any) -> bool:
        """Return True if the field's value fulfils the condition."""
        if self.operator == "$contains":
            if isinstance(value, str):
                return isinstance(self.operand, str) and self.operand in value
            return isinstance(value, list) and freeze(self.operand) in map(freeze, value)
        value = self.comparable(value)
        if self.operator in ORDER:
            bound = self.comparable(self.operand)
            kind = comparison_type(value)
            return kind is not None and kind is comparison_type(bound) and ORDER[self.operator](value, bound)
        accepted = (freeze(self.comparable(operand)) for operand in self.operands)
        return (freeze(value) in accepted) != (self.operator == "$ne")

    def matches(self, entry: MemoryEntry) -> bool:
        """Return True if the entry passes."""
        return self.holds(field_value(entry, self.field))

    @property
    def operands(self) -> list[Any]:
        """Values that `$eq`, `$ne` and `$in` look for."""
        return self.operand if self.operator == "$in" else [self.operand]

    def comparable(self, value: Any) -> Any:
        """Return a field value or an operand in comparable form: times as datetimes."""
        if self.field not in TIMES or not isinstance(value, str) or not is_iso_time(value):
            return value
        return parse_time(value)


@dataclass(frozen=True, slots=True)
class Combination:
    """Filter that holds if all parts hold, or at least one if `is_any`."""

    parts: tuple[Filter, ...]
    is_any: bool = False

    def matches(self, entry: MemoryEntry) -> bool:
        """Return True if the entry passes."""
        return (any if self.is_any else all)(part.matches(entry) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    """Filter that holds if its part does not."""

    part: Filter

    def matches(self, entry: MemoryEntry) -> bool:
        """Return True if the entry passes."""
        return not self.part.matches(entry)


Filter = Condition | Combination | Not


def parse_filter(where: Where, *, category: str | None = None) -> Filter | None:
    """Parse `where`, optionally restricted to one `category`; return None if nothing is filtered.

    Raises `StoreError` naming the invalid part and the valid choices.
    """
    parts = () if where is None else _parse_mapping(where, 0)
    if category is not None:
        parts = (Condition("category", "$eq", category), *parts)
    return _conjunction(parts) if parts else None


def check_erased_fields(where: Where, *, is_negated: bool = False) -> None:
    """Refuse a filter of an erasure that wants None of a field: a variable without a value holds for many entries."""
    for field, value in (where or {}).items():
        if field in COMBINATIONS:
            for part in [value] if field == "$not" else value:
                check_erased_fields(part, is_negated=is_negated != (field == "$not"))
        elif _wants_none(value, is_negated):
            raise InvalidArgument(
                f'erase: {field} is None: use {{{json.dumps(field)}: {{"$exists": false}}}} to erase what lacks it'
            )


def _wants_none(value: Any, is_negated: bool) -> bool:
    """Return True if a condition names None: `$eq` and `$in` always, `$ne` and `$nin` under a negation."""
    if not isinstance(value, Mapping):
        return value is None
    operands = [value.get("$eq", 0), *value.get("$in", ())]
    operands += [value.get("$ne", 0), *value.get("$nin", ())] * is_negated
    return None in operands or _wants_none(value.get("$not", 0), not is_negated)


def holds_for_all(entry_filter: Filter | None) -> bool:
    """Return True if a filter holds whatever the entry: it has no condition, or negates one that never holds."""
    return entry_filter is None or _constant(entry_filter) is True


def _constant(entry_filter: Filter) -> bool | None:
    """Return what a filter says of every entry; None if that depends on the entry."""
    if isinstance(entry_filter, Condition):
        return False if entry_filter.operator == "$in" and not entry_filter.operand else None
    if isinstance(entry_filter, Not):
        verdict = _constant(entry_filter.part)
        return None if verdict is None else not verdict
    verdicts = {_constant(part) for part in entry_filter.parts}
    if entry_filter.is_any in verdicts:
        return entry_filter.is_any
    return None if None in verdicts else not entry_filter.is_any


def field_value(entry: MemoryEntry, field: str) -> Any:
    """Return the value of an entry field or metadata key; None if missing."""
    if field in FILTERED:
        return getattr(entry, field)
    return _nested_value(entry.metadata, field.removeprefix("metadata."))


def filter_fields(entry_filter: Filter) -> set[str]:
    """Return the fields that a filter reads."""
    if isinstance(entry_filter, Condition):
        return {entry_filter.field}
    parts = (entry_filter.part,) if isinstance(entry_filter, Not) else entry_filter.parts
    return set().union(*map(filter_fields, parts))


def negated_fields(entry_filter: Filter, *, is_negated: bool = False) -> set[str]:
    """Return the fields of `$ne`, `$nin` and `$not`, which hold for entries without the field; not of `$exists`."""
    if isinstance(entry_filter, Condition):
        is_open = entry_filter.operand is not None and is_negated != (entry_filter.operator == "$ne")
        return {entry_filter.field} if is_open else set()
    if isinstance(entry_filter, Not):
        return negated_fields(entry_filter.part, is_negated=not is_negated)
    return set().union(*(negated_fields(part, is_negated=is_negated) for part in entry_filter.parts))


def comparison_type(value: Any) -> type | None:
    """Return the type that orders the value (float, str or datetime); None for unordered values."""
    if isinstance(value, int | float):
        return None if isinstance(value, bool) or value != value else float  # NaN has no order
    return next((kind for kind in (str, datetime) if isinstance(value, kind)), None)


def freeze(value: Any) -> Any:
    """Return a hashable form of a JSON value, equal where the values are; true differs from 1."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, list):
        return tuple(map(freeze, value))
    if isinstance(value, Mapping):
        return frozenset((key, freeze(item)) for key, item in value.items())
    return value


def _nested_value(value: Any, path: str) -> Any:
    """Return the value at a path of nested mappings.

    A key that contains the dots itself wins.
    """
    if not isinstance(value, Mapping):
        return None
    if path in value:
        return value[path]
    key, dot, rest = path.partition(".")
    return _nested_value(value.get(key), rest) if dot else None


def _parse_mapping(where: object, depth: int) -> tuple[Filter, ...]:
    if not isinstance(where, Mapping):
        raise StoreError(f"where: a mapping of fields to values is needed, not {brief_repr(where)}")
    if depth > _MAX_DEPTH:
        raise StoreError(f"where: nested deeper than {_MAX_DEPTH} levels")
    parts: list[Filter] = []
    for key, value in where.items():
        if not isinstance(key, str) or not key:
            raise StoreError(f"where: {brief_repr(key)} is no field")
        if not key.startswith("$"):
            parts += _parse_field(key, value, depth)
        elif key == "$not":
            parts.append(Not(_conjunction(_parse_mapping(value, depth + 1))))
        elif key in COMBINATIONS:
            if not isinstance(value, list | tuple) or not value:
                raise StoreError(f"where: {key} needs a list of at least one mapping, not {brief_repr(value)}")
            options = tuple(_conjunction(_parse_mapping(item, depth + 1)) for item in value)
            parts.append(_conjunction(options) if key == "$and" else Combination(options, is_any=True))
        elif key in COMPARISONS:
            raise StoreError(f'where: {key} stands without a field: {{"field": {{"{key}": value}}}}')
        else:
            raise _unknown_operator(key)
    return tuple(parts)


def _parse_field(field: str, value: Any, depth: int) -> Iterable[Filter]:
    """Yield the conditions on one field."""
    if not isinstance(value, Mapping) or not any(isinstance(key, str) and key.startswith("$") for key in value):
        if isinstance(value, Mapping) and value and all(f"${key}" in COMPARISONS for key in value):
            hint = 'an operator begins with "$"; {"$eq": {...}} looks for a mapping'
            raise StoreError(f"where: {brief_repr(field)} {brief_repr(value)}: {hint}")
        value = {"$eq": value}
    for operator, operand in value.items():
        if operator == "$not":
            if depth >= _MAX_DEPTH:
                raise StoreError(f"where: nested deeper than {_MAX_DEPTH} levels")
            if operand == {}:
                raise StoreError(f"where: {brief_repr(field)} $not: a value or a comparison is needed, not {{}}")
            yield Not(_conjunction(tuple(_parse_field(field, operand, depth + 1))))
            continue
        if operator not in COMPARISONS:
            raise _unknown_operator(operator, f" for {brief_repr(field)}")
        location = f"where: {brief_repr(field)} {operator}"
        if operator in ("$in", "$nin") and not isinstance(operand, list | tuple):
            raise StoreError(f"{location}: a list is needed, not {brief_repr(operand)}")
        if operator == "$exists":
            if not isinstance(operand, bool):
                raise StoreError(f"{location}: true or false is needed, not {brief_repr(operand)}")
            yield Condition(field, "$ne" if operand else "$eq", None)
            continue
        operand = _json_operand(location, operand)
        if field in FILTERED and operator != "$contains":
            kind, name = (float, "number") if field in NUMBERS else (str, "text")
            for value in operand if operator in ("$in", "$nin") else [operand]:  # of a type that the field can have
                if field in TIMES and operator in ORDER and not (isinstance(value, str) and is_iso_time(value)):
                    raise StoreError(f"{location}: {brief_repr(value)} is no ISO 8601 date or time (2024-05-01)")
                if (value is not None or operator in ORDER) and comparison_type(value) is not kind:
                    raise StoreError(f"{location}: a {name} is needed, not {brief_repr(value)}")
        yield Not(Condition(field, "$in", operand)) if operator == "$nin" else Condition(field, operator, operand)


def _unknown_operator(operator: object, location: str = "") -> StoreError:
    operators = ", ".join((*COMPARISONS, *COMBINATIONS))
    return StoreError(f"where: unknown operator {brief_repr(operator)}{location}: there are {operators}")


def _conjunction(parts: tuple[Filter, ...]) -> Filter:
    return parts[0] if len(parts) == 1 else Combination(parts)


def _json_operand(location: str, value: Any, depth: int = 0) -> Any:
    """Return the operand with tuples as lists. Raises `StoreError` for anything that JSON cannot hold."""
    if depth > _MAX_DEPTH:
        raise StoreError(f"{location}: nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return [_json_operand(location, item, depth + 1) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _json_operand(location, item, depth + 1) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float):  # numpy's floats fail beside integers beyond their range
        return float(value) if isinstance(value, float) else value
    kinds = "(text, number, true, false, null, list, mapping)"
    raise StoreError(f"{location}: {brief_repr(value)} is no JSON value {kinds}{iso_hint(value)}")
