"""Relative dates in English, written out: `yesterday` becomes `yesterday (7 May 2023)`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta

from memalpha.types import is_iso_time

_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "ten": 10}
_COUNT = rf"(?P<count>{'|'.join(_NUMBERS)}|\d{{1,3}})"
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKDAY = rf"(?P<weekday>{'|'.join(_WEEKDAYS)})"

Resolve = Callable[[re.Match[str], date], str]


def _day(value: date) -> str:
    return f"{value.day} {value:%B %Y}"


def _month(value: date, by: int) -> str:
    years, month = divmod(value.month - 1 + by, 12)
    return f"{date(value.year + years, month + 1, 1):%B %Y}"


def _shift(days: int) -> Resolve:
    return lambda match, today: _day(today + timedelta(days=days))


def _shift_unit(sign: int) -> Resolve:
    def resolve(match: re.Match[str], today: date) -> str:
        count = sign * (_NUMBERS.get(match["count"].lower()) or int(match["count"]))
        unit = match["unit"].lower()
        if unit == "day":
            return _day(today + timedelta(days=count))
        if unit == "week":
            return f"around {_day(today + timedelta(weeks=count))}"
        return _month(today, count) if unit == "month" else str(today.replace(day=1, year=today.year + count).year)

    return resolve


def _neighbour_unit(sign: int) -> Resolve:
    def resolve(match: re.Match[str], today: date) -> str:
        unit = match["unit"].lower()
        if unit == "month":
            return _month(today, sign)
        if unit == "year":
            return str(today.year + sign)
        return f"the {unit} {'before' if sign < 0 else 'after'} {_day(today)}"

    return resolve


def _neighbour_weekday(sign: int) -> Resolve:
    def resolve(match: re.Match[str], today: date) -> str:
        distance = (sign * (_WEEKDAYS.index(match["weekday"].lower()) - today.weekday())) % 7 or 7
        return _day(today + timedelta(days=sign * distance))

    return resolve


_RULES: tuple[tuple[re.Pattern[str], Resolve], ...] = tuple(
    (re.compile(rf"\b{pattern}\b(?! \()", re.IGNORECASE), resolve)
    for pattern, resolve in (
        ("(?:the )?day before yesterday", _shift(-2)),
        ("(?:the )?day after tomorrow", _shift(2)),
        ("(?:yesterday|last night)", _shift(-1)),
        ("(?:tomorrow)", _shift(1)),
        ("(?:today|tonight|this morning)", _shift(0)),
        (rf"{_COUNT} (?P<unit>day|week|month|year)s? ago", _shift_unit(-1)),
        (rf"in {_COUNT} (?P<unit>day|week|month|year)s?", _shift_unit(1)),
        ("last (?P<unit>week|weekend|month|year)", _neighbour_unit(-1)),
        ("next (?P<unit>week|weekend|month|year)", _neighbour_unit(1)),
        (rf"last {_WEEKDAY}", _neighbour_weekday(-1)),
        (rf"next {_WEEKDAY}", _neighbour_weekday(1)),
    )
)


def resolve_dates(text: str, timestamp: str | None) -> str:
    """Write the date behind each relative date of a text.

    Args:
        text: the text.
        timestamp: ISO 8601 date or time at which it was said; without one the text is returned unchanged.

    Returns:
        The text with dates in brackets. A date outside the years 1 to 9999 is left as it was said.
    """
    if not timestamp or not is_iso_time(timestamp[:10]):
        return text
    today = date.fromisoformat(timestamp[:10])
    for pattern, resolve in _RULES:
        text = pattern.sub(lambda match, resolve=resolve: _with_date(match, today, resolve), text)
    return text


def _with_date(match: re.Match[str], today: date, resolve: Resolve) -> str:
    try:
        return f"{match[0]} ({resolve(match, today)})"
    except (OverflowError, ValueError):
        return match[0]
