"""Copying baseline for conversations: a date for "when", otherwise words of the best passage.

It uses no language model. It was made for LoCoMo, whose gold answers are mostly words of a turn or the date of the
event. It is a lower bound, not a system's score: it cannot answer abstract questions, lists, or yes/no questions. It
abstains only without any passage.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from memalpha.agent.answer_spans import best_span
from memalpha.agent.dates import CLOCK, day_of, format_date, named_date, shifted_date
from memalpha.agent.prompts import ABSTAIN
from memalpha.agent.reader import Answer, Conflicts, Item, apply_conflict_rule, mark_conflicts, retrieve
from memalpha.agent.transcript import split_label
from memalpha.config import ReaderConfig

_ASKS_FOR_CLOCK = re.compile(r"when (?:does|is)\b", re.I)
_SPEAKER = re.compile(r"[A-Z][\w.'-]*(?: [\w.'-]+){0,2}: ")


class CopyReader:
    """Copy the answer from the best entry, without its "Name: " prefix.

    For "when" the answer is a date that the entry names, or the entry's own, shifted by "yesterday", "last month", "two
    weeks ago" and the like.
    Otherwise it is the span that a small network takes for the likeliest (`agent.answer_spans`).
    """

    def __init__(self, config: ReaderConfig | None = None) -> None:
        self.config = config or ReaderConfig(kind="copy")
        self.conflicts: Conflicts = self.config.conflicts or "keep"
        self.name = "copy (floor)"

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """Return one answer per item, from the best of the k entries."""
        answers, readings = [], retrieve(items, k or self.config.k)
        for item in apply_conflict_rule(readings, self.conflicts):
            hits = item.memory.hits
            best = hits[0].entry if hits else None
            text = ABSTAIN if best is None else copy_answer(item.question, best.content, best.timestamp)
            answers.append(Answer(text, best is None, hits=hits))
        return mark_conflicts(answers, readings) if self.conflicts == "refuse" else answers


def copy_answer(question: str, text: str, timestamp: str | None) -> str:
    """Copy the answer to a question from one passage.

    Args:
        question: text of the question.
        text: the passage.
        timestamp: ISO 8601 date of the passage, for "when" questions.

    Returns:
        A date for "when" questions with a timestamp, otherwise words of the passage.
    """
    day = day_of(timestamp)
    if day is not None:
        text = text.removeprefix(f"{format_date(day)} ")  # as `rag` writes raw turns
    text = _SPEAKER.sub("", text, count=1) if _SPEAKER.match(text) else split_label(text)[1] or text
    if day is not None and question.lower().startswith("when"):
        if _ASKS_FOR_CLOCK.match(question) and (clock := CLOCK.search(text)):
            return clock[0]
        return named_date(text, day) or shifted_date(text, day) or format_date(day)
    return best_span(question, text)
