"""Copying baseline for conversations: a date for "when", otherwise words of the best passage.

It uses no language model. It was made for LoCoMo, whose gold answers are mostly words of a turn or the date of the
event. It is a lower bound, not a system's score: it cannot answer abstract questions, lists, or yes/no questions. It
abstains only without any passage.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta

from memalpha.agent.prompts import ABSTAIN
from memalpha.agent.reader import Answer, Conflicts, Item, Reading, apply_conflict_rule, mark_conflicts, retrieve
from memalpha.config import ReaderConfig
from memalpha.store.search.bm25 import STOP_WORDS, words
from memalpha.types import is_iso_time

_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "ten": 10}
_AGO = re.compile(rf"\b({'|'.join(_COUNTS)}|\d{{1,2}}) (day|week|month|year)s? ago\b", re.I)
_SHIFTS = (
    (re.compile(r"\b(?:yesterday|last night)\b", re.I), -1),
    (re.compile(r"\bday after tomorrow\b", re.I), 2),
    (re.compile(r"\btomorrow\b", re.I), 1),
)
_MONTHS = ((re.compile(r"\blast month\b", re.I), -1), (re.compile(r"\bnext month\b", re.I), 1))
_YEARS = ((re.compile(r"\blast year\b", re.I), -1), (re.compile(r"\bnext year\b", re.I), 1))
_BEFORE = re.compile(r"\blast (week|weekend|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b", re.I)
_AFTER = re.compile(r"\bnext (week|weekend|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b", re.I)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|[\[\]]")
_TOKEN = re.compile(r"[\w'\u2019-]+")
_SPEAKER = re.compile(r"[A-Z][\w.'-]*(?: [\w.'-]+){0,2}: ")


class CopyReader:
    """Copy the answer from the best entry, without its "Name: " prefix.

    For "when" the answer is the entry's date, shifted by "yesterday", "last month", "two weeks ago" and the like.
    Otherwise it is a span of the sentence nearest to the question: the longest run of words that the question lacks.
    """

    def __init__(self, config: ReaderConfig | None = None) -> None:
        self.config = config or ReaderConfig(kind="copy")
        self.conflicts: Conflicts = self.config.conflicts or "keep"
        self.name = "copy (floor)"

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """Return one answer per item, from the best of the k entries."""
        return self.read(retrieve(items, k or self.config.k))

    def read(self, items: Sequence[Reading]) -> list[Answer]:
        """Return one answer per item, without sampling."""
        answers = []
        for item in apply_conflict_rule(items, self.conflicts):
            best = item.hits[0].entry if item.hits else None
            text = ABSTAIN if best is None else copy_answer(item.question, best.content, best.timestamp)
            answers.append(Answer(text, best is None, hits=item.hits))
        return mark_conflicts(answers, items) if self.conflicts == "refuse" else answers


def copy_answer(question: str, text: str, timestamp: str | None) -> str:
    """Copy the answer to a question from one passage.

    Args:
        question: text of the question.
        text: the passage.
        timestamp: ISO 8601 date of the passage, for "when" questions.

    Returns:
        A date for "when" questions with a timestamp, otherwise words of the passage.
    """
    text = _SPEAKER.sub("", text, count=1) if _SPEAKER.match(text) else text
    if timestamp and is_iso_time(timestamp[:10]) and question.lower().startswith("when"):
        return _answer_when(text, date.fromisoformat(timestamp[:10]))
    question_words = set(words(question))
    sentences = [part for part in _SENTENCE_END.split(text) if part.strip()] or [text]
    best = max(sentences, key=lambda sentence: len(question_words & set(words(sentence))))
    spans: list[list[str]] = [[]]
    for token in _TOKEN.findall(best):
        new = words(token)
        if token.lower() in STOP_WORDS or question_words & set(new):
            if spans[-1]:
                spans.append([])
        else:
            spans[-1].append(token)
    return " ".join(max(spans, key=len)) or best


def _answer_when(text: str, day: date) -> str:
    """Return the date of the event in `text`, which was written on `day`.

    The first known cue shifts the date. Without a cue the answer is `day`.
    """
    if ago := _AGO.search(text):
        count, unit = _COUNTS.get(ago[1].lower()) or int(ago[1]), ago[2].lower()
        if unit in ("day", "week"):
            return format_date(day - timedelta(days=count * (7 if unit == "week" else 1)))
        return _month(day, -count) if unit == "month" else str(day.year - count)
    for rules, format_shifted in (
        (_YEARS, lambda offset: str(day.year + offset)),
        (_MONTHS, lambda by: _month(day, by)),
    ):
        for cue, by in rules:
            if cue.search(text):
                return format_shifted(by)
    for cue, by in _SHIFTS:
        if cue.search(text):
            return format_date(day + timedelta(days=by))
    for cue, relation in ((_BEFORE, "before"), (_AFTER, "after")):
        if match := cue.search(text):
            return f"the {match[1].lower()} {relation} {format_date(day)}"
    return format_date(day)


def _month(day: date, by: int) -> str:
    years, month = divmod(day.month - 1 + by, 12)
    return f"{date(day.year + years, month + 1, 1):%B %Y}"


def format_date(day: date) -> str:
    """Format a date as people say it: 8 May 2023."""
    return f"{day.day} {day:%B %Y}"
