"""Rule-based reader that understands bAbI, raw statements and stored facts alike, so that every error is the memory's.

It reads the shown texts in the order in which they were said or written (so the newest counts), line by line: official
statements ("Then they went to the garden.") and facts (`mary: garden; has football, milk`, `mary: not kitchen`,
`football: garden`). It gives the answer that follows from them and abstains where none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memalpha.agent.prompts import ABSTAIN
from memalpha.agent.reader import Answer, Item, Reading, retrieve
from memalpha.config import EVAL_K
from memalpha.store.values import key_value
from memalpha.tasks.datasets.babi import (
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
class Knowledge:
    """Knowledge of a person or a thing: location, excluded location, holder, items held (None: unknown)."""

    location: str | None = None
    absent: str | None = None
    holder: str | None = None
    holds: list[str] | None = None


@dataclass
class View:
    """Facts that follow from the shown lines, some of which may be missing or outdated."""

    things: dict[str, Knowledge] = field(default_factory=dict)
    last_people: tuple[str, ...] = ()

    def knowledge_of(self, name: str) -> Knowledge:
        """Return the knowledge of a name, ignoring case and surrounding spaces."""
        return self.things.setdefault(name.strip().lower(), Knowledge())

    def add_line(self, line: str) -> None:
        """Add one statement or fact; ignore any other line."""
        if match := MOVE.fullmatch(line) or IS.fullmatch(line):
            if match["who"] not in PRONOUNS:
                self.last_people = tuple(match["who"].split(" and "))
            negated = match.groupdict().get("no")
            for name in self.last_people:
                self.set_location(name, None if negated else match["place"], match["place"] if negated else None)
        elif match := TAKE.fullmatch(line):
            self.set_holdings(match["who"], [*(self.knowledge_of(match["who"]).holds or []), match["thing"]])
        elif match := DROP.fullmatch(line):
            person = self.knowledge_of(match["who"])
            self.set_holdings(match["who"], [item for item in person.holds or [] if item != match["thing"]])
            self.things[match["thing"]] = Knowledge(person.location)
        elif pair := key_value(line):
            self.add_fact(*pair)

    def add_fact(self, name: str, value: str) -> None:
        """Add a fact that describes a person or a thing completely, in parts between ";".

        The holder of a thing is stated by the holder's own fact.
        """
        self.set_location(name, None, None)
        self.set_holdings(name, [])
        for part in (part.strip().lower() for part in value.split(";")):
            if part.startswith("has "):
                self.set_holdings(name, [item.strip() for item in part[4:].split(",") if item.strip() != NOTHING])
            elif part.startswith("not "):
                self.set_location(name, None, part[4:])
            else:
                self.set_location(name, part, None)

    def set_location(self, name: str, location: str | None, absent: str | None) -> None:
        """Set or exclude the location of a person or a thing.

        Args:
            name: Person or thing.
            location: Known location, or None.
            absent: Excluded location, or None.
        """
        knowledge = self.knowledge_of(name)
        knowledge.location, knowledge.absent, knowledge.holder = location, absent, None

    def set_holdings(self, name: str, things: Sequence[str]) -> None:
        """Set the items that a person holds, and remove them from others."""
        for knowledge in self.things.values():
            knowledge.holds = knowledge.holds and [item for item in knowledge.holds if item not in things]
            knowledge.holder = None if knowledge.holder == name.lower() else knowledge.holder
        for thing in things:
            self.knowledge_of(thing).holder = name.lower()
        self.knowledge_of(name).holds = list(things)

    def answer(self, question: str) -> str:
        """Return the answer that follows, or `ABSTAIN`."""
        if match := ASK_PLACE.fullmatch(question):
            knowledge = self.knowledge_of(match["what"])
            return (knowledge if knowledge.holder is None else self.knowledge_of(knowledge.holder)).location or ABSTAIN
        if match := ASK_WHETHER.fullmatch(question):
            knowledge, location = self.knowledge_of(match["who"]), match["place"].lower()
            if knowledge.location is None and knowledge.absent != location:
                return ABSTAIN
            return "yes" if knowledge.location == location else "no"
        if (match := ASK_CARRIED.fullmatch(question)) and (holds := self.knowledge_of(match["who"]).holds) is not None:
            return ", ".join(holds) or NOTHING
        return ABSTAIN


class RuleReader:
    """Reader that answers from all shown entries by rules."""

    name = "rules of bAbI's world"
    conflicts = "newest"

    def answer(self, items: Sequence[Item], *, k: int | None = None) -> list[Answer]:
        """See `agent.reader.Reader`."""
        return [self._answer(reading) for reading in retrieve(items, k or EVAL_K)]

    def _answer(self, item: Reading) -> Answer:
        view = View()
        for hit in sorted(item.memory.hits, key=lambda hit: hit.entry.valid_from):
            for line in hit.entry.content.splitlines():
                view.add_line(line.strip())
        text = view.answer(item.question)
        return Answer(text, text == ABSTAIN, hits=item.memory.hits)
