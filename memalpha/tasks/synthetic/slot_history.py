"""What the synthetic worlds share: a slot with its history, and the question that its history answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from memalpha.tasks.synthetic.phrases import Attribute
from memalpha.tasks.synthetic.value_pools import fill
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
"""Question kind (`Question.meta["kind"]`) → ability (`Question.category`)."""


@dataclass(slots=True)
class Version:
    """What a slot holds from `chunk` on; value None: retracted. `turn` is known once the text is written."""

    chunk: int
    value: str | None
    turn: str = ""


@dataclass(slots=True)
class Slot:
    """An attribute of the user (`subject` "") or of a named person, with all it ever held."""

    attribute: Attribute
    versions: list[Version] = field(default_factory=list)
    subject: str = ""

    @property
    def name(self) -> str:
        """The part of an entry before the colon: `city`, `Tom city`."""
        return f"{self.subject} {self.attribute.key}" if self.subject else self.attribute.key

    @property
    def value(self) -> str | None:
        """What it holds after the last version; None: nothing."""
        return self.versions[-1].value if self.versions else None

    def say(self, rng: Random, before: Version | None, version: Version, cue: float) -> tuple[str, GoldOperation]:
        """The sentence that brings `version` after `before`, and its gold operation (without the turn's id)."""
        old = (before.value if before else None) or ""
        phrases = self.attribute
        if version.value is None:
            text = fill(rng.choice(phrases.retracts), "", old, name=self.subject)
            return text, GoldOperation(
                kind="delete", chunk=version.chunk, category="semantic", replaces=f"{self.name}: {old}"
            )
        sentences = phrases.updates if old and rng.random() < cue else phrases.states
        return fill(rng.choice(sentences), version.value, old, name=self.subject), GoldOperation(
            kind="update" if old else "insert",
            chunk=version.chunk,
            category="semantic",
            content=f"{self.name}: {version.value}",
            replaces=f"{self.name}: {old}" if old else None,
        )

    def ask(self, rng: Random, chunk: int | None = None) -> Question:
        """What it holds after `chunk` (None: in the end), as asked then; kind stated, updated, retracted or never."""
        seen = [version for version in self.versions if chunk is None or version.chunk <= chunk]
        text = fill(rng.choice(self.attribute.questions), name=self.subject)
        if not seen:
            return question(text, self.name, "never", chunk=chunk)
        current = seen[-1]
        return question(
            text,
            self.name,
            "stated" if len(seen) == 1 else "updated" if current.value else "retracted",
            (current.value,) if current.value else (),
            (current.turn,),
            [version.value for version in seen[:-1] if version.value],
            chunk,
        )


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
    """A question that still needs its id; `meta` always has slot, kind and stale."""
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
    """The questions with ids q0, q1, … in their order."""
    return tuple(item.model_copy(update={"id": f"q{number}"}) for number, item in enumerate(questions))
