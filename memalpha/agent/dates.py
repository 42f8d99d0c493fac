"""Dates that a message names: "on 8 May", "last Friday", "two weeks ago" beside the day it was sent."""

from __future__ import annotations

import re
from datetime import date, timedelta

from memalpha.store.values import MONTHS

_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "ten": 10}
_COUNT_UNITS = rf"({'|'.join(_COUNTS)}|\d{{1,2}}) (day|week|month|year)s?"
_SPANS = (  # a count of units: of time back, and ahead
    (re.compile(rf"\b{_COUNT_UNITS} ago\b|\bfor (?:about )?{_COUNT_UNITS} now\b", re.I), -1),
    (re.compile(rf"\bin {_COUNT_UNITS}(?:' time)?\b|\b{_COUNT_UNITS} from now\b", re.I), 1),
)
_CUES = tuple(
    (re.compile(cue, re.I), unit, by)
    for cue, unit, by in (
        *((rf"\b{word} year\b", "year", by) for word, by in (("last", -1), ("next", 1))),
        *((rf"\b{word} month\b", "month", by) for word, by in (("last", -1), ("this", 0), ("next", 1))),
        (r"\b(?:yesterday|last night)\b", "day", -1),
        (r"\bday after tomorrow\b", "day", 2),
        (r"\btomorrow\b", "day", 1),
    )
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PERIOD = r"(week|weekend|mon|tue|wed|thu|fri|sat|sun)(?:s?|nes|rs|ur)(?:day)?"
_BEFORE = re.compile(rf"\b(?:last|past) {_PERIOD}\b", re.I)
_AFTER = re.compile(rf"\bnext {_PERIOD}\b", re.I)
_SEASON = re.compile(r"\b(last|next) (spring|summer|autumn|fall|winter)\b", re.I)
_SEASON_END = {"spring": 5, "summer": 8, "autumn": 11, "fall": 11, "winter": 2}
_MONTH = rf"({'|'.join(month[:3] for month in MONTHS)})[a-z]*\.?"
_NAMED = (  # day, month, year; day 0 is the whole month
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})(?:,? (?P<year>\d{{4}}))?\b", re.I),
    re.compile(rf"\b(?P<month>{_MONTH}) (?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (?P<year>\d{{4}}))?", re.I),
    re.compile(rf"\b(?P<month>{_MONTH}),? (?P<year>\d{{4}})\b", re.I),
    re.compile(r"\bon the (?P<day>\d{1,2})(?:st|nd|rd|th)\b", re.I),
    re.compile(r"\b(?:in|since|of) (?P<year>(?:19|20)\d\d)\b"),
)
CLOCK = re.compile(r"\b\d{1,2}(?:[:.]\d\d)? ?(?:[ap]\.?m\b\.?|o'clock)|\b\d{1,2}:\d\d\b", re.I)
_MONTH_NAMES = tuple(month[:3] for month in MONTHS)


def day_of(timestamp: str | None) -> date | None:
    """Return the day of an ISO 8601 timestamp; None without a whole date."""
    try:
        return date.fromisoformat(timestamp[:10]) if timestamp else None
    except ValueError:
        return None


def named_date(text: str, day: date) -> str | None:
    """Return the date that a text names, with the month and year of `day` where it leaves these out."""
    for form in _NAMED:
        for match in form.finditer(text):
            parts = match.groupdict()
            year = int(parts["year"] or day.year) if "year" in parts else day.year
            if "month" not in parts and "day" not in parts:
                return str(year)
            month = 1 + _MONTH_NAMES.index(parts["month"][:3].lower()) if "month" in parts else day.month
            try:
                named = date(year, month, int(parts.get("day") or 1))
            except ValueError:
                continue
            return format_date(named) if "day" in parts else f"{named:%B %Y}"
    return None


def shifted_date(text: str, day: date) -> str | None:
    """Return the date that a cue such as "two weeks ago" names; None without one."""
    for cue, sign in _SPANS:
        if match := cue.search(text):
            number, unit = (group.lower() for group in match.groups() if group)
            return _move(day, unit, sign * (_COUNTS.get(number) or int(number)))
    for cue, unit, by in _CUES:
        if cue.search(text):
            return _move(day, unit, by)
    for cue, relation in ((_BEFORE, "before"), (_AFTER, "after")):
        if match := cue.search(text):
            period = match[1].lower()
            name = next((name.lower() for name in _WEEKDAYS if name.lower().startswith(period)), period)
            return f"the {name} {relation} {format_date(day)}"
    if match := _SEASON.search(text):
        is_over = day.month > _SEASON_END[match[2].lower()]
        return f"{match[2].lower()} {day.year - (not is_over) if match[1].lower() == 'last' else day.year + is_over}"
    return None


def _move(day: date, unit: str, by: int) -> str | None:
    """Return the day, month or year that is `by` units later; None beyond the years 1 to 9999."""
    years, month = divmod(day.month - 1 + by, 12)
    try:
        if unit in ("day", "week"):
            return format_date(day + timedelta(days=by * (7 if unit == "week" else 1)))
        return f"{date(day.year + years, month + 1, 1):%B %Y}" if unit == "month" else str(day.year + by)
    except (OverflowError, ValueError):
        return None


def format_date(day: date) -> str:
    """Format a date as people say it: 8 May 2023."""
    return f"{day.day} {day:%B %Y}"
