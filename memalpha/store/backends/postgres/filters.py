"""Filters as conditions on the rows of PostgreSQL: what `filters` means is said there, and holds here to the letter.

`narrowed` gives a cheap condition that every entry which passes fulfils, and whether it is the filter itself. Where it
is not, `verdict` is one that is true, false or null: null where only `matches` can tell. Fields with a column of their
own are compared as they are, but that times have many spellings: the server leaves those to `matches` that are within
two days of the bound. Metadata is JSON text, and compared as `jsonb`, which does not take every text (a NUL, half a
surrogate pair) and has other numbers: decimals, where here a number with a point or an exponent is a float. Up to 2**53
the order of floats is the order of the shortest decimals that stand for them; operands beyond leave it to `matches`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from memalpha.store.filters import FIELDS, ORDER, TIMES, All, Condition, Filter, Not, OneOf, moment
from memalpha.types import is_iso_time

_TEXTS = frozenset({"id", "category", "content", "source", "turn"})
_SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_ZONES = timedelta(days=2)  # more than two zones can lie apart
_DAY, _WRITTEN = "left(v.{}, 10)", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_LARGE = 2**53
_DOTS = 4  # in a key; each may part it, or be of it

# Metadata as `jsonb`, null where that might refuse it: "\\u" stands before a NUL or what is not ASCII. (And it
# has room for numbers and depths up to a point.)
PARSED = (
    "CASE WHEN octet_length(v.metadata) < 8000 AND (strpos(v.metadata, '\\u') = 0 "
    "OR v.metadata !~ '\\\\u(0000|[dD][89a-fA-F])') THEN v.metadata::jsonb END AS fields"
)


class Narrowed(NamedTuple):
    """A condition on the columns of `versions v`, never null; its parameters; whether it says all that the filter
    says."""

    sql: str
    values: tuple[Any, ...] = ()
    exact: bool = True

    def __invert__(self) -> Narrowed:
        return Narrowed(f"NOT {self.sql}", self.values) if self.exact else _PERHAPS


class Verdict(NamedTuple):
    """A condition on `versions v` with its `PARSED` metadata, true, false or null; its parameters."""

    sql: str
    values: tuple[Any, ...] = ()


_UNKNOWN = Verdict("null::boolean")
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


def verdict(chosen: Filter) -> Verdict:
    """What the server says of a filter."""
    if isinstance(chosen, Not):
        part = verdict(chosen.part)
        return Verdict(f"NOT {part.sql}", part.values)
    if not isinstance(chosen, Condition):
        parts = [verdict(part) for part in chosen.parts]
        word = "AND" if isinstance(chosen, All) else "OR"
        texts = f" {word} ".join(part.sql for part in parts) or ("true" if word == "AND" else "false")
        return Verdict(f"({texts})", sum((part.values for part in parts), ()))
    known = _condition(chosen)
    if known.exact:
        return Verdict(known.sql, known.values)
    if chosen.operator == "$ne":
        return verdict(Not(Condition(chosen.field, "$eq", chosen.operand)))
    if chosen.operator == "$in":
        return verdict(OneOf(tuple(Condition(chosen.field, "$eq", operand) for operand in chosen.operands)))
    if chosen.field in TIMES:
        return _far(chosen)
    value = None if chosen.field in FIELDS else _value(chosen.field.removeprefix("metadata."))
    told = None if value is None else _compared(value, chosen.operator, chosen.operand)
    if told is None:
        return _UNKNOWN
    return Verdict(f"CASE WHEN v.fields IS NOT NULL THEN {told.sql} END", told.values)


def _value(path: str) -> Verdict | None:
    """The value at a path as `filters` finds it: a key that holds the dots itself goes first, from left to right. None
    where that cannot be said."""
    parts = path.split(".")
    if len(parts) > _DOTS + 1 or not _can_be_sent(path):
        return None
    ways = [[*parts[:apart], ".".join(parts[apart:])] for apart in range(len(parts))]
    texts = ["v.fields" + " -> ?::text" * len(way) for way in ways]
    return Verdict(f"coalesce({', '.join(texts)})", tuple(key for way in ways for key in way))


def _compared(value: Verdict, operator: str, operand: Any) -> Verdict | None:
    """What comes of comparing a JSON value, never null; None where the server cannot say."""
    if not _is_alike(operand):
        return None
    text, as_json = "({v} #>> '{}')", json.dumps(operand, ensure_ascii=False)
    if operand is None and operator == "$eq":
        return _filled("coalesce({v} = 'null'::jsonb, true)", value)
    if operator == "$eq":
        return _filled("coalesce({v} = ?::jsonb, false)", value, as_json)
    if operator == "$contains":
        if isinstance(operand, list | Mapping):
            return None
        cases, operands = ["WHEN 'array' THEN {v} @> ?::jsonb"], [f"[{as_json}]"]
        if isinstance(operand, str):
            cases.append(f"WHEN 'string' THEN strpos({text}, ?::text) > 0")
            operands.append(operand)
    elif isinstance(operand, str):
        cases, operands = [f"WHEN 'string' THEN {text} COLLATE \"C\" {_SIGNS[operator]} ?::text"], [operand]
    else:
        cases, operands = [f"WHEN 'number' THEN ({{v}})::numeric {_SIGNS[operator]} ?::numeric"], [repr(operand)]
    return _filled(f"CASE jsonb_typeof({{v}}) {' '.join(cases)} ELSE false END", value, *operands)


def _filled(text: str, value: Verdict, *operands: str) -> Verdict:
    """A condition in which `{v}` stands for a value, and `?` for the next of the operands."""
    rest = iter(operands)
    values = [value.values if mark == "{v}" else (next(rest),) for mark in re.findall(r"\{v\}|\?", text)]
    return Verdict(text.replace("{v}", value.sql), sum(values, ()))


def _is_alike(operand: Any) -> bool:
    """Whether `jsonb` compares a value with any other as `filters` does."""
    if isinstance(operand, str):
        return _can_be_sent(operand)
    if isinstance(operand, list):
        return all(map(_is_alike, operand))
    if isinstance(operand, Mapping):
        return all(isinstance(key, str) and _is_alike(key) and _is_alike(item) for key, item in operand.items())
    return operand is None or isinstance(operand, bool) or (_is_number(operand) and abs(operand) <= _LARGE)


def _far(condition: Condition) -> Verdict:
    """Whether a time fulfils a comparison: null near the bound, and where it is not written year-month-day."""
    near = _around(condition.operand)
    if near is None or condition.operator == "$contains":
        return _UNKNOWN
    time, day = f"v.{condition.field}", _DAY.format(condition.field)
    before, after = condition.operator in ("$lt", "$lte"), condition.operator in ("$gt", "$gte")
    far = f"WHEN {day} < ?::text THEN {before} WHEN {day} > ?::text THEN {after}".lower()
    return Verdict(f"CASE WHEN {time} IS NULL THEN false WHEN {day} !~ '{_WRITTEN}' THEN null {far} END", near)


def _around(operand: Any) -> tuple[str, str] | None:
    """The days around a time of which any zone may make its own; None for what is no time, and at the end of days."""
    if not isinstance(operand, str) or not is_iso_time(operand):
        return None
    try:
        first, last = ((moment(operand) + days).date().isoformat() for days in (-_ZONES, _ZONES))
    except OverflowError:
        return None
    return first, last


def _time(field: str, operator: str, operand: Any) -> Narrowed:
    """Times are written in many ways: of those that begin with year-month-day, this keeps what is near enough."""
    near = _around(operand)
    if operator == "$contains" or near is None:
        return Narrowed(f"v.{field} IS NOT NULL", exact=False)
    bounds, values = [">= ?::text", "<= ?::text"], near
    if operator != "$eq":
        at = operator in ("$lt", "$lte")
        bounds, values = [bounds[at]], (near[at],)
    day = _DAY.format(field)
    within = " AND ".join(f"{day} {bound}" for bound in bounds)
    return Narrowed(f"coalesce({day} !~ '{_WRITTEN}' OR {within}, false)", values, exact=False)


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
