"""Filters as SQL conditions on PostgreSQL rows, with exactly the semantics of `store.filters`.

`prefilter` returns a cheap condition that every matching entry fulfils, and says if it is the exact filter. Otherwise
`sql_verdict` returns a condition that is true, false or null; null means that only `matches` can tell. Columns are
compared directly, except times, which have many spellings: those within two days of the bound are left to `matches`.
Metadata is JSON text, compared as `jsonb`. `jsonb` refuses some texts (a NUL, half a surrogate pair) and has decimal
numbers, while a JSON number with a point or an exponent is a float here. Up to 2**53, floats order like their shortest
decimals; larger operands are left to `matches`.
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
_ZONE_MARGIN = timedelta(days=2)  # more than the distance between any two time zones
_DAY, _DAY_PATTERN = "left(v.{}, 10)", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_MAX_EXACT_FLOAT = 2**53
_MAX_DOTS = 4  # dots in a key; each may separate keys or belong to one

# Metadata as `jsonb`, null where `jsonb` might refuse it: "\\u" precedes a NUL and everything that is not ASCII. Its
# numbers and nesting are limited, so long texts are null, too.
PARSED_METADATA = (
    "CASE WHEN octet_length(v.metadata) < 8000 AND (strpos(v.metadata, '\\u') = 0 "
    "OR v.metadata !~ '\\\\u(0000|[dD][89a-fA-F])') THEN v.metadata::jsonb END AS fields"
)


class Prefilter(NamedTuple):
    """Condition on the columns of `versions v`, never null.

    Attributes:
        sql: SQL of the condition.
        values: Its parameters.
        exact: True if the condition equals the filter; False if it only narrows.
    """

    sql: str
    values: tuple[Any, ...] = ()
    exact: bool = True

    def __invert__(self) -> Prefilter:
        return Prefilter(f"NOT {self.sql}", self.values) if self.exact else _MAYBE


class SqlVerdict(NamedTuple):
    """Three-valued condition on `versions v` with `PARSED_METADATA`: true, false or null, and its parameters."""

    sql: str
    values: tuple[Any, ...] = ()


_UNKNOWN = SqlVerdict("null::boolean")
_NEVER, _MAYBE = Prefilter("false"), Prefilter("true", exact=False)


def prefilter(entry_filter: Filter) -> Prefilter:
    """Return the cheap condition of a filter."""
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
        if not _is_sendable(operand):  # no stored text contains it, but texts are ordered against it
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
        return _MAYBE  # or the key is missing
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
    """Return the three-valued condition of a filter."""
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
    """Return the SQL of the value at a metadata path, or None if SQL cannot express it.

    As in `store.filters`, a key that contains the dots itself wins, from left to right.
    """
    parts = path.split(".")
    if len(parts) > _MAX_DOTS + 1 or not _is_sendable(path):
        return None
    splits = [[*parts[:count], ".".join(parts[count:])] for count in range(len(parts))]
    texts = ["v.fields" + " -> ?::text" * len(keys) for keys in splits]
    return SqlVerdict(f"coalesce({', '.join(texts)})", tuple(key for keys in splits for key in keys))


def _compare_json(value: SqlVerdict, operator: str, operand: Any) -> SqlVerdict | None:
    """Return the SQL that compares a JSON value, never null; None if the server cannot decide."""
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
    """Fill a template: `{v}` stands for the value, `?` for the next operand."""
    remaining = iter(operands)
    values = [value.values if mark == "{v}" else (next(remaining),) for mark in re.findall(r"\{v\}|\?", text)]
    return SqlVerdict(text.replace("{v}", value.sql), sum(values, ()))


def _compares_alike(operand: Any) -> bool:
    """Return True if `jsonb` compares the operand with any value as `store.filters` does."""
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
    """Return the three-valued comparison of a time: null near the bound and for other spellings of the day."""
    days = _days_around(condition.operand)
    if days is None or condition.operator == "$contains":
        return _UNKNOWN
    time, day = f"v.{condition.field}", _DAY.format(condition.field)
    before, after = condition.operator in ("$lt", "$lte"), condition.operator in ("$gt", "$gte")
    cases = f"WHEN {day} < ?::text THEN {before} WHEN {day} > ?::text THEN {after}".lower()
    return SqlVerdict(f"CASE WHEN {time} IS NULL THEN false WHEN {day} !~ '{_DAY_PATTERN}' THEN null {cases} END", days)


def _days_around(operand: Any) -> tuple[str, str] | None:
    """Return the days before and after a time in any zone; None for no time, or at the calendar's ends."""
    if not isinstance(operand, str) or not is_iso_time(operand):
        return None
    try:
        first, last = ((parse_time(operand) + days).date().isoformat() for days in (-_ZONE_MARGIN, _ZONE_MARGIN))
    except OverflowError:
        return None
    return first, last


def _prefilter_time(field: str, operator: str, operand: Any) -> Prefilter:
    """Return a condition that keeps times near enough to the bound, and all spellings without year-month-day."""
    days = _days_around(operand)
    if operator == "$contains" or days is None:
        return Prefilter(f"v.{field} IS NOT NULL", exact=False)
    bounds, values = [">= ?::text", "<= ?::text"], days
    if operator != "$eq":
        index = operator in ("$lt", "$lte")
        bounds, values = [bounds[index]], (days[index],)
    day = _DAY.format(field)
    in_range = " AND ".join(f"{day} {bound}" for bound in bounds)
    return Prefilter(f"coalesce({day} !~ '{_DAY_PATTERN}' OR {in_range}, false)", values, exact=False)


def _metadata_contains(texts: Sequence[str]) -> Prefilter:
    """Return the condition that the metadata text contains all texts."""
    return Prefilter(f"({' AND '.join(['strpos(v.metadata, ?::text) > 0'] * len(texts))})", tuple(texts), exact=False)


def _json_key(field: str) -> str:
    """Return the last part of a key as it appears in JSON text, with or without the parts before it."""
    return json.dumps(field.rpartition(".")[2])[1:] + ": "


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _column_value(field: str, number: float) -> int | float | None:
    """Return an equal number of the column's type, or None if there is none."""
    try:
        value = float(number) if field == "importance" else int(number)
    except OverflowError:
        return None
    return value if value == number and (field == "importance" or -(2**63) <= value < 2**63) else None


def _is_sendable(text: str) -> bool:
    """Return True if PostgreSQL accepts a text: no NUL, no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
