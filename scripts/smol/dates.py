"""Relative times as people say them, resolved against a day."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from random import Random

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def draw_past(rng: Random, day: date) -> tuple[str, str, str]:
    """Draw a past time.

    Args:
        rng: Source of randomness.
        day: Day on which it is said.

    Returns:
        As it is said ("last Friday"), as it is stored ("on 2023-05-05"), and as an answer ("2023-05-05").
    """
    return _draw(rng, day, (_yesterday, _yesterday, _today, _weekday_ago, _weekday_ago, _days_ago, _last_period))


def draw_planned(rng: Random, day: date) -> tuple[str, str, str]:
    """Draw a future time; arguments and result are those of `draw_past`."""
    return _draw(rng, day, (_tomorrow, _weekday_ahead, _weekday_ahead, _next_period, _next_period, _day_of_month))


def _draw(
    rng: Random, day: date, kinds: Sequence[Callable[[Random, date], tuple[str, str, str]]]
) -> tuple[str, str, str]:
    return rng.choice(kinds)(rng, day)


def _exact(words: str, day: date) -> tuple[str, str, str]:
    return words, f"on {day.isoformat()}", day.isoformat()


def _yesterday(rng: Random, day: date) -> tuple[str, str, str]:
    return _exact(rng.choice(("yesterday", "yesterday", "last night")), day - timedelta(days=1))


def _today(rng: Random, day: date) -> tuple[str, str, str]:
    return _exact(rng.choice(("today", "this morning", "earlier today")), day)


def _days_ago(rng: Random, day: date) -> tuple[str, str, str]:
    words, days = rng.choice((("two days ago", 2), ("three days ago", 3), ("a week ago", 7), ("two weeks ago", 14)))
    return _exact(words, day - timedelta(days=days))


def _weekday_ago(rng: Random, day: date) -> tuple[str, str, str]:
    past = day - timedelta(days=rng.randint(1, 7))
    return _exact(f"{rng.choice(('last', 'last', 'on', 'this past'))} {DAYS[past.weekday()]}", past)


def _last_period(rng: Random, day: date) -> tuple[str, str, str]:
    kind = rng.choice(("week", "weekend", "month", "month", "year"))
    words = f"last {kind}"
    if kind == "week":
        return words, f"in the week before {day.isoformat()}", f"the week before {day.isoformat()}"
    if kind == "weekend":
        return words, f"on the weekend before {day.isoformat()}", f"the weekend before {day.isoformat()}"
    if kind == "month":
        spoken = _month(day.year, day.month - 1)
        return words, f"in {spoken}", spoken
    return words, f"in {day.year - 1}", str(day.year - 1)


def _tomorrow(rng: Random, day: date) -> tuple[str, str, str]:
    return _exact("tomorrow", day + timedelta(days=1))


def _weekday_ahead(rng: Random, day: date) -> tuple[str, str, str]:
    ahead = day + timedelta(days=rng.randint(2, 6))
    return _exact(f"{rng.choice(('on', 'this'))} {DAYS[ahead.weekday()]}", ahead)


def _next_period(rng: Random, day: date) -> tuple[str, str, str]:
    kind = rng.choice(("week", "month", "month", "year"))
    words = f"next {kind}"
    if kind == "week":
        return words, f"in the week after {day.isoformat()}", f"the week after {day.isoformat()}"
    spoken = _month(day.year, day.month + 1) if kind == "month" else str(day.year + 1)
    return words, f"in {spoken}", spoken


def _day_of_month(rng: Random, day: date) -> tuple[str, str, str]:
    ahead = day + timedelta(days=rng.randint(8, 25))
    ending = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}.get(ahead.day, "th")
    words = f"on the {ahead.day}{ending}"
    return _exact(words if ahead.month == day.month else f"{words} of {MONTHS[ahead.month - 1]}", ahead)


def _month(year: int, month: int) -> str:
    """Return a month by number; 0 and 13 are those of the years beside."""
    year, month = year + (month - 1) // 12, (month - 1) % 12
    return f"{MONTHS[month]} {year}"
