"""Slots with their history, events, the turns that state them, and questions, for all synthetic worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from random import Random
from typing import Any

from memalpha.tasks.synthetic.phrases import Attribute, EventKind, fill
from memalpha.types import Chunk, GoldOperation, Question, SpeakerTurn

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
        old, phrases = (previous.value if previous else None) or "", self.attribute
        if version.value is None:
            sentences = phrases.retracts
        else:
            sentences = phrases.updates if old and rng.random() < cue else phrases.states
        text = fill(rng.choice(sentences), version.value or "", old, name=self.subject)
        return text, self.gold(old, version)

    def gold(self, old: str | None, version: Version) -> GoldOperation:
        """Return the gold operation that changes the value `old` to `version`, without its turn id."""
        return GoldOperation(
            kind="delete" if version.value is None else "update" if old else "insert",
            chunk=version.chunk,
            category="semantic",
            content="" if version.value is None else f"{self.name}: {version.value}",
            replaces=f"{self.name}: {old}" if old else None,
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


@dataclass(slots=True)
class Event:
    """Hold an event of the user; `turn` is set when the text is written."""

    kind: EventKind
    value: str
    chunk: int
    day: date
    turn: str = ""

    @property
    def content(self) -> str:
        """Entry of a perfect writer: `trip: Kalford`."""
        return f"{self.kind.key}: {self.value}"

    def gold(self, told: date) -> GoldOperation:
        """Return the gold operation of the sentence that tells of the event on the day `told`."""
        timestamp = None if self.day == told else self.day.isoformat()
        return GoldOperation(
            kind="insert", chunk=self.chunk, category="episodic", content=self.content, timestamp=timestamp
        )


@dataclass(slots=True)
class Lines:
    """Collect the turns of a chunk, and the gold operations of what they state."""

    chunk: int
    turns: list[SpeakerTurn] = field(default_factory=list)
    operations: list[GoldOperation] = field(default_factory=list)
    characters: int = 0

    def add(self, speaker: str, text: str, *changes: Change) -> None:
        """Append a turn; what it states gets its id."""
        turn = f"{self.chunk}.{len(self.turns)}"
        self.turns.append(SpeakerTurn(speaker=speaker, text=text, id=turn))
        self.characters += len(speaker) + len(text) + 3  # ": " and the line's end
        for origin, operation in changes:
            origin.turn = turn
            self.operations.append(operation.model_copy(update={"turn": turn}))

    def build(self, day: date) -> Chunk:
        """Return the chunk of this day."""
        return Chunk(turns=tuple(self.turns), timestamp=day.isoformat(), index=self.chunk)


Change = tuple[Version | Event, GoldOperation]
"""What a turn states, and its gold operation."""


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
