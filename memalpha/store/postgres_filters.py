"""Filters as conditions on the rows of PostgreSQL: what `filters` means is said there, and holds here to the letter.

`narrowed` gives a condition that every entry which passes fulfils, and whether it is the filter itself. Where it is
not, what fulfils it is read and asked with `matches`. Fields with a column of their own are compared by the server.
Metadata is JSON text that `jsonb` may not even take (a NUL, half a surrogate pair) or would compare in another way
(large numbers), so of metadata the server looks only for the texts that must stand in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from memalpha.store.filters import ORDER, TIMES, All, Condition, Filter, Not, moment
from memalpha.types import is_iso_time

_TEXTS = frozenset({"id", "category", "content", "source", "turn"})
_SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_ZONES = timedelta(days=2)  # more than two zones can lie apart


class Narrowed(NamedTuple):
    """A condition on the columns of `versions v`, never null; its parameters; whether it says all that the filter
    says."""

    sql: str
    values: tuple[Any, ...] = ()
    exact: bool = True

    def __invert__(self) -> Narrowed:
        return Narrowed(f"NOT {self.sql}", self.values) if self.exact else _PERHAPS


_NEVER, _PERHAPS = Narrowed("false"), Narrowed("true", exact=False)


def narrowed(chosen: Filter) -> Narrowed:
    """The condition that a filter comes to."""
    if isinstance(chosen, Condition):
        return _condition(chosen)
    if isinstance(chosen, Not):
        return ~narrowed(chosen.part)
    word = "AND" if isinstance(chosen, All) else "OR"
    return _joined(word, [narrowed(part) for part in chosen.parts])


def _joined(word: str, parts: Sequence[Narrowed]) -> Narrowed:
    if not parts:
        return Narrowed("true" if word == "AND" else "false")
    texts = f" {word} ".join(part.sql for part in parts)
    return Narrowed(f"({texts})", sum((part.values for part in parts), ()), all(part.exact for part in parts))


def _condition(condition: Condition) -> Narrowed:
    if condition.operator == "$ne":
        return ~_condition(Condition(condition.field, "$eq", condition.operand))
    if condition.operator in ("$eq", "$in"):
        return _joined("OR", [_equal(condition.field, operand) for operand in condition.operands])
    field, operator, operand = condition.field, condition.operator, condition.operand
    if field in _TEXTS:
        if not isinstance(operand, str):
            return _NEVER
        if not _can_be_sent(operand):  # no text that is stored holds it, but there is an order
            return _NEVER if operator == "$contains" else _PERHAPS
        if operator == "$contains":
            return Narrowed(f"coalesce(strpos(v.{field}, ?::text) > 0, false)", (operand,))
        return Narrowed(f"coalesce(v.{field} {_SIGNS[operator]} ?::text, false)", (operand,))
    if field in ("importance", "chunk"):
        if operator == "$contains" or not _is_number(operand):
            return _NEVER
        value = _as_column(field, operand)
        if value is None:
            return Narrowed(f"v.{field} IS NOT NULL", exact=False)
        return Narrowed(f"coalesce(v.{field} {_SIGNS[operator]} ?, false)", (value,))
    if field in TIMES:
        return _time(field, operator, operand)
    texts = [_key(field)]
    if operator == "$contains" and isinstance(operand, str):
        texts.append(json.dumps(operand)[1:-1])
    elif operator in ORDER and not (_is_number(operand) or isinstance(operand, str)):
        return _NEVER
    return _holding(texts)


def _equal(field: str, operand: Any) -> Narrowed:
    if operand is None:
        if field in _TEXTS | TIMES or field in ("importance", "chunk"):
            return Narrowed(f"v.{field} IS NULL")
        return _PERHAPS  # or the key is not there at all
    if field in _TEXTS:
        if not (isinstance(operand, str) and _can_be_sent(operand)):
            return _NEVER
        return Narrowed(f"coalesce(v.{field} = ?::text, false)", (operand,))
    if field in ("importance", "chunk"):
        value = _as_column(field, operand) if _is_number(operand) else None
        return _NEVER if value is None else Narrowed(f"coalesce(v.{field} = ?, false)", (value,))
    if field in TIMES:
        return _time(field, "$eq", operand)
    return _holding([_key(field), json.dumps(operand)] if isinstance(operand, str) else [_key(field)])


def _time(field: str, operator: str, operand: Any) -> Narrowed:
    """Times are written in many ways: of those that begin with year-month-day, this keeps what is near enough."""
    there = Narrowed(f"v.{field} IS NOT NULL", exact=False)
    if operator == "$contains" or not isinstance(operand, str) or not is_iso_time(operand):
        return there
    try:
        first, last = ((moment(operand) + days).date().isoformat() for days in (-_ZONES, _ZONES))
    except OverflowError:  # at the end of days
        return there
    bounds = ["<= ?::text"] if operator in ("$lt", "$lte") else [">= ?::text"]
    values = [last] if operator in ("$lt", "$lte") else [first]
    if operator == "$eq":
        bounds, values = [">= ?::text", "<= ?::text"], [first, last]
    day = f"left(v.{field}, 10)"
    within = " AND ".join(f"{day} {bound}" for bound in bounds)
    other = f"{day} !~ '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}$'"
    return Narrowed(f"coalesce({other} OR {within}, false)", tuple(values), exact=False)


def _holding(texts: Sequence[str]) -> Narrowed:
    """Metadata that holds all of some texts."""
    return Narrowed(f"({' AND '.join(['strpos(v.metadata, ?::text) > 0'] * len(texts))})", tuple(texts), exact=False)


def _key(field: str) -> str:
    """How the last part of a key stands in JSON text, as a key with or without the other parts before it."""
    return json.dumps(field.rpartition(".")[2])[1:] + ": "


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _as_column(field: str, number: float) -> int | float | None:
    """A number as one of the column's type that is the very same; None where there is none."""
    try:
        value = float(number) if field == "importance" else int(number)
    except OverflowError:
        return None
    return value if value == number and (field == "importance" or -(2**63) <= value < 2**63) else None


def _can_be_sent(text: str) -> bool:
    """Whether PostgreSQL takes a text: no NUL, no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
