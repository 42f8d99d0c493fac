"""Comparable forms of short texts, in which numbers, names and dates stay what they are.

SQuAD's normalization (Rajpurkar et al., EMNLP 2016) drops all punctuation, which merges 3.5 with 35 and C with C++.
Here the marks stay that tell values apart: those between digits, signs, those of a name (C#, .NET, AC/DC, O-), per cent
and currencies. Case, articles, grouped thousands (1,000), quotes, brackets and the marks of a sentence do not matter.

A date of digits or words becomes `9 january 2024`: 2024-01-09, 09.01.2024 (dots: day first), Jan 9th, 2024. Where
slashes or dashes leave the order of day and month open (03/04/2024) the date is equal to its own spelling alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from datetime import date
from functools import lru_cache

from memalpha.types import MemoryEntry

MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
FULL_DATE = re.compile(rf"\b(\d{{1,2}}) ({'|'.join(MONTHS)}) (\d{{4}})\b")
"""A whole date in a normalized text."""

_ARTICLES = frozenset(("a", "an", "the"))
_CURRENCIES = "$\u00a2\u00a3\u00a5\u20a9\u20aa\u20ab\u20ac\u20b1\u20b4\u20b9\u20ba\u20bd\u0e3f"
_KEPT = frozenset("\u00b1\u00d7\u00f7\u2264\u2265\u2248")
_ASCII = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
    **dict.fromkeys("\u2018\u2019\u201b\u02bc\u2032\u0060", "'"),
    "\u2044": "/",
    "\u2215": "/",
    **{mark: f" {mark} " for mark in (*_CURRENCIES, "\u2030")},
}


class _Marks(dict[int, str]):
    """Replacements of characters for `str.translate`: few kinds of marks remain."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = unicodedata.category(char)
        if char in _ASCII:
            replacement = _ASCII[char]
        elif kind == "Cf":  # soft hyphens and zero-width signs
            replacement = ""
        else:
            replacement = " " if kind[0] in "PS" and not char.isascii() and char not in _KEPT else char
        self[code] = replacement
        return replacement


_MARKS = _Marks()
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})\b"
_WORD_DATES = tuple(
    re.compile(rf"(?<![\w.,/-])(?:{form})(?![-/.:]\d)")
    for form in (
        rf"{_YEAR}[\s,-]+{_MONTH}[\s-]+{_DAY}\b",
        rf"{_MONTH}[\s-]+(?:the\s+)?{_DAY}\b(?:[\s,-]+{_YEAR})?",
        rf"{_DAY}\.?(?:\s+of)?[\s-]+{_MONTH}(?:(?:\s+of)?[\s,-]+{_YEAR})?",
        rf"{_MONTH}(?:\s+of)?[\s,-]+{_YEAR}",
    )
)
_NUMBER_DATE = re.compile(r"(?<![\w./-])(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})(?:t(?=\d\d:)|(?!\w|[-./]\d))")
_RAISED = re.compile("(?<=\\d)(?=[\u00b2\u00b3\u00b9\u2070\u2074-\u2079])")
_FRACTION = re.compile("(?<=\\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_THOUSANDS = re.compile(r"(?<![\d.,'])[1-9]\d{0,2}(?:[,']\d{2,3})*[,']\d{3}(?![\d']|,\d)")
_CURRENCY_FIRST = re.compile(rf"(?<!\d )([{_CURRENCIES}]) (-?\.?\d[\w.]*)")
_SIGNED_CURRENCY = re.compile(rf"([-+])([{_CURRENCIES}])(?=\s?\.?\d)")
_ABBREVIATION = re.compile(r"(?<![\w.@/-])(?:[^\W\d_]{1,2}\.)+[^\W\d_]{0,2}(?![\w.@/-]|:/)")
_BOLD = re.compile(r"(?<!\d)\*\*|\*\*(?!\d)|-{2,}")
_ANY_MARK = "!-#%-/:-@\\[-`{-~\u00b1\u00d7\u00f7\u2264\u2265\u2248"
_MARK = re.compile(
    rf"""(?P<kept>
        (?<=\d)[^\w\s"()\[\]{{}};](?=\d)                      # 3.5, 10:30, 1/2, 3-5
      | (?<![\w)\]%.])[-+](?=\.?\d)                           # -5, +5
      | (?<![^\s\d(\["'=:-])[<>\u2264\u2265\u2248~\u00b1](?=[-+]?\.?\d)  # <5
      | (?<=\d\ )%
      | (?<![\w.])\.(?=[^\W_]) | (?<![\w\#@])[\#@](?=[^\W_])  # .5, .NET, #1, @ana
      | (?<=[^\W_])[.&@/_^!](?=[^\W_])                        # Node.js, R&B, a_b
      | (?<=[^\W_])-(?=\d) | (?<=\d)-(?=[^\W_])               # B-12, 5-year
      | (?<=\w)[+\#]+                                         # C++, C#, 18+
      | (?:(?<=[\s("'][^\W\d_])|(?<=[\s("'][^\W\d_]{{2}}))[-*](?![\w*-])  # A-, O-, A*
    ) | (?P<joined>'|(?<=[^\W\d_])-(?=[^\W\d_])) | [{_ANY_MARK}]""",
    re.VERBOSE,
)


@lru_cache(maxsize=65536)
def normalize(text: str) -> str:
    """Return the comparable form of a text: lower case, values as they are, other punctuation and articles dropped.

    A text of nothing but punctuation and articles is only lower-cased and stripped, so that it does not become empty.
    """
    lowered = unicodedata.normalize("NFKC", _FRACTION.sub(" ", _RAISED.sub("^", text))).lower()
    plain = lowered
    has_digit = any(map(str.isdigit, plain))
    if not plain.replace(" ", "").isalnum():
        plain = _SIGNED_CURRENCY.sub(r"\2\1", plain).translate(_MARKS)
        if has_digit:
            plain = _NUMBER_DATE.sub(_number_date, _THOUSANDS.sub(_drop_grouping, " ".join(plain.split())))
            plain = re.sub(r"(?<=\d)%", " %", _CURRENCY_FIRST.sub(r"\2 \1", plain))
    if has_digit:
        for form in _WORD_DATES:
            plain = form.sub(_word_date, plain)
    if plain.isascii() and plain.replace(" ", "").isalnum():
        marked = plain
    else:
        plain = _BOLD.sub(" ", re.sub(r"([<>])=", lambda match: "\u2264" if match[1] == "<" else "\u2265", plain))
        plain = re.sub(r"(?<![^\s])([<>\u2264\u2265\u2248~\u00b1])\s(?=[-+]?\.?\d)", r"\1", plain)
        plain = _ABBREVIATION.sub(lambda match: match[0].replace(".", ""), plain)
        marked = _MARK.sub(lambda match: match["kept"] or ("" if match["joined"] else " "), f" {plain}")
    return " ".join(word for word in marked.split() if word not in _ARTICLES) or lowered.strip()


def _drop_grouping(match: re.Match[str]) -> str:
    return match[0].replace(",", "").replace("'", "")


def _number_date(match: re.Match[str]) -> str:
    """Return the date in words; the digits as they are if they are no date or the order is open."""
    first, mark, second, last = match.groups()
    if len(first) == 4 and len(last) <= 2:
        orders = [(first, second, last)]
    elif len(first) <= 2 and len(last) == 4:
        orders = [(last, second, first), (last, first, second)]  # day first, month first
    else:
        return match[0]
    dates = dict.fromkeys(text for order in orders if (text := _date_text(*map(int, order))))
    is_open = len(dates) > 1 and mark != "."
    return match[0] if is_open or not dates else f"{next(iter(dates))} "


def _date_text(year: int, month: int, day: int) -> str | None:
    try:
        return f"{date(year, month, day).day} {MONTHS[month - 1]} {year:04d}"
    except ValueError:
        return None


def _word_date(match: re.Match[str]) -> str:
    parts = match.groupdict()
    month = next(name for name in MONTHS if name.startswith(parts["month"][:3]))
    day, year = parts.get("day"), parts.get("year")
    if day is not None and not 1 <= int(day) <= 31:
        return match[0]
    return " ".join(part for part in (day and str(int(day)), month, year) if part)


EVENTS = "episodic"
MAX_SLOT_WORDS = 4


def key_value(content: str) -> tuple[str, str] | None:
    """Split `City: Oslo` into (`city`, `Oslo`); None if the text before the colon is no short name."""
    key, colon, value = content.partition(":")
    if not colon or not value.strip() or not 1 <= len(key.split()) <= MAX_SLOT_WORDS:
        return None
    return " ".join(key.lower().split()), value.strip()


def slot_value(entry: MemoryEntry) -> tuple[str, str] | None:
    """Return the slot and value that an entry states; None for events and free text."""
    return None if entry.category == EVENTS else key_value(entry.content)


def is_contradictory(entries: Iterable[MemoryEntry]) -> bool:
    """Return True if entries of one slot state different values, not all of them as events."""
    values_by_entry = [(entry, pair[1]) for entry in entries if (pair := key_value(entry.content))]
    values = {normalize(value) for _, value in values_by_entry}
    return len(values) > 1 and any(entry.category != EVENTS for entry, _ in values_by_entry)
