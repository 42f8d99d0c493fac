"""Answer from what was said, in its own words, without a language model.

Two small networks (`store.search.answer_spans`) find the passage that answers and the words of it that do. They answer
no abstract question, count nothing and join no two passages: a lower bound for evaluations, and what a memory without a
language model answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from memalpha.agent.dates import day_of, find_time, format_date
from memalpha.agent.prompts import ABSTAIN, letter_choices
from memalpha.agent.reader import (
    Answer,
    Conflicts,
    Item,
    apply_conflict_rule,
    asks_for_day,
    asks_for_time,
    mark_conflicts,
    retrieve,
)
from memalpha.agent.transcript import split_label
from memalpha.config import ReaderConfig
from memalpha.store.search.answer_spans import MOST_PASSAGES, NO_ANSWER, AnswerSpan, find_answers, order_of
from memalpha.store.search.lexical import words
from memalpha.types import MemoryEntry, Question

_ASKS_FOR_PERSON = re.compile(r"\bwho(?:m|se)?\b", re.I)


class CopyReader:
    """Copy the answer from the entry that the network takes for the right one.

    For "when" the answer is the time that the entry names nearest to what is asked, with the entry's own date worked in
    ("yesterday", "on Friday", "two weeks ago"), or that date. Otherwise it is the span that the network takes for the
    likeliest. Of a question with choices it is an option.
    """

    def __init__(self, config: ReaderConfig | None = None) -> None:
        self.config = config or ReaderConfig(kind="copy")
        self.conflicts: Conflicts = self.config.conflicts or "keep"
        self.name = "copy (floor)"

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """Return one answer per item, from the k entries."""
        answers, readings = [], retrieve(items, k or self.config.k)
        for (question, _), item in zip(items, apply_conflict_rule(readings, self.conflicts), strict=True):
            hits = item.memory.hits
            text = copy_answer(question, [hit.entry for hit in hits[:MOST_PASSAGES]]) if hits else ABSTAIN
            answers.append(Answer(text, not hits, hits=hits))
        return mark_conflicts(answers, readings) if self.conflicts == "refuse" else answers


def copy_answer(question: str | Question, entries: Sequence[MemoryEntry]) -> str:
    """Copy the answer to a question from entries.

    Args:
        question: question, or its text.
        entries: at least one entry, best first. "When" questions are answered by the dates of those that have one.

    Returns:
        A date for "when" questions, otherwise words of an entry. Of a question with choices the option, with its letter
        if a letter is asked for, that shares most words with the entries and with their answers, by their chances.
    """
    asked = question if isinstance(question, str) else question.question
    dates = [f"{format_date(day)} " if (day := day_of(entry.timestamp)) else "" for entry in entries]  # of `rag`
    texts = [entry.content.removeprefix(date).strip() for entry, date in zip(entries, dates, strict=True)]
    labels = [len(text) - len(split_label(text)[1] or text) for text in texts]
    spans = find_answers(asked, texts, order_of(entries), [] if _ASKS_FOR_PERSON.search(asked) else labels)
    passages = [*zip(texts, labels, entries, spans, strict=True)]
    choices = {} if isinstance(question, str) else letter_choices(question.meta.get("choices") or {})
    if isinstance(question, str) or not choices:
        return _copy(asked, *max(passages, key=lambda passage: passage[3].score))
    told = [({*words(passage[0])}, {*words(_copy(asked, *passage))}) for passage in passages]

    def score(letter: str) -> float:
        terms = {*words(choices[letter])} or {""}
        shares = [len(terms & known) / len(terms) + len(terms & copied) / len(terms | copied) for known, copied in told]
        return sum(span.chance * share for span, share in zip(spans, shares, strict=True))

    letter = max(choices, key=score)
    return f"({letter}) {choices[letter]}" if question.meta.get("metric") == "choice" else choices[letter]


def _copy(question: str, text: str, label: int, entry: MemoryEntry, span: AnswerSpan) -> str:
    """Return the answer that a passage gives, whose first `label` characters name its speaker."""
    said, start, day = text[label:], span.start - label, day_of(entry.timestamp)
    if asks_for_time(question):
        if time := find_time(question, said, day, (start, start + len(span.text))):
            return time.text
        if day is not None and asks_for_day(question):
            return format_date(day)
    return span.text if span.score > NO_ANSWER else said
