"""Support of an answer: the facts, turns or words it rests on, and whether passages hold them.

`error_analysis` describes the three rules and uses them to classify wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from memalpha.agent.text_match import contains, is_same
from memalpha.qa.systems.base import Passage, Retrieval
from memalpha.store.slots import key_value, normalize
from memalpha.types import Task

Rule = Literal["facts", "turns", "answers"]


@dataclass(frozen=True, slots=True, eq=False)
class _TaskKey:
    """Cache key of a task by identity: hashing its content would cost as much as the cache saves."""

    task: Task

    def __hash__(self) -> int:
        return id(self.task)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TaskKey) and other.task is self.task


class _Sources(NamedTuple):
    """Words of each turn, gold contents by turn, and all gold contents normalized."""

    texts: dict[str, str]
    facts: dict[str, list[str]]
    values: set[str]


@lru_cache(maxsize=4)
def _sources(key: _TaskKey) -> _Sources:
    """Collect turn texts and gold facts of a task; cached, because its questions come one after the other."""
    texts = {turn.id: turn.text for chunk in key.task.chunks for turn in chunk.turns if turn.id is not None}
    facts: dict[str, list[str]] = {}
    gold = [(operation.turn, operation.content) for operation in key.task.gold_operations if operation.content]
    for turn, content in gold:
        if turn is not None:
            facts.setdefault(turn, []).append(content)
    return _Sources(texts, facts, {normalize(content) for _, content in gold})


class AnswerSupport:
    """Support of a question's answer, by the first rule that the task allows."""

    def __init__(self, task: Task, retrieval: Retrieval) -> None:
        question, sources = retrieval.question, _sources(_TaskKey(task))
        self.answers = question.answers
        self.texts = {turn: sources.texts[turn] for turn in question.evidence if turn in sources.texts}
        self.facts: list[tuple[str, str | None]] = []  # (content, turn)
        for turn in question.evidence:
            facts = sources.facts.get(turn, [])
            answering = [content for content in facts if self._has_answer(content)]
            self.facts += [(content, turn) for content in answering or facts]
        self.values = sources.values
        parts = (retrieval.passages, retrieval.entries, retrieval.history)
        has_turn_ids = any(passage.turns or passage.cut_turns for part in parts for passage in part or ())
        self.rule: Rule = "facts" if self.facts else "turns" if self.texts and has_turn_ids else "answers"

    def is_held_by(self, passages: Sequence[Passage]) -> bool:
        """Return True if the passages together hold all of the support."""
        if self.rule == "facts":
            return all(self._states_fact(passages, *fact) for fact in self.facts)
        if self.rule == "turns":
            return all(any(self._covers_turn(passage, turn) for passage in passages) for turn in self.texts)
        return any(self._has_answer(passage.text) for passage in passages)

    def is_findable(self, task: Task) -> bool:
        """Return True if the rule can find the support; `answers` needs an answer in the conversation's words."""
        return self.rule != "answers" or any(self._has_answer(chunk.render()) for chunk in task.chunks)

    def is_written_wrong(self, passages: Sequence[Passage]) -> bool:
        """Return True if something else was written instead of the missing support."""
        if self.rule == "facts":
            return any(
                self._states_other_value(passage, *fact)
                for fact in self.facts
                if not self._states_fact(passages, *fact)
                for passage in passages
            )
        return self.rule == "turns" and any(
            turn in passage.turns
            for turn in self.texts
            if not any(self._covers_turn(passage, turn) for passage in passages)
            for passage in passages
        )

    def _has_answer(self, text: str) -> bool:
        return any(contains(text, answer) for answer in self.answers)

    def _states_fact(self, passages: Sequence[Passage], content: str, turn: str | None) -> bool:
        """Return True if the passages state the fact, or quote the turn that stated it.

        A `key: value` line has to state just the fact; free text may say other things too.
        """
        if turn is not None and any(self._quotes_turn(passage, turn) for passage in passages):
            return True
        needle, free = normalize(content), key_value(content) is None
        return any(
            is_same(line, content) or ((free or key_value(line) is None) and contains(line, content))
            for passage in passages
            if needle in normalize(passage.text)  # cheap filter before the exact comparison
            for line in passage.text.split("\n")
        )

    def _quotes_turn(self, passage: Passage, turn: str) -> bool:
        if passage.turns and turn not in passage.turns:
            return False
        return turn in self.texts and contains(passage.text, self.texts[turn])

    def _states_other_value(self, passage: Passage, content: str, turn: str | None) -> bool:
        """Return True if a line gives the fact's slot a false value, or the entry comes from the fact's turn."""
        pair = key_value(content)
        for line in passage.text.split("\n"):
            other = key_value(line)
            if pair and other and normalize(other[0]) == normalize(pair[0]) and normalize(line) not in self.values:
                return True
        return turn in passage.turns and normalize(passage.text) not in self.values

    def _covers_turn(self, passage: Passage, turn: str) -> bool:
        if turn not in passage.turns:
            return False
        return (
            not self._has_answer(self.texts[turn]) or self._has_answer(passage.text) or self._quotes_turn(passage, turn)
        )
