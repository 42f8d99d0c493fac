"""Times that a message names: "on 8 May", "last Friday", "two weeks ago" beside the day it was sent.

English, Chinese, Japanese and Korean words are read, and dates in digits. Words of the other languages of
`data/words_of_time.yaml` are read for questions in these languages: German "hier" is no day, French "hier" is one.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, timedelta
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

from memalpha.store.search.lexical import words
from memalpha.store.values import MONTHS
from memalpha.tasks.formats.files import load_shipped_yaml

_WORDS = load_shipped_yaml("words_of_time.yaml")
_ENGLISH = _WORDS["English"]
_COUNTS = _ENGLISH["count"]
_COUNTED = rf"(?<!half )(?<!ty-)(?<!\d[.,])({'|'.join(_COUNTS)}|\d{{1,3}}) (day|week|month|year)s?\b"
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKDAY = rf"(?:{'|'.join(_WEEKDAYS)})"
_ON, _A_WEEKDAY = rf"(?:{_WEEKDAY},? (?:the |\()?)?", rf"(?:,? \(?(?:a )?{_WEEKDAY}\b\)?)?"
_PERIOD = r"(?P<period>week|weekend|mon|tue|wed|thu|fri|sat|sun)(?:s?|nes|rs|ur)(?:day)?\b"
_SEASON_END = {"spring": 5, "summer": 8, "autumn": 11, "fall": 11, "winter": 2}
_SEASON = rf"({'|'.join(_SEASON_END)})"
_MONTH = rf"(?P<month>{'|'.join(f'{month[:3]}(?:{month[3:]})?' for month in MONTHS)}|sept)\b\.?"
_DAY = r"(?:(?P<first>\d{1,2})(?:st|nd|rd|th)? ?(?:-|\u2013|to|and) ?)?(?P<day>\d{1,2})(?:st|nd|rd|th|\.)?"
_YEAR = r"(?:,? (?:of )?(?:(?P<year>\d{4})\b|(?P<which>last|this|next) year\b))"
_CUE = "last|this|next|in|by|since|until|till|during|early|late|mid|(?:start|beginning|middle|end|week|weekend) of"
_EAST_HOUR, _EAST_ASKS, ASKS_FOR_HOUR = ("".join(_WORDS["east"][name]) for name in ("hour", "asks", "asks_for_hour"))
_FOREIGN_ASKS = {
    name: rf"\W*(?:[\w'\u2019]+ )?(?:{language['asks']})\b" for name, language in _WORDS["languages"].items()
}
ASKS_FOR_DAY = "|".join([*_FOREIGN_ASKS.values(), f".*(?:{_EAST_ASKS})"])
"""Beginnings of questions for a day, a month or a year in other languages than English."""
CLOCK = re.compile(
    r"\b\d{1,2}(?:[:.]\d\d)? ?(?:[ap]\.?m\b\.?|o'clock)|\b\d{1,2}:\d\d\b"
    r"|(?<=\bat )\d{1,2}\b(?=[.,;!?]|$| (?:and|but|on|every|sharp|this|to\w+)\b)"
    rf"|{_EAST_HOUR}",
    re.I,
)
_JOINT = re.compile(r"(?:\s|,|at|on|from|around|morning|afternoon|evening|night)*", re.I)
_BREAK = re.compile(
    "(?P<sentence>[.!?]\\s|[\u3002\uff01\uff1f\\n])|[,;:]\\s|[\uff0c\u3001\uff1b]|\\b(?:and|but|then)\\b"
)
_SENTENCE, _CLAUSE, _BEFORE = 1000, 30, 5
"""Characters for which the end of a sentence or a clause counts, and a time that stands before the words it is of. No
more of a sentence is looked at, either."""
_REACH = 5000
"""Characters before and behind the likeliest answer that are looked at."""

_ASKS_FOR_CLOCK = re.compile(
    rf"\W*when(?: (?:do|does|is|are)|['\u2019]s)\b|(?P<hour>(?:\w+ )?what time\b|.*(?:{ASKS_FOR_HOUR}))", re.I | re.S
)
_ASKS_OF_PAST = re.compile(r"\b(?:did|was|were|has|have|had|ago)\b", re.I)
_IS_AHEAD = re.compile(r"\b(?:will|plan|planning|going to|gonna)\b|['\u2019]ll\b", re.I)
_ANY_DAY = date(2000, 1, 1)
_BY = {"last": -1, "since": -1, "next": 1, "day before": -2, "day after": 2, "yesterday": -1, "tomorrow": 1}
_RELATIONS = {"last": "before", "past": "before", "next": "after", "this": "of"}
_Resolver = Callable[[re.Match[str], date, bool], str | None]
_Form = tuple[re.Pattern[str], _Resolver, bool, bool]


class Time(NamedTuple):
    """A time that a text names.

    Attributes:
        text: the time in words that stand without the text.
        start: first character of its words in the text.
        end: the character behind them.
        is_named: False if only the day on which it was said makes it clear.
        is_loose: True for words that often only pass by ("this year"): they tell of their own sentence alone.
    """

    text: str
    start: int
    end: int
    is_named: bool
    is_loose: bool = False


def day_of(timestamp: str | None) -> date | None:
    """Return the day of an ISO 8601 timestamp; None without a whole date."""
    try:
        return date.fromisoformat(timestamp[:10]) if timestamp else None
    except ValueError:
        return None


def find_time(question: str, text: str, day: date | None, span: tuple[int, int] = (0, 0)) -> Time | None:
    """Return the time that a text names for a question; None if it names none.

    Of several it is the one nearest to words of the question, rather behind than before them. A clock time answers
    "what time" and "when does", beside the day if the text says both together.

    Args:
        question: text of the question.
        text: what was said.
        day: the day on which it was said; None if it is not known, so that the text's own words stand for the time.
        span: first character of the likeliest answer in the text, and the one behind it. It takes the place of the
            words of the question if the text has none.
    """
    first = max(0, span[0] - _REACH)
    text = text[first : span[1] + _REACH]
    asked = {*words(question)}
    anchors = [match.span() for match in re.finditer(r"\w+", text) if not asked.isdisjoint(words(match[0]))]
    anchors = anchors or [(span[0] - first, span[1] - first)]

    def distance(time: Time) -> int:
        """Return the fewest characters to an anchor, and more for the end of a clause or a sentence between them."""
        behind, distances = bisect(anchors, (time.start, time.end)), []
        for start, end in anchors[max(0, behind - 1) : behind + 1]:
            between = text[min(end, time.end) : max(start, time.start)]
            breaks = [_SENTENCE if match["sentence"] else _CLAUSE for match in _BREAK.finditer(between)]
            distances.append(len(between) + sum(breaks) + _BEFORE * (time.start < start))
        return min(distances)

    times = [time for time in _times(question, text, day) if not time.is_loose or distance(time) < _SENTENCE]
    clocks = list[Time]()
    if asks_for_clock := _ASKS_FOR_CLOCK.match(question):
        clocks = [Time(match[0], *match.span(), is_named=True) for match in CLOCK.finditer(text)]
        times = [] if asks_for_clock["hour"] else times
    best = min(times + clocks, key=distance, default=None)
    if best is None:
        return None
    for time, clock in product([best], clocks) if best in times else product(times, [best]):
        begin, end = sorted((time, clock), key=lambda either: either.start)
        if _JOINT.fullmatch(text, begin.end, end.start):
            return time._replace(text=f"{time.text} at {clock.text}")
    return best


def _times(question: str, text: str, day: date | None) -> Iterator[Time]:
    """Yield the times of a text; of words that overlap, those of the first form."""
    is_taken = bytearray(len(text))
    asks_of_past = _ASKS_OF_PAST.search(question) is not None
    names = (name for name, asks in _FOREIGN_ASKS.items() if re.match(asks, question, re.I))
    foreign = (form for name in names for form in _compile_language(name))
    for form, resolve, is_named, is_loose in (*foreign, *_FORMS):
        for match in form.finditer(text):
            start, end = match.span()
            first = max(0, start - _SENTENCE)
            sentence = text[max(first, *(text.rfind(mark, first, start) + 1 for mark in (". ", "! ", "? "))) : start]
            is_past = asks_of_past and not _IS_AHEAD.search(f"{question} {sentence}")
            is_free = not any(is_taken[start:end])
            said = None
            if is_free:
                with suppress(ValueError, OverflowError):  # no such day, or beyond the years 1 to 9999
                    said = resolve(match, day or _ANY_DAY, is_past)
            if said:
                is_taken[start:end] = b"\1" * (end - start)
                is_clear = is_named and not match.groupdict().get("which")
                yield Time(said if is_clear or day is not None else match[0], start, end, is_clear, is_loose)


def _named(match: re.Match[str], day: date, is_past: bool) -> str | None:
    """Return a date: the nearest if it lacks the year or the month, of a month alone the last or the next."""
    parts = {name: part.lower() for name, part in match.groupdict().items() if part}
    if parts.keys() == {"year"}:
        return parts["year"]
    number = int(parts.get("day", 0))
    month = 1 + [name[:3] for name in MONTHS].index(parts["month"][:3]) if "month" in parts else day.month
    year, shift = int(parts.get("year", day.year + _BY.get(parts.get("which", ""), 0))), 0
    if not number and not parts.keys() & {"year", "which"}:
        is_past = _BY.get(parts.get("cue", ""), -is_past) < 0
        shift = -12 * (month > day.month) if is_past else 12 * (month < day.month)
    elif not parts.keys() & {"year", "which"}:
        gap, most, unit = (month - day.month, 6, 12) if "month" in parts else (number - day.day, 15, 1)
        shift = unit * ((gap < -most) - (gap > most))
    named = _shift_month(date(year, month, 1), shift, number or 1)
    first = f"{parts['first']} to " if "first" in parts else ""
    return first + format_date(named) if number else f"{named:%B %Y}"


def _shift_month(day: date, by: int, number: int = 1) -> date:
    """Return day `number` of the month that is `by` months later."""
    years, month = divmod(day.month - 1 + by, 12)
    return date(day.year + years, month + 1, number)


def _move(day: date, unit: str, by: int, language: dict[str, Any] = _ENGLISH) -> str:
    """Return the day, month or year that is `by` units later, in a language."""
    if unit == "year":
        return str(day.year + by)
    day = _shift_month(day, by) if unit == "month" else day + timedelta(by * {"day": 1, "week": 7}.get(unit, 0))
    month = language["month"][day.month].split("|")[0]
    return language["written"]["month" if unit == "month" else "day"].format(day=day.day, month=month, year=day.year)


def _counted(match: re.Match[str], day: date, is_past: bool) -> str:
    said, count, unit = (part.lower() for part in match.group(0, 1, 2))
    sign = 1 if said.startswith("in ") or said.endswith("from now") else -1
    return _move(day, unit, sign * (_COUNTS.get(count) or int(count)))


def _moved(match: re.Match[str], day: date, is_past: bool) -> str:
    by = next((by for word, by in _BY.items() if match[0].lower().startswith(word)), 0)
    return _move(day, (match["unit"] or "day").lower(), by)


def _beside(match: re.Match[str], day: date, is_past: bool) -> str:
    period, which = match["period"].lower(), (match.groupdict().get("which") or "").lower()
    name = next((name for name in _WEEKDAYS if name.startswith(period)), period)
    return f"the {name} {_RELATIONS.get(which) or ('before' if is_past else 'after')} {format_date(day)}"


def _quoted(match: re.Match[str], day: date, is_past: bool) -> str:
    return match[0]


def _season(match: re.Match[str], day: date, is_past: bool) -> str:
    which, name = match[1].lower(), match[2].lower()
    is_over = day.month > _SEASON_END[name]
    return f"{name} {day.year + {'last': is_over - 1, 'this': 0, 'next': is_over}[which]}"


def _compile(forms: dict[str, _Resolver], *, is_named: bool = False, is_loose: bool = False) -> Iterator[_Form]:
    return ((re.compile(form, re.I), resolve, is_named, is_loose) for form, resolve in forms.items())


_NAMED = {
    r"(?<!\d)(?:\d{4}-\d\d-\d\d|\d{1,2}([./])\d{1,2}\1\d{4})(?!\d)": _quoted,
    "(?:\\d{4} ?[\u5e74\ub144] ?)?\\d{1,2} ?[\u6708\uc6d4] ?\\d{1,2} ?[\u65e5\u53f7\uc77c]": _quoted,
    rf"\b{_ON}{_DAY}(?: of)? {_MONTH}{_YEAR}?{_A_WEEKDAY}": _named,
    rf"\b{_ON}{_MONTH} (?:the )?{_DAY}(?!\d){_YEAR}?{_A_WEEKDAY}": _named,
    rf"\b{_MONTH}{_YEAR}": _named,
    rf"\b(?:on|{_WEEKDAY}) the (?P<day>\d{{1,2}})(?:st|nd|rd|th)\b(?! (?:floor|page|day|try|time)\b)": _named,
    rf"\b{_SEASON}(?: of)? (\d{{4}})\b": lambda match, day, is_past: f"{match[1].lower()} {match[2]}",
    r"\b(?:in|since|of|until|from|by) (?P<year>(?:19|20)\d\d)\b": _named,
}
_RELATIVE = {
    rf"\b{_COUNTED} (?:ago|from now)\b": _counted,
    rf"\bfor (?:about )?{_COUNTED} now\b": _counted,
    rf"\bin {_COUNTED}": _counted,
    r"\b((?:a few|few|a couple of|several|\w+ and a half|\d+[.,]\d+) \w+s|half an? \w+|an? \w+ and a half"
    r"|\w+ weekends?|(?:(?:many|some|\w+teen|\w+ty|\w+ty-\w+|a hundred|a dozen) )?"
    r"(?:day|week|month|year|decade)s|a decade) ago\b": (
        lambda match, day, is_past: f"{match[1].lower()} before {format_date(day)}"
    ),
    r"\b(?:(?:last|next) (?P<unit>year|month)|(?:day before )?yesterday|(?:day after )?tomorrow|last night)\b": _moved,
    rf"\b(last|next) {_SEASON}\b": _season,
    rf"\b(?P<which>last|past|next) {_PERIOD}": _beside,
}
_LOOSE = {
    r"\b(?:today|tonight|this (?:morning|afternoon|evening|(?P<unit>month|year)))\b": _moved,
    rf"\b(this) {_SEASON}\b": _season,
    r"\b(?P<which>this) (?P<period>week|weekend)\b": _beside,
    rf"\b(?P<cue>{_CUE})[ -]{_MONTH}": _named,
    rf"^{_MONTH}$": _named,
    rf"\b(?:every |each ){_WEEKDAY}\b|\b{_WEEKDAY}s\b": _quoted,
    rf"\b(?P<period>{_WEEKDAY})\b": _beside,
}
_EAST_DAYS, _EAST_YEARS, _EAST_MONTHS, _EAST_WEEKS, _EAST_WEEKDAYS, _EAST_COUNTS = (
    _WORDS["east"][name] for name in ("days", "years", "months", "weeks", "weekdays", "counts")
)
_DIGITS = "".join(_EAST_COUNTS)
_EAST_CLOCK = rf"(?P<clock>(?:の|的| )?{_EAST_HOUR})?"


def _east(day: date, text: str, *, parts: int = 3, clock: str | None = None) -> str:
    """Format a day, its month or its year in the script of the words that name it."""
    units = ("년", "월", "일") if re.search("[가-힣]", text) else ("年", "月", "日")
    values = [f"{value}{unit}" for value, unit in zip((day.year, day.month, day.day), units, strict=True)]
    return (" " if "년" in units else "").join(values[:parts]) + (clock or "").replace("の", "").replace("的", "")


def _which(words: dict[int, str], said: str) -> int:
    return next(by for by, form in words.items() if re.match(form, said))


def _east_day(match: re.Match[str], day: date, is_past: bool) -> str:
    return _east(day + timedelta(_which(_EAST_DAYS, match[0])), match[0], clock=match["clock"])


def _east_weekday(match: re.Match[str], day: date, is_past: bool) -> str:
    number = next(names.index(match["weekday"]) for names in _EAST_WEEKDAYS if match["weekday"] in names)
    monday = day - timedelta(day.weekday())
    shifted = monday + timedelta(7 * _which(_EAST_WEEKS, match[0]) + number)
    return _east(shifted, match[0], clock=match["clock"])


def _east_year(match: re.Match[str], day: date, is_past: bool) -> str:
    month, number = (int(match[name] or 0) for name in ("month", "day"))
    named = date(day.year + _which(_EAST_YEARS, match[0]), month or 1, number or 1)
    return _east(named, match[0], parts=1 + bool(month) + bool(number))


def _east_month(match: re.Match[str], day: date, is_past: bool) -> str:
    number = int(match["day"] or 0)
    named = _shift_month(day, _which(_EAST_MONTHS, match[0]), number or 1)
    return _east(named, match[0], parts=2 + bool(number))


def _east_counted(match: re.Match[str], day: date, is_past: bool) -> str:
    tens, ten, ones = match["count"].rpartition("十")
    count = int(ones) if ones.isdecimal() else _EAST_COUNTS.get(ones, 0)
    count += 10 * _EAST_COUNTS.get(tens, 1) * bool(ten)
    unit = match["unit"]
    count *= -1 if match["side"] in "前전" else 1
    if unit[0] in "年년":
        return _east(day.replace(year=day.year + count, day=1), match[0], parts=1)
    if unit[-1] in "月월달":
        return _east(_shift_month(day, count), match[0], parts=2)
    return _east(day + timedelta(count * (1 if unit in "天日일" else 7)), match[0])


def _any_of(words: dict[int, str]) -> str:
    return "|".join(words.values())


_EAST_DATE = r"(?:の| )?(?:(?P<month>\d{1,2}) ?[月월] ?(?:(?P<day>\d{1,2}) ?[日号號일])?)?"
_EAST: dict[str, _Resolver] = {
    rf"(?:{_any_of(_EAST_DAYS)}){_EAST_CLOCK}": _east_day,
    rf"(?:{_any_of(_EAST_WEEKS)})(?:[个個])?(?:[周週]|星期|[礼禮]拜| ?주)[の ]?"
    r"(?P<weekday>一(?![起直定])|[二三四五六天]|日(?![本记記])|[月火水木金土](?=曜)|[월화수목금토일](?=요일|욜|\W*$))"
    rf"(?:曜日?|요일|욜)?{_EAST_CLOCK}": _east_weekday,
    rf"(?:{_any_of(_EAST_YEARS)}){_EAST_DATE}": _east_year,
    rf"(?:{_any_of(_EAST_MONTHS)})(?:[の ]*(?P<day>\d{{1,2}}) ?[日号號일])?": _east_month,
    rf"(?<![\d.十{_DIGITS}百千万数數几幾何第])(?P<count>\d{{1,3}}|[{_DIGITS}]?十[{_DIGITS}]?|[{_DIGITS}]) ?"
    r"(?P<unit>[天日일년年]|[周週]間?|[个個]?星期|주일?|[个個かヶケ]月|개월|달) ?之?"
    r"(?P<side>[前后後전후뒤])(?![半后後화공배])": _east_counted,
}


def _resolve_foreign(language: dict[str, Any], kind: str, match: re.Match[str], day: date, is_past: bool) -> str:
    """Return a time in the words of a language; counts and periods lie `kind` "before" or "after" the day."""
    parts = {name: part for name, part in match.groupdict().items() if part}

    def find(name: str) -> Any:
        return next(value for value, form in language[name].items() if re.fullmatch(form, parts[name], re.I))

    first, unit, by, sign = "", "day", 0, -1 if kind == "before" else 1
    if "days" in parts:
        by = find("days")
    elif "count" in parts:
        unit, by = find("unit"), sign * (int(parts["count"]) if parts["count"].isdecimal() else find("count"))
    elif "period" in parts:
        unit, by = find("period"), sign
    elif "month" in parts:
        unit, gap = "day" if "day" in parts else "month", find("month") - day.month
        year = int(parts.get("year", day.year + (gap < -6) - (gap > 6)))
        day = date(year, find("month"), int(parts.get("day", 1)))
        first = f"{parts['first']}\u2013" if "first" in parts else ""
    elif "year" in parts:
        return parts["year"]
    said = _move(day, unit, by, language)
    if unit == "other":
        said = language["beside"][kind].format(period=parts["period"], date=said)
    return first + said + parts.get("clock", "")


@cache
def _compile_language(name: str) -> tuple[_Form, ...]:
    language, compiled = _WORDS["languages"][name], list[_Form]()
    tables = ("days", "month", "unit", "period")
    parts = {name: f"(?P<{name}>{'|'.join(language[name].values())})" for name in tables}
    parts |= {name: language[name] for name in ("of", "since", "today")}
    parts["count"] = rf"(?P<count>{'|'.join(language['count'].values())}|\d{{1,3}})"
    for kind, forms in {**_WORDS["every language"], **language["forms"]}.items():
        resolve = partial(_resolve_foreign, language, kind)
        for form in forms:
            whole = _WORDS["form"].format(form=form.format(**parts), clock=language["clock"])
            compiled.append((re.compile(whole, re.I), resolve, kind == "named", kind == "today"))
    return tuple(compiled)


_FORMS = (
    *_compile(_NAMED, is_named=True),
    *_compile(_RELATIVE),
    *_compile(_EAST),
    *_compile(_LOOSE, is_loose=True),
)


def format_date(day: date) -> str:
    """Format a date as people say it: 8 May 2023."""
    return f"{day.day} {day:%B %Y}"
