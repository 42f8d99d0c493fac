"""Comparable forms of short texts, in which numbers, names and dates stay what they are; whether two say the same.

SQuAD's normalization (Rajpurkar et al., EMNLP 2016) drops all punctuation, which merges 3.5 with 35 and C with C++.
Here the marks stay that tell values apart: those between digits, signs, those of a name (C#, .NET, AC/DC, O-), per cent
and currencies. Case, articles, grouped thousands (1,000), quotes, brackets and the marks of a sentence do not matter,
nor do the blank before a unit (5pm, 35 mg), the zero of an hour (09:00) and the script of the digits.

A date of digits or words becomes `9 january 2024`: 2024-01-09, 09.01.2024 (dots: day first), Jan 9th, 2024, and the
Chinese, Japanese and Korean form of year, month, day. Where slashes or dashes leave the order of day and month open
(03/04/2024) the date is equal to its own spelling alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from pathlib import Path

from memalpha.store.search.lexical import UNSPACED, words
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
_ALIKE = {0x66B: ".", 0x66C: ","}  # Arabic signs of decimals and thousands
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
_EAST_ASIAN_DATE = re.compile(
    "(?<!\\d)(\\d{4}) ?[\u5e74\ub144] ?(\\d{1,2}) ?[\u6708\uc6d4] ?(\\d{1,2}) ?[\u65e5\uc77c]"  # year, month, day
)
_RAISED = re.compile("(?<=\\d)(?=[\u00b2\u00b3\u00b9\u2070\u2074-\u2079])")
_FRACTION = re.compile("(?<=\\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_THOUSANDS = re.compile(r"(?<![\d.,'])[1-9]\d{0,2}(?:[,']\d{2,3})*[,']\d{3}(?![\d']|,\d)")
_UNIT = re.compile(r"(?<=\d)(?=(?:am|pm|[km]g|ml|[ckm]m)\b)")  # 5pm, 35mg; 5m and 5g have other meanings
_HOUR_ZERO = re.compile(r"(?<![\w.,:/+-])0(?=\d:[0-5]\d(?!\d))")
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
    lowered = lowered.replace("i\u0307", "i").translate(_ALIKE)  # the Turkish capital with a dot
    has_digit = any(map(str.isdigit, lowered))
    plain = re.sub(r"\d", lambda match: str(int(match[0])), lowered) if has_digit and not lowered.isascii() else lowered
    if not plain.replace(" ", "").isalnum():
        plain = _SIGNED_CURRENCY.sub(r"\2\1", plain).translate(_MARKS)
        if has_digit:
            plain = _THOUSANDS.sub(lambda match: re.sub("[,']", "", match[0]), " ".join(plain.split()))
            plain = _NUMBER_DATE.sub(_number_date, plain)
            plain = re.sub(r"(?<=\d)%", " %", _CURRENCY_FIRST.sub(r"\2 \1", plain))
    if has_digit:
        if not plain.isascii():
            plain = _EAST_ASIAN_DATE.sub(_east_asian_date, plain)
        for form in _WORD_DATES:
            plain = form.sub(_word_date, plain)
        plain = _HOUR_ZERO.sub("", _UNIT.sub(" ", plain))
    if plain.isascii() and plain.replace(" ", "").isalnum():
        marked = plain
    else:
        plain = _BOLD.sub(" ", re.sub(r"([<>])=", lambda match: "\u2264" if match[1] == "<" else "\u2265", plain))
        plain = re.sub(r"(?<![^\s])([<>\u2264\u2265\u2248~\u00b1])\s(?=[-+]?\.?\d)", r"\1", plain)
        plain = _ABBREVIATION.sub(lambda match: match[0].replace(".", ""), plain)
        marked = _MARK.sub(lambda match: match["kept"] or ("" if match["joined"] else " "), f" {plain}")
    return " ".join(word for word in marked.split() if word not in _ARTICLES) or lowered.strip()


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


def _east_asian_date(match: re.Match[str]) -> str:
    text = _date_text(*map(int, match.groups()))
    return f" {text} " if text else match[0]


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
MAX_SLOT_CHARACTERS = 12
"""Of a script without spaces."""


_COLON = re.compile("[:\uff1a]")
MINUTES = r"[0-5]\d(?![\d号號个個人岁歳元块天位])"
"""Behind the colon of a time, but not behind that of "发言人1: 20号"."""


def key_value(content: str) -> tuple[str, str] | None:
    """Split `City: Oslo` into (`city`, `Oslo`); None if no short name is before the colon, or it is of a time."""
    colon = ":" if content.isascii() or (match := _COLON.search(content)) is None else match[0]
    key, colon, value = content.partition(colon)
    is_time = key[-1:].isdecimal() and re.match(MINUTES, value) is not None
    if is_time or not value.strip() or not 1 <= len(key.split()) <= MAX_SLOT_WORDS:
        return None
    if not key.isascii() and len(UNSPACED.findall(key)) > MAX_SLOT_CHARACTERS:
        return None
    return " ".join(key.lower().split()), value.strip()


def value_words(content: str) -> frozenset[str]:
    """Return the words of a note's value (`pet: cat`), or of a whole sentence."""
    return frozenset(words((key_value(content) or ("", content))[1]))


def slot_value(entry: MemoryEntry) -> tuple[str, str] | None:
    """Return the slot and value that an entry states; None for events and free text."""
    return None if entry.category == EVENTS else key_value(entry.content)


def is_contradictory(entries: Iterable[MemoryEntry]) -> bool:
    """Return True if entries of one slot state different values, not all of them as events."""
    values_by_entry = [(entry, pair[1]) for entry in entries if (pair := key_value(entry.content))]
    values = {normalize(value) for _, value in values_by_entry}
    return len(values) > 1 and any(entry.category != EVENTS for entry, _ in values_by_entry)


MAX_REFUSAL_WORDS = 40
"""Words of the longest reply that can be a refusal."""
MAX_REFUSAL_CHARACTERS = 400
"""Characters of the longest reply that can be a refusal: where no space parts words, it may be one word."""


def _load_forms() -> dict[str, list[str]]:
    """Return the lines of `data/refusals.txt` by section, with the parts that they name."""
    sections, lines, parts = dict[str, list[str]](), list[str](), dict[str, str]()
    for line in (Path(__file__).parents[1] / "data/refusals.txt").read_text(encoding="utf-8").splitlines():
        form = re.sub("<([A-Z_]+)>", lambda name: parts[name[1]], line)
        if part := re.match("([A-Z_]+) = ", form):
            parts[part[1]] = form[part.end() :]
        elif form.startswith("== "):
            lines = sections[form.removeprefix("== ")] = []
        elif form and not form.startswith("#"):
            lines.append(form)
    return sections


_FORMS = _load_forms()
_REFUSAL, _FILLER = (re.compile("|".join(_FORMS[section])) for section in ("refusals", "fillers"))
_OTHER_LANGUAGES = frozenset(normalize(text) for line in _FORMS["whole replies"] for text in line.split(" | "))
_LINK = re.compile(
    r"^(?:(?:but|so|and|therefore|thus|hence|unfortunately|however|sorry|im afraid|i am afraid) )+"
    r"|^(?:my |final )*answer is "
    r"|^(?:抱歉|对不起|對不起|죄송(?:합니다만|하지만)|すみませんが|申し訳(?:ありません|ございません)が) ?(?=.)"
)
_BREAK = re.compile(
    r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])[.!?]+(?=\s|$|[\"')*])|[,;:\n\u2014\u3001\u3002\uff01\uff0c\uff1b]|\s(?=but\s)"
)
_REFUSING = """
    i we you it this that no not yes none never nothing nobody is was do did have know known sure answer information
    mentioned stated given available memory notes conversation
"""
_REFUSAL_WORDS = frozenset(_REFUSING.split())


def is_same(left: str, right: str) -> bool:
    """Return True if two texts are equal after `normalize` and not empty."""
    return bool(normalize(left)) and normalize(left) == normalize(right)


def tokens(text: str) -> list[str]:
    """Split a text into normalized tokens: words, and single characters of scripts written without spaces."""
    return _spaced(text).split()


def _spaced(text: str) -> str:
    """Return the normalized tokens of a text with single spaces between them."""
    plain = normalize(text)
    if plain.isascii() or UNSPACED.search(plain) is None:
        return plain
    return " ".join(UNSPACED.sub(r" \g<0> ", plain).split())


def contains(text: str, part: str) -> bool:
    """Return True if `text` contains `part` as a run of whole normalized tokens; "Carol's" contains "Carol".

    An empty part is never contained. One character of a script without spaces has to stand between spaces or marks,
    since it is too little to tell a word by.
    """
    if len(normalize(part)) == 1 and UNSPACED.search(part):
        return f" {normalize(part)} " in f" {normalize(text)} "
    if _holds_run(text, part):
        return True
    return _POSSESSIVE.search(text) is not None and _holds_run(_POSSESSIVE.sub("", text), _POSSESSIVE.sub("", part))


def _holds_run(text: str, part: str) -> bool:
    needle = _spaced(part)
    return bool(needle) and f" {needle} " in f" {_spaced(text)} "


_POSSESSIVE = re.compile(r"(?<=\w)['\u2019]s\b", re.IGNORECASE)


def is_copied(content: str, source: str) -> bool:
    """Return True if a memory's content invents no value that `source` lacks.

    Values are names and numbers: words with a digit, and capitalized ones but the first. Of a line `key: value` all
    words but stop words count. Words are compared by their stems; dates such as 2025-01-12 may be worked out.

    Args:
        content: Content of an entry.
        source: Text that it was written from.
    """
    known = set(words(source))
    text = _ISO_DATE.sub(" ", content)
    if pair := key_value(text):
        return known.issuperset(words(pair[1]))
    values = [word for word in text.split()[1:] if word[:1].isupper()] + _NUMBER.findall(text)
    return known.issuperset(words(" ".join(values)))


_ISO_DATE = re.compile(r"\b\d{4}-\d\d(?:-\d\d)?(?:T\d\d:\d\d)?\b")
_NUMBER = re.compile(r"\S*\d\S*")


def is_abstention(answer: str) -> bool:
    """Return True if an answer says that it does not know, and nothing else.

    Every clause of a reply of at most `MAX_REFUSAL_WORDS` words has to be a refusal or a filler ("Sorry"), one of them
    a refusal. An empty answer is not an abstention.
    """
    if len(answer) > MAX_REFUSAL_CHARACTERS or len(answer.split()) > MAX_REFUSAL_WORDS:
        return False
    answer = re.sub(r"^[^.!?\n]*\?\s+(?=\S)", "", answer)  # the question again
    if normalize(answer) in _OTHER_LANGUAGES:
        return True
    clauses = [_LINK.sub("", normalize(clause)) for clause in _BREAK.split(answer) if clause.strip(" \t\"'*.!()")]
    refusals, fillers = (
        [form.fullmatch(clause) is not None for clause in clauses if clause] for form in (_REFUSAL, _FILLER)
    )
    return any(refusals) and all(map(max, refusals, fillers)) and clauses != ["no"]


def holds_answer(reply: str, accepted: str) -> bool:
    """Return True if a reply is an accepted answer, or contains one that has other words than refusals have."""
    is_telling = not frozenset(normalize(accepted).split()) <= _REFUSAL_WORDS and not is_abstention(accepted)
    return is_same(reply, accepted) or (is_telling and contains(reply, accepted))
