"""Slots with their history, and the questions that a history answers, for both synthetic worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from memalpha.tasks.synthetic.phrases import Attribute, fill
from memalpha.types import GoldOperation, Question

ABILITIES = {
    "stated": "extraction",
    "updated": "knowledge-update",
    "previous": "knowledge-update",
    "retracted": "abstention",
    "never": "abstention",
    "count": "multi-session",
    "join": "multi-session",
    "when": "temporal",
    "order": "temporal",
    "between": "temporal",
}
"""Ability (`Question.category`) by question kind (`Question.meta["kind"]`)."""


@dataclass(slots=True)
class Version:
    """Hold the value of a slot from `chunk` on.

    A value of None means retracted. `turn` is set when the text is written.
    """

    chunk: int
    value: str | None
    turn: str = ""


@dataclass(slots=True)
class Slot:
    """Hold an attribute of the user (`subject` "") or of a named person, with its versions."""

    attribute: Attribute
    versions: list[Version] = field(default_factory=list)
    subject: str = ""

    @property
    def name(self) -> str:
        """Part of an entry before the colon: `city`, `Tom city`."""
        return f"{self.subject} {self.attribute.key}" if self.subject else self.attribute.key

    @property
    def value(self) -> str | None:
        """Value after the last version; None if there is none."""
        return self.versions[-1].value if self.versions else None

    def say(self, rng: Random, previous: Version | None, version: Version, cue: float) -> tuple[str, GoldOperation]:
        """Write the sentence that changes `previous` to `version`, and its gold operation.

        Args:
            rng: Source of randomness.
            previous: Version before; None for a first statement.
            version: New version; value None retracts.
            cue: Probability that an update has a cue word.

        Returns:
            The sentence, and the gold operation without its turn id.
        """
        old_value = (previous.value if previous else None) or ""
        phrases = self.attribute
        if version.value is None:
            text = fill(rng.choice(phrases.retracts), "", old_value, name=self.subject)
            return text, GoldOperation(
                kind="delete", chunk=version.chunk, category="semantic", replaces=f"{self.name}: {old_value}"
            )
        sentences = phrases.updates if old_value and rng.random() < cue else phrases.states
        return fill(rng.choice(sentences), version.value, old_value, name=self.subject), GoldOperation(
            kind="update" if old_value else "insert",
            chunk=version.chunk,
            category="semantic",
            content=f"{self.name}: {version.value}",
            replaces=f"{self.name}: {old_value}" if old_value else None,
        )

    def ask(self, rng: Random, chunk: int | None = None) -> Question:
        """Ask for the value after `chunk` (None: at the end).

        The kind of the question is stated, updated, retracted or never.
        """
        versions_so_far = [version for version in self.versions if chunk is None or version.chunk <= chunk]
        text = fill(rng.choice(self.attribute.questions), name=self.subject)
        if not versions_so_far:
            return question(text, self.name, "never", chunk=chunk)
        current = versions_so_far[-1]
        kind = "stated" if len(versions_so_far) == 1 else "updated" if current.value else "retracted"
        stale = [version.value for version in versions_so_far[:-1] if version.value]
        answers = (current.value,) if current.value else ()
        return question(text, self.name, kind, answers, (current.turn,), stale, chunk)


def question(
    text: str,
    slot: str,
    kind: str,
    answers: tuple[str, ...] = (),
    evidence: tuple[str, ...] = (),
    stale: Sequence[str] = (),
    chunk: int | None = None,
    **meta: Any,
) -> Question:
    """Build a question that still needs its id; `meta` always has slot, kind and stale.

    Args:
        text: Text of the question.
        slot: Name of the slot.
        kind: Key of `ABILITIES`.
        answers: Accepted answers; none: abstain.
        evidence: Ids of the turns that hold the answer.
        stale: Values that held once.
        chunk: Chunk after which it is asked; None: at the end.
        **meta: Further entries of `meta`.
    """
    return Question(
        id="",
        question=text,
        answers=answers,
        category=ABILITIES[kind],
        evidence=evidence,
        asked_after_chunk=chunk,
        meta={"slot": slot, "kind": kind, "stale": list(stale), **meta},
    )


def numbered(questions: Sequence[Question]) -> tuple[Question, ...]:
    """Return the questions with ids q0, q1, … in their order."""
    return tuple(item.model_copy(update={"id": f"q{number}"}) for number, item in enumerate(questions))
