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

from memalpha.store.filters import FIELDS, ORDER, TIME_FIELDS, And, Condition, Filter, Not, Or, parse_time
from memalpha.types import is_iso_time

_TEXT_FIELDS = frozenset({"id", "category", "content", "source", "turn"})
_SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_ZONE_MARGIN = timedelta(days=2)  # more than two zones can lie apart
_DAY, _DAY_PATTERN = "left(v.{}, 10)", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_MAX_EXACT_FLOAT = 2**53
_MAX_DOTS = 4  # in a key; each may part it, or be of it

# Metadata as `jsonb`, null where that might refuse it: "\\u" stands before a NUL or what is not ASCII. (And it
# has room for numbers and depths up to a point.)
PARSED_METADATA = (
    "CASE WHEN octet_length(v.metadata) < 8000 AND (strpos(v.metadata, '\\u') = 0 "
    "OR v.metadata !~ '\\\\u(0000|[dD][89a-fA-F])') THEN v.metadata::jsonb END AS fields"
)


class Prefilter(NamedTuple):
    """A condition on the columns of `versions v`, never null; its parameters; whether it says all that the filter
    says."""

    sql: str
    values: tuple[Any, ...] = ()
    exact: bool = True

    def __invert__(self) -> Prefilter:
        return Prefilter(f"NOT {self.sql}", self.values) if self.exact else _MAYBE


class SqlVerdict(NamedTuple):
    """A condition on `versions v` with its `PARSED` metadata, true, false or null; its parameters."""

    sql: str
    values: tuple[Any, ...] = ()


_UNKNOWN = SqlVerdict("null::boolean")
_NEVER, _MAYBE = Prefilter("false"), Prefilter("true", exact=False)


def prefilter(entry_filter: Filter) -> Prefilter:
    """The condition that a filter comes to."""
    if isinstance(entry_filter, Condition):
        return _prefilter_condition(entry_filter)
    if isinstance(entry_filter, Not):
        return ~prefilter(entry_filter.part)
    word = "AND" if isinstance(entry_filter, And) else "OR"
    return _join(word, [prefilter(part) for part in entry_filter.parts])


def _join(word: str, parts: Sequence[Prefilter]) -> Prefilter:
    if not parts:
        return Prefilter("true" if word == "AND" else "false")
    texts = f" {word} ".join(part.sql for part in parts)
    return Prefilter(f"({texts})", sum((part.values for part in parts), ()), all(part.exact for part in parts))


def _prefilter_condition(condition: Condition) -> Prefilter:
    if condition.operator == "$ne":
        return ~_prefilter_condition(Condition(condition.field, "$eq", condition.operand))
    if condition.operator in ("$eq", "$in"):
        return _join("OR", [_prefilter_equal(condition.field, operand) for operand in condition.operands])
    field, operator, operand = condition.field, condition.operator, condition.operand
    if field in _TEXT_FIELDS:
        if not isinstance(operand, str):
            return _NEVER
        if not _is_sendable(operand):  # no text that is stored holds it, but there is an order
            return _NEVER if operator == "$contains" else _MAYBE
        if operator == "$contains":
            return Prefilter(f"coalesce(strpos(v.{field}, ?::text) > 0, false)", (operand,))
        return Prefilter(f"coalesce(v.{field} {_SIGNS[operator]} ?::text, false)", (operand,))
    if field in ("importance", "chunk"):
        if operator == "$contains" or not _is_number(operand):
            return _NEVER
        value = _column_value(field, operand)
        if value is None:
            return Prefilter(f"v.{field} IS NOT NULL", exact=False)
        return Prefilter(f"coalesce(v.{field} {_SIGNS[operator]} ?, false)", (value,))
    if field in TIME_FIELDS:
        return _prefilter_time(field, operator, operand)
    texts = [_json_key(field)]
    if operator == "$contains" and isinstance(operand, str):
        texts.append(json.dumps(operand)[1:-1])
    elif operator in ORDER and not (_is_number(operand) or isinstance(operand, str)):
        return _NEVER
    return _metadata_contains(texts)


def _prefilter_equal(field: str, operand: Any) -> Prefilter:
    if operand is None:
        if field in _TEXT_FIELDS | TIME_FIELDS or field in ("importance", "chunk"):
            return Prefilter(f"v.{field} IS NULL")
        return _MAYBE  # or the key is not there at all
    if field in _TEXT_FIELDS:
        if not (isinstance(operand, str) and _is_sendable(operand)):
            return _NEVER
        return Prefilter(f"coalesce(v.{field} = ?::text, false)", (operand,))
    if field in ("importance", "chunk"):
        value = _column_value(field, operand) if _is_number(operand) else None
        return _NEVER if value is None else Prefilter(f"coalesce(v.{field} = ?, false)", (value,))
    if field in TIME_FIELDS:
        return _prefilter_time(field, "$eq", operand)
    return _metadata_contains(
        [_json_key(field), json.dumps(operand)] if isinstance(operand, str) else [_json_key(field)]
    )


def sql_verdict(entry_filter: Filter) -> SqlVerdict:
    """What the server says of a filter."""
    if isinstance(entry_filter, Not):
        part = sql_verdict(entry_filter.part)
        return SqlVerdict(f"NOT {part.sql}", part.values)
    if not isinstance(entry_filter, Condition):
        parts = [sql_verdict(part) for part in entry_filter.parts]
        word = "AND" if isinstance(entry_filter, And) else "OR"
        texts = f" {word} ".join(part.sql for part in parts) or ("true" if word == "AND" else "false")
        return SqlVerdict(f"({texts})", sum((part.values for part in parts), ()))
    exact = _prefilter_condition(entry_filter)
    if exact.exact:
        return SqlVerdict(exact.sql, exact.values)
    if entry_filter.operator == "$ne":
        return sql_verdict(Not(Condition(entry_filter.field, "$eq", entry_filter.operand)))
    if entry_filter.operator == "$in":
        return sql_verdict(
            Or(tuple(Condition(entry_filter.field, "$eq", operand) for operand in entry_filter.operands))
        )
    if entry_filter.field in TIME_FIELDS:
        return _compare_time(entry_filter)
    value = None if entry_filter.field in FIELDS else _metadata_value(entry_filter.field.removeprefix("metadata."))
    comparison = None if value is None else _compare_json(value, entry_filter.operator, entry_filter.operand)
    if comparison is None:
        return _UNKNOWN
    return SqlVerdict(f"CASE WHEN v.fields IS NOT NULL THEN {comparison.sql} END", comparison.values)


def _metadata_value(path: str) -> SqlVerdict | None:
    """The value at a path as `filters` finds it: a key that holds the dots itself goes first, from left to right. None
    where that cannot be said."""
    parts = path.split(".")
    if len(parts) > _MAX_DOTS + 1 or not _is_sendable(path):
        return None
    splits = [[*parts[:count], ".".join(parts[count:])] for count in range(len(parts))]
    texts = ["v.fields" + " -> ?::text" * len(keys) for keys in splits]
    return SqlVerdict(f"coalesce({', '.join(texts)})", tuple(key for way in splits for key in way))


def _compare_json(value: SqlVerdict, operator: str, operand: Any) -> SqlVerdict | None:
    """What comes of comparing a JSON value, never null; None where the server cannot say."""
    if not _compares_alike(operand):
        return None
    text, as_json = "({v} #>> '{}')", json.dumps(operand, ensure_ascii=False)
    if operand is None and operator == "$eq":
        return _fill("coalesce({v} = 'null'::jsonb, true)", value)
    if operator == "$eq":
        return _fill("coalesce({v} = ?::jsonb, false)", value, as_json)
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
    return _fill(f"CASE jsonb_typeof({{v}}) {' '.join(cases)} ELSE false END", value, *operands)


def _fill(text: str, value: SqlVerdict, *operands: str) -> SqlVerdict:
    """A condition in which `{v}` stands for a value, and `?` for the next of the operands."""
    remaining = iter(operands)
    values = [value.values if mark == "{v}" else (next(remaining),) for mark in re.findall(r"\{v\}|\?", text)]
    return SqlVerdict(text.replace("{v}", value.sql), sum(values, ()))


def _compares_alike(operand: Any) -> bool:
    """Whether `jsonb` compares a value with any other as `filters` does."""
    if isinstance(operand, str):
        return _is_sendable(operand)
    if isinstance(operand, list):
        return all(map(_compares_alike, operand))
    if isinstance(operand, Mapping):
        return all(
            isinstance(key, str) and _compares_alike(key) and _compares_alike(item) for key, item in operand.items()
        )
    return operand is None or isinstance(operand, bool) or (_is_number(operand) and abs(operand) <= _MAX_EXACT_FLOAT)


def _compare_time(condition: Condition) -> SqlVerdict:
    """Whether a time fulfils a comparison: null near the bound, and where it is not written year-month-day."""
    days = _days_around(condition.operand)
    if days is None or condition.operator == "$contains":
        return _UNKNOWN
    time, day = f"v.{condition.field}", _DAY.format(condition.field)
    before, after = condition.operator in ("$lt", "$lte"), condition.operator in ("$gt", "$gte")
    far = f"WHEN {day} < ?::text THEN {before} WHEN {day} > ?::text THEN {after}".lower()
    return SqlVerdict(f"CASE WHEN {time} IS NULL THEN false WHEN {day} !~ '{_DAY_PATTERN}' THEN null {far} END", days)


def _days_around(operand: Any) -> tuple[str, str] | None:
    """The days around a time of which any zone may make its own; None for what is no time, and at the end of days."""
    if not isinstance(operand, str) or not is_iso_time(operand):
        return None
    try:
        first, last = ((parse_time(operand) + days).date().isoformat() for days in (-_ZONE_MARGIN, _ZONE_MARGIN))
    except OverflowError:
        return None
    return first, last


def _prefilter_time(field: str, operator: str, operand: Any) -> Prefilter:
    """Times are written in many ways: of those that begin with year-month-day, this keeps what is near enough."""
    days = _days_around(operand)
    if operator == "$contains" or days is None:
        return Prefilter(f"v.{field} IS NOT NULL", exact=False)
    bounds, values = [">= ?::text", "<= ?::text"], days
    if operator != "$eq":
        index = operator in ("$lt", "$lte")
        bounds, values = [bounds[index]], (days[index],)
    day = _DAY.format(field)
    within = " AND ".join(f"{day} {bound}" for bound in bounds)
    return Prefilter(f"coalesce({day} !~ '{_DAY_PATTERN}' OR {within}, false)", values, exact=False)


def _metadata_contains(texts: Sequence[str]) -> Prefilter:
    """Metadata that holds all of some texts."""
    return Prefilter(f"({' AND '.join(['strpos(v.metadata, ?::text) > 0'] * len(texts))})", tuple(texts), exact=False)


def _json_key(field: str) -> str:
    """How the last part of a key stands in JSON text, as a key with or without the other parts before it."""
    return json.dumps(field.rpartition(".")[2])[1:] + ": "


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _column_value(field: str, number: float) -> int | float | None:
    """A number as one of the column's type that is the very same; None where there is none."""
    try:
        value = float(number) if field == "importance" else int(number)
    except OverflowError:
        return None
    return value if value == number and (field == "importance" or -(2**63) <= value < 2**63) else None


def _is_sendable(text: str) -> bool:
    """Whether PostgreSQL takes a text: no NUL, no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
