"""Full world: a stream of sessions, of any length, about the user and other people.

State comes first, text second, session by session, so that it streams. Facts of the user (`city: Oslo`), relations
(`mentor: Tom`), facts of people (`Tom city: Oslo`) and dated events (`trip: Kalford`) are stated, changed and
retracted. Between them come negated, hypothetical, third-party and quoted sentences with the same words, the
assistant's echoes of current and stale values, and filler. The longer the stream, the thinner the facts: 18 % of the
turns at 8k tokens, 4 % at 400k.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from random import Random
from typing import TypeVar

from memalpha.tasks.synthetic import phrases
from memalpha.tasks.synthetic.phrases import Split, ValueSource, fill, pool_values, split_values
from memalpha.tasks.synthetic.slot_history import Event, Lines, Slot, Version, numbered, question
from memalpha.types import Chunk, GoldOperation, Question, Task

T = TypeVar("T")

DEFAULT_TOKENS = 8_000
CHARS_PER_TOKEN = 4
"""Characters of a rendered chunk that count as one token, for any tokenizer."""

EPOCH = date(2015, 1, 5)
SESSION_TURNS = (24, 68)  # turns of about 40 characters
MAX_VERSIONS = 6  # most values of a slot over time: the test pools have eight
RETRACTED_SHARE = 0.2  # largest share of all slots
NEVER_SHARE = 0.1  # share of all slots that are never stated
CUE = 0.75


def _title(event: Event) -> str:
    return phrases.EVENT_NAMES[event.kind.key].format(v=event.value)


def build_stream_task(rng: Random, tokens: int, task_id: str, *, split: Split = "train", pseudo: float = 0.0) -> Task:
    """Build the whole stream as one task; equal `rng` states and arguments give equal bytes.

    Args:
        rng: Source of randomness.
        tokens: Length of the stream in tokens (characters / 4).
        task_id: Id of the task.
        split: Values to draw from.
        pseudo: Share of pseudo-words among the values (split "train").
    """
    return _World(rng, tokens, split, pseudo).task(task_id)


class _World:
    """Hold the state of one stream and all that was stated in it."""

    def __init__(self, rng: Random, tokens: int, split: Split, pseudo: float) -> None:
        self.rng = rng
        self.values = ValueSource(rng, split, pseudo)
        self.characters_left = tokens * CHARS_PER_TOKEN
        scale = tokens / 8_000
        self.density = min(0.2, max(0.03, 0.18 * scale**-0.385))
        self.people = rng.sample(split_values(phrases.PEOPLE, split), min(26, max(4, round(4 * scale**0.48))))
        slots = [Slot(attribute) for attribute in phrases.ATTRIBUTES]
        slots += [Slot(attribute, subject=name) for name in self.people for attribute in phrases.PERSON_ATTRIBUTES]
        rng.shuffle(slots)
        self.relations = [Slot(relation) for relation in rng.sample(phrases.RELATIONS, min(len(self.people) // 2, 10))]
        never = max(3, round(len(slots) * NEVER_SHARE))
        self.never, self.unstated = slots[:never], slots[never:] + self.relations
        rng.shuffle(self.unstated)
        self.stated: list[Slot] = []
        self.live: list[Slot] = []  # stated and not retracted
        self.retractions_left = int(RETRACTED_SHARE * len(self.unstated))
        self.strangers = list(self.people)  # not yet in any relation
        self.events: list[Event] = []
        self.happened: dict[str, set[str]] = {kind.key: set() for kind in phrases.FULL_EVENTS}
        self.room = {kind.key: len(pool_values(kind.pool, split)) * 3 // 4 for kind in phrases.FULL_EVENTS}
        self.by_name = {slot.name: slot for slot in (*slots, *self.relations)}
        self.operations: list[GoldOperation] = []

    def pick(self, items: Sequence[T]) -> T:
        """Choose an item like `rng.choice`, several times as fast: most turns are filler."""
        return items[int(self.rng.random() * len(items))]

    def task(self, task_id: str) -> Task:
        rng, day, is_last = self.rng, EPOCH + timedelta(days=self.rng.randrange(1000)), False
        chunks, questions = list[Chunk](), list[Question]()
        while not is_last:
            lines = Lines(index := len(chunks))
            budget = 40 * rng.randint(*SESSION_TURNS)
            if self.characters_left - budget < 40 * SESSION_TURNS[0]:  # the rest is too short for a session
                budget, is_last = self.characters_left, True
            while lines.characters < budget:
                self._turn(lines, day)
            self.characters_left -= lines.characters
            self.operations += lines.operations
            if is_last:
                questions += self._final_questions()
            # Now and then, ask for a value that holds at this moment of the stream.
            elif self.stated and rng.random() <= min(1.0, 0.06 * len(self.operations) / (index + 1)):
                now = self.pick(self.stated).ask(rng)
                questions.append(now.model_copy(update={"asked_after_chunk": index}))
            chunks.append(lines.build(day))
            day += timedelta(days=rng.randint(0, 5))
        gold = tuple(self.operations)
        return Task(id=task_id, chunks=tuple(chunks), questions=numbered(questions), gold_operations=gold)

    # Sentences

    def _turn(self, lines: Lines, day: date) -> None:
        """Add one turn: a fact, a trap, an echo, or filler."""
        roll = self.rng.random()
        if roll < self.density:
            self._fact(lines, day)
        elif roll < 1.8 * self.density:
            lines.add("user", self._trap())
        elif roll < 2.1 * self.density and self.stated:
            slot = self.pick(self.stated)
            value = self.pick([version.value for version in slot.versions if version.value])
            sentence = fill(self.pick(slot.attribute.states), value, name=slot.subject)
            lines.add("assistant", self.pick(phrases.STALE_ECHOES).format(s=sentence))
        elif roll < 0.62:
            lines.add("user", self.pick(phrases.CHITCHAT) if roll > 0.6 else self._filler())
        else:
            lines.add("assistant", ", ".join([self.pick(column) for column in phrases.FILLER_REPLIES]))

    def _filler(self) -> str:
        return " ".join([self.pick(column) for column in phrases.FILLER]) + "."

    def _fact(self, lines: Lines, day: date) -> None:
        """Add an update (35 %), a retraction (8 %), an event (25 %) or a new fact.

        The state must have room for it; else it is an event.
        """
        roll = self.rng.random()
        if roll < 0.43:
            slot = self._changeable(lines.chunk, retract=roll < 0.08)
            if slot is not None:
                self._tell(lines, slot, retract=roll < 0.08)
                return
        elif roll >= 0.68 and self.unstated:
            slot = self.unstated.pop()
            self.stated.append(slot)
            self.live.append(slot)
            self._tell(lines, slot)
            return
        kinds = [kind for kind in phrases.FULL_EVENTS if len(self.happened[kind.key]) < self.room[kind.key]]
        if not kinds:  # the longest streams run out of names
            lines.add("user", self._filler())
            return
        kind = self.pick(kinds)
        value = self.values.draw_other(kind.pool, self.happened[kind.key])
        self.happened[kind.key].add(value.lower())
        if self.rng.random() < 0.5:
            ago = self.pick((0, 0, 0, 1, 2, 3, 4, 7))
            when = phrases.DAYS_AGO[ago]
        else:
            ago = self.rng.randint(1, 7)
            when = f"last {phrases.WEEKDAYS[(day - timedelta(days=ago)).weekday()]}"
        event = Event(kind, value, lines.chunk, day - timedelta(days=ago))
        lines.add("user", fill(self.pick(kind.states), value, when=when), (event, event.gold(day)))
        self.events.append(event)

    def _changeable(self, chunk: int, *, retract: bool) -> Slot | None:
        """Return a live slot, stated in an earlier chunk, that has room for the change."""
        if not self.live or (retract and not self.retractions_left):
            return None
        # Keep one stranger for every relation that is not stated yet.
        spare = len(self.strangers) > sum(not relation.versions for relation in self.relations)
        for _ in range(8):
            slot = self.pick(self.live)
            attribute = slot.attribute
            possible = attribute.retracts if retract else attribute.updates and len(slot.versions) < MAX_VERSIONS
            if possible and slot.versions[-1].chunk < chunk and (spare or attribute.pool != "person"):
                return slot
        return None

    def _tell(self, lines: Lines, slot: Slot, *, retract: bool = False) -> None:
        previous = slot.versions[-1] if slot.versions else None
        if retract:
            value = None
            self.live.remove(slot)
            self.retractions_left -= 1
        elif slot.attribute.pool == "person":
            value = self.strangers.pop()
        else:
            slot_values = {version.value.lower() for version in slot.versions if version.value}
            value = self.values.draw_other(slot.attribute.pool, slot_values)
        version = Version(lines.chunk, value)
        text, operation = slot.say(self.rng, previous, version, CUE)
        lines.add("user", text, (version, operation))
        slot.versions.append(version)

    def _trap(self) -> str:
        """Draw a sentence that names a value and states nothing.

        It is negated, hypothetical, about a stranger, or quoted.
        """
        roll = self.rng.random()
        if roll < 0.25:
            if self.events and roll < 0.12:  # a distractor with the name of an event that did happen
                event = self.pick(self.events)
                return fill(self.pick(event.kind.distractors[:2]), event.value)
            kind = self.pick(phrases.FULL_EVENTS)
            return fill(self.pick(kind.distractors), self.values.draw_other(kind.pool, self.happened[kind.key]))
        if roll < 0.5:
            attribute = self.pick(phrases.ATTRIBUTES)
            quoted = fill(self.pick(attribute.states), self.values.draw_other(attribute.pool, ()))
            return self.pick(phrases.QUOTES).format(s=quoted)
        slot = self.pick(self.stated) if self.stated and roll < 0.9 else self.pick(self.never)
        slot_values = {version.value.lower() for version in slot.versions if version.value}
        if slot.attribute.pool == "person":
            value = self.pick([name for name in self.people if name.lower() not in slot_values])
        else:
            value = self.values.draw_other(slot.attribute.pool, slot_values)
        return fill(self.pick(slot.attribute.distractors), value, name=slot.subject)

    # Questions

    def _final_questions(self) -> list[Question]:
        """Ask about every ability after the last session.

        There are about a fifth as many questions as facts.
        """
        rng = self.rng
        count = max(2, round(len(self.operations) * 0.025))
        stated = [slot for slot in self.live if len(slot.versions) == 1]
        updated = [slot for slot in self.live if len(slot.versions) > 1]
        retracted = [slot for slot in self.stated if slot.value is None]
        changed = [slot for slot in self.stated if len([v for v in slot.versions if v.value]) > 1]
        questions = [
            slot.ask(rng)
            for slots in (stated, updated, retracted, self.never)
            for slot in rng.sample(slots, min(count, len(slots)))
        ]
        for slot in rng.sample(changed, min(count, len(changed))):  # the value before one of the slot's values
            versions = [version for version in slot.versions if version.value]
            index = rng.randrange(1, len(versions))
            current, before = versions[index], versions[index - 1]
            whose = f"{slot.subject}'s" if slot.subject else "my"
            text = self.pick(phrases.PREVIOUS).format(whose=whose, key=slot.attribute.key, v=current.value)
            stale = [version.value for version in versions if version.value and version is not before]
            answers, evidence = (before.value or "",), (before.turn, current.turn)
            questions.append(question(text, slot.name, "previous", answers, evidence, stale, before=current.value))
        joins: list[Question] = []  # facts of somebody in a relation to the user, stated in different sessions
        for relation in self.relations:
            name = relation.value
            if name is None:
                continue
            for attribute in phrases.PERSON_ATTRIBUTES:
                slot = self.by_name[f"{name} {attribute.key}"]
                if slot.value is None or slot.versions[-1].chunk == relation.versions[-1].chunk:
                    continue
                former = [self.by_name[f"{v.value} {attribute.key}"].value for v in relation.versions[:-1]]
                stale = [version.value for version in slot.versions[:-1] if version.value]
                stale += [value for value in former if value and value != slot.value]
                key = relation.attribute.key
                text = fill(self.pick(attribute.questions), name=f"my {key}")
                evidence = (relation.versions[-1].turn, slot.versions[-1].turn)
                joins.append(question(text, slot.name, "join", (slot.value,), evidence, stale, via=key))
        questions += self.rng.sample(joins, min(count, len(joins)))
        questions += self._counts(count)
        questions += self._dates(count)
        rng.shuffle(questions)
        return questions

    def _counts(self, limit: int) -> list[Question]:
        """Ask how many events of a kind happened, in all or in one month."""
        groups: dict[tuple[str, str], list[Event]] = {}
        for event in self.events:
            groups.setdefault((event.kind.key, ""), []).append(event)
            groups.setdefault((event.kind.key, event.day.isoformat()[:7]), []).append(event)
        countable = [item for item in groups.items() if len({e.chunk for e in item[1]}) > 1 and len(item[1]) <= 8]
        questions = []
        for (key, month), events in self.rng.sample(countable, min(limit, len(countable))):
            text = self.pick(events[0].kind.counts)
            if month:
                year, number = month.split("-")
                text = f"{text[:-1]} in {phrases.MONTHS[int(number) - 1]} {year}?"
            evidence = tuple(event.turn for event in events)
            questions.append(question(text, key, "count", (str(len(events)),), evidence, month=month or None))
        return questions

    def _dates(self, each: int) -> list[Question]:
        """Ask when an event happened, which of two came first, and the days between."""
        rng, questions = self.rng, []
        for event in rng.sample(self.events, min(each, len(self.events))):
            text, answers = fill(self.pick(event.kind.whens), event.value), (event.day.isoformat(),)
            questions.append(question(text, event.kind.key, "when", answers, (event.turn,), event=event.content))
        for number in range(2 * each if len(self.events) > 1 else 0):
            a, b = rng.sample(self.events, 2)
            days = abs((a.day - b.day).days)
            if not days or a.value == b.value:
                continue
            if number % 2:
                kind, text, answers = "between", self.pick(phrases.BETWEEN), (str(days), f"{days} days")
            else:
                first = a if a.day < b.day else b
                kind, text, answers = "order", self.pick(phrases.ORDER), (first.value, _title(first))
            text, events = text.format(a=_title(a), b=_title(b)), [a.content, b.content]
            questions.append(question(text, a.kind.key, kind, answers, (a.turn, b.turn), events=events))
        return questions
