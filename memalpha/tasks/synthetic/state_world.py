"""State world: what a memory holds of each fact after it was changed, corrected, ended or made up by others.

A conversation has one fact of each topic, each in a situation of its own (`SITUATIONS`), scattered over chunks of small
talk. Every question says in `meta` which situation it is about, what the memory must not hold (`false`), and the words
of the sentence that named it without stating it (`marks`), so that `qa.state_suite` can compare the memory itself with
the state. The sentences of split "test" were written apart from those of "train" (memalpha/data/state_world.yaml).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, timedelta
from random import Random

from memalpha.tasks.formats.files import load_shipped_yaml
from memalpha.tasks.synthetic.phrases import (
    ATTRIBUTES,
    CHITCHAT,
    FILLER,
    FILLER_REPLIES,
    Attribute,
    Split,
    ValueSource,
    fill,
    with_article,
)
from memalpha.tasks.synthetic.slot_history import Change, Lines, Slot, Version, numbered
from memalpha.types import Question, Task

SITUATIONS = {
    "tracking": "said once",
    "update_cue": "a new value, with words that say so",
    "update": "a new value, stated as if it were the first",
    "before_change": "asked before the new value",
    "correction": "a slip put right: no, not that",
    "retraction": "ended without a new value",
    "cascade": "a change that ends something else, too",
    "absence": "never said; a sentence names a value of somebody else's",
    "poisoned": "said; later an assistant or a pasted text claims another value",
    "quoted": "said; later somebody is quoted with another value",
}
"""Meaning of `Question.meta["situation"]`."""

_COUNTS = {"tracking": 2, "update_cue": 2, "update": 2, "correction": 2, "retraction": 2}
_COUNTS |= {"absence": 2, "poisoned": 1, "quoted": 1}
CHUNK_CHARACTERS = 1600
"""Length of a chunk of a long conversation: about 400 tokens."""
DEFAULT_TOKENS = 2_000

EPOCH = date(2021, 3, 1)


@dataclass(slots=True)
class _Fact:
    """A topic in its situation: its history, and the value that the memory must not hold."""

    slot: Slot
    situation: str
    false: str = ""
    marks: str = ""

    def change(self, chunk: int, value: str | None) -> Change:
        """Add a version, and return it with its gold operation."""
        old, version = self.slot.value, Version(chunk, value)
        self.slot.versions.append(version)
        return version, self.slot.gold(old, version)


@dataclass(slots=True)
class _Line:
    """A line that is no small talk: of which fact it is, and the versions that it makes, with their gold operations."""

    fact: _Fact
    chunk: int
    speaker: str
    text: str
    changes: tuple[Change, ...] = ()


def build_state_task(rng: Random, tokens: int, task_id: str, *, split: Split = "train", pseudo: float = 0.0) -> Task:
    """Build one conversation; equal `rng` states and arguments give equal bytes.

    Args:
        rng: Source of randomness.
        tokens: Length in tokens (characters / 4); a short one is as long as its facts need.
        task_id: Id of the task.
        split: Sentences and values to draw from.
        pseudo: Share of pseudo-words among the values (split "train").
    """
    return _StateWorld(rng, max(6, 4 * tokens // CHUNK_CHARACTERS), split, pseudo).task(tokens, task_id)


class _StateWorld:
    def __init__(self, rng: Random, chunks: int, split: Split, pseudo: float) -> None:
        self.rng, self.chunks = rng, chunks
        self.values = ValueSource(rng, split, pseudo)
        data = load_shipped_yaml("state_world.yaml")
        self.frames = data["frames"][split]
        self.topics = {topic.key: topic for topic in ATTRIBUTES}
        if split == "test":
            held_out = {
                key: {name: tuple(texts) for name, texts in words.items()} for key, words in data["topics"].items()
            }
            self.topics = {key: replace(topic, **held_out[key]) for key, topic in self.topics.items()}
        self.facts: list[_Fact] = []
        self.lines: list[_Line] = []

    def task(self, tokens: int, task_id: str) -> Task:
        rng = self.rng
        cause, ended = rng.choice((("employer", "job"), ("city", "sport")))
        facts = [_Fact(Slot(self.topics[key]), "cascade") for key in (cause, ended)]
        self.facts += facts
        for fact in facts:
            self._say(fact, self.rng.randrange(self.chunks // 2), self.values.draw(fact.slot.attribute.pool))
        late = self.rng.randrange(self.chunks // 2, self.chunks)
        if cause == "city":
            self._say(facts[0], late, self.values.draw("city"), "move", ended=facts[1])
        else:
            self._say(facts[0], late, None, "work", ended=facts[1])
        rest = [topic for topic in self.topics.values() if topic.key not in (cause, ended)]
        rng.shuffle(rest)
        situations = [situation for situation, count in _COUNTS.items() for _ in range(count)]
        for topic, situation in zip(rest, situations, strict=True):
            self._fact(topic, situation)
        day, chunks, operations = EPOCH + timedelta(days=rng.randrange(1000)), [], []
        for index in range(self.chunks):
            lines, own_lines = Lines(index), [line for line in self.lines if line.chunk == index]
            order = [line.fact for line in own_lines]
            rng.shuffle(order)
            # The lines of a fact in their order, and None for each turn of small talk.
            spoken: list[_Line | None] = []
            for fact in order:
                spoken.append(own_lines.pop(next(i for i, line in enumerate(own_lines) if line.fact is fact)))
            length = sum(len(line.text) for line in spoken if line is not None)
            while length < 4 * tokens // self.chunks or not spoken:
                spoken.insert(rng.randint(0, len(spoken)), None)
                length += 40
            for line in spoken:
                if line is not None:
                    lines.add(line.speaker, line.text, *line.changes)
                elif (roll := rng.random()) < 0.35:
                    lines.add("assistant", ", ".join(rng.choice(column) for column in FILLER_REPLIES))
                else:
                    lines.add("user", rng.choice(CHITCHAT) if roll < 0.4 else " ".join(map(rng.choice, FILLER)) + ".")
            chunks.append(lines.build(day))
            operations += lines.operations
            day += timedelta(days=rng.randint(1, 9))
        questions = [item for fact in self.facts for item in self._questions(fact)]
        rng.shuffle(questions)
        return Task(id=task_id, chunks=tuple(chunks), questions=numbered(questions), gold_operations=tuple(operations))

    def _fact(self, topic: Attribute, situation: str) -> None:
        """Add a fact of a topic, and what its situation does to it."""
        rng, fact = self.rng, _Fact(Slot(topic), situation)
        self.facts.append(fact)
        early, late = rng.randrange(self.chunks // 2), rng.randrange(self.chunks // 2, self.chunks)
        if situation == "absence":
            self._name_another(fact, early, "user", rng.choice(topic.distractors))
            return
        self._say(fact, early, self.values.draw(topic.pool))
        if situation == "retraction":
            self._say(fact, late, None, "retraction")
        elif situation == "correction":
            self._say(fact, early + rng.randint(0, 1), self.values.draw(topic.pool), "correction")
        elif situation in ("update_cue", "update"):
            self._say(fact, late, self.values.draw(topic.pool), "cue" if situation == "update_cue" else "")
        elif situation == "poisoned":
            self._name_another(fact, late, *rng.choice(self.frames["poison"]))
        elif situation == "quoted":
            self._name_another(fact, late, "user", rng.choice(self.frames["quote"]))

    def _say(self, fact: _Fact, chunk: int, value: str | None, frame: str = "", ended: _Fact | None = None) -> None:
        """Add a line that gives a fact a value, or ends it; with `ended`, it ends that fact, too."""
        slot, old = fact.slot, fact.slot.value or ""
        sentence = "" if value is None else fill(self.rng.choice(slot.attribute.states), value)
        text = self.rng.choice(self.frames[frame]) if frame else "{s}"
        changes = (fact.change(chunk, value), *(() if ended is None else (ended.change(chunk, None),)))
        self.lines.append(_Line(fact, chunk, "user", _sentence(text, s=sentence, v=value, old=old), changes))

    def _name_another(self, fact: _Fact, chunk: int, speaker: str, frame: str) -> None:
        """Add a line that names another value of the topic without stating it of the user."""
        topic = fact.slot.attribute
        fact.false = self.values.draw(topic.pool)
        stated = fill(self.rng.choice(topic.states), fact.false)
        words = {"s": stated, "v": fact.false, "an": with_article(fact.false), "key": topic.key}
        if fact.situation != "poisoned":
            fact.marks = frame.format(**dict.fromkeys(words, ""))
        self.lines.append(_Line(fact, chunk, speaker, _sentence(frame, **words)))

    def _questions(self, fact: _Fact) -> list[Question]:
        """Return the question of a fact, and of an updated one the question before the update."""
        asked = [(fact.slot.ask(self.rng), fact.situation)]
        if fact.situation in ("update", "update_cue"):
            asked.append((fact.slot.ask(self.rng, fact.slot.versions[-1].chunk - 1), "before_change"))
        return [
            item.model_copy(update={"meta": {**item.meta, "situation": name, "false": fact.false, "marks": fact.marks}})
            for item, name in asked
        ]


def _sentence(frame: str, **words: str | None) -> str:
    text = frame.format(**words)
    return text[:1].upper() + text[1:]
