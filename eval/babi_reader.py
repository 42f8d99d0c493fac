"""A reader by rule that understands bAbI, raw statements and noted facts alike, so that what is wrong is the memory's.

It takes in what it is shown in the order in which it was said or written (so the newest counts), line by line: official
statements ("Then they went to the garden.") and facts (`mary: garden; has football, milk`, `mary: not kitchen`,
`football: garden`). A question has the answer that follows; where none does it abstains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memalpha.agent.prompts import ABSTAIN
from memalpha.agent.reader import Answer, Reading
from memalpha.store.slots import key_value
from memalpha.tasks.datasets.babi_world import (
    ASK_CARRIED,
    ASK_PLACE,
    ASK_WHETHER,
    DROP,
    IS,
    MOVE,
    NOTHING,
    PRONOUNS,
    TAKE,
)


@dataclass
class Seen:
    """What is known of a person or a thing: where it is or is not, who has it, what it has (None: not known)."""

    place: str | None = None
    absent: str | None = None
    holder: str | None = None
    holds: list[str] | None = None


@dataclass
class View:
    """What follows from the lines that were shown, as far as anything does: some are missing, some outdated."""

    things: dict[str, Seen] = field(default_factory=dict)
    last: tuple[str, ...] = ()

    def of(self, name: str) -> Seen:
        """What is known of a name, however it is written."""
        return self.things.setdefault(name.strip().lower(), Seen())

    def take_in(self, line: str) -> None:
        """One statement or fact; anything else says nothing."""
        if found := MOVE.fullmatch(line) or IS.fullmatch(line):
            if found["who"] not in PRONOUNS:
                self.last = tuple(found["who"].split(" and "))
            no = found.groupdict().get("no")
            for name in self.last:
                self.put(name, None if no else found["place"], found["place"] if no else None)
        elif found := TAKE.fullmatch(line):
            self.give(found["who"], [*(self.of(found["who"]).holds or []), found["thing"]])
        elif found := DROP.fullmatch(line):
            person = self.of(found["who"])
            self.give(found["who"], [held for held in person.holds or [] if held != found["thing"]])
            self.things[found["thing"]] = Seen(person.place)
        elif pair := key_value(line):
            self.note(*pair)

    def note(self, name: str, value: str) -> None:
        """A fact: all there is to say of a person or a thing, in parts between ";"; who has something, it says so."""
        self.put(name, None, None)
        self.give(name, [])
        for part in (part.strip().lower() for part in value.split(";")):
            if part.startswith("has "):
                self.give(name, [held.strip() for held in part[4:].split(",") if held.strip() != NOTHING])
            elif part.startswith("not "):
                self.put(name, None, part[4:])
            else:
                self.put(name, part, None)

    def put(self, name: str, place: str | None, absent: str | None) -> None:
        """A person with all she holds, or a thing, is or is not there."""
        one = self.of(name)
        one.place, one.absent, one.holder = place, absent, None

    def give(self, name: str, things: Sequence[str]) -> None:
        """A person holds just these."""
        for other in self.things.values():
            other.holds = other.holds and [held for held in other.holds if held not in things]
            other.holder = None if other.holder == name.lower() else other.holder
        for thing in things:
            self.of(thing).holder = name.lower()
        self.of(name).holds = list(things)

    def answer(self, question: str) -> str:
        """What follows, else that it is not known."""
        if found := ASK_PLACE.fullmatch(question):
            one = self.of(found["what"])
            return (one if one.holder is None else self.of(one.holder)).place or ABSTAIN
        if found := ASK_WHETHER.fullmatch(question):
            one, place = self.of(found["who"]), found["place"].lower()
            if one.place is None and one.absent != place:
                return ABSTAIN
            return "yes" if one.place == place else "no"
        if (found := ASK_CARRIED.fullmatch(question)) and (holds := self.of(found["who"]).holds) is not None:
            return ", ".join(holds) or NOTHING
        return ABSTAIN


class RuleReader:
    """Answers from what is shown alone, all of it."""

    name = "rules of bAbI's world"
    conflicts = "newest"

    def read(self, items: Sequence[Reading]) -> list[Answer]:
        """See `agent.answer.Reader`."""
        return [self._answer(item) for item in items]

    def _answer(self, item: Reading) -> Answer:
        view = View()
        for hit in sorted(item.hits, key=lambda hit: hit.entry.valid_from):
            for line in hit.entry.content.splitlines():
                view.take_in(line.strip())
        text = view.answer(item.question)
        return Answer(text, text == ABSTAIN, hits=item.hits)
