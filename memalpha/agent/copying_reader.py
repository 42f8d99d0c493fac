"""Answer from what was said, in its own words, without a language model.

Two small networks (`store.search.answer_spans`) find the passage that answers and the words of it that do. They answer
no abstract question, count nothing and join no two passages: a lower bound for evaluations, and what a memory without a
language model answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from memalpha.agent.dates import day_of, find_time, format_date
from memalpha.agent.prompts import ABSTAIN
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
from memalpha.store.search.answer_spans import MOST_PASSAGES, NO_ANSWER, find_answers, order_of
from memalpha.types import MemoryEntry

_ASKS_FOR_PERSON = re.compile(r"\bwho(?:m|se)?\b", re.I)


class CopyReader:
    """Copy the answer from the entry that the network takes for the right one.

    For "when" the answer is the time that the entry names nearest to what is asked, with the entry's own date worked in
    ("yesterday", "on Friday", "two weeks ago"), or that date. Otherwise it is the span that the network takes for the
    likeliest.
    """

    def __init__(self, config: ReaderConfig | None = None) -> None:
        self.config = config or ReaderConfig(kind="copy")
        self.conflicts: Conflicts = self.config.conflicts or "keep"
        self.name = "copy (floor)"

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """Return one answer per item, from the k entries."""
        answers, readings = [], retrieve(items, k or self.config.k)
        for item in apply_conflict_rule(readings, self.conflicts):
            hits = item.memory.hits
            text = copy_answer(item.question, [hit.entry for hit in hits[:MOST_PASSAGES]]) if hits else ABSTAIN
            answers.append(Answer(text, not hits, hits=hits))
        return mark_conflicts(answers, readings) if self.conflicts == "refuse" else answers


def copy_answer(question: str, entries: Sequence[MemoryEntry]) -> str:
    """Copy the answer to a question from entries.

    Args:
        question: text of the question.
        entries: at least one entry, best first. "When" questions are answered by the dates of those that have one.

    Returns:
        A date for "when" questions, otherwise words of an entry.
    """
    texts = [_without_date(entry).strip() for entry in entries]
    said = [split_label(text)[1] or text for text in texts]
    labels = [len(text) - len(rest) for text, rest in zip(texts, said, strict=True)]
    spans = find_answers(question, texts, order_of(entries), [] if _ASKS_FOR_PERSON.search(question) else labels)
    best = max(range(len(spans)), key=lambda number: spans[number].score)
    text, span, day = said[best], spans[best], day_of(entries[best].timestamp)
    if asks_for_time(question):
        start = span.start - labels[best]
        if time := find_time(question, text, day, (start, start + len(span.text))):
            return time.text
        if day is not None and asks_for_day(question):
            return format_date(day)
    return span.text if span.score > NO_ANSWER else text


def _without_date(entry: MemoryEntry) -> str:
    """Return the content without the date that `rag` writes before a turn."""
    day = day_of(entry.timestamp)
    return entry.content if day is None else entry.content.removeprefix(f"{format_date(day)} ")
