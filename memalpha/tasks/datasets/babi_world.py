"""The small world of bAbI's stories: what each statement changes, what holds, and the answer that follows.

It reads the official sentences of tasks 1, 2, 6, 8, 9, 11, 12 and 13 (moves, things taken and put down, negation,
"Afterwards she", "Then they", "X and Y") and derives every answer from them, so that official answers can be checked
and golds of renamed, joined stories are known. It also knows what a perfect memory holds: an entry a person,
`mary: kitchen; has football, milk` (or `mary: not kitchen`, `mary: has milk`, `mary: has nothing`), and one for each
thing that lies somewhere, `football: kitchen`. So every question is answered by one entry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import permutations

WOMEN = ("Mary", "Sandra", "Julie")
MEN = ("John", "Daniel", "Bill", "Fred", "Jeff")
NOTHING = "nothing"
PRONOUNS = ("he", "she", "they")

_AFTER = r"(?:Then|Afterwards|After that|Following that) "
MOVE = re.compile(
    rf"(?:{_AFTER})?(?P<who>[A-Z]\w*(?: and [A-Z]\w*)?|he|she|they) "
    r"(?:went back|went|travelled|journeyed|moved) to the (?P<place>\w+)\."
)
IS = re.compile(r"(?P<who>[A-Z]\w*) is (?P<no>no longer |not )?in the (?P<place>\w+)\.")
TAKE = re.compile(r"(?P<who>[A-Z]\w*) (?:grabbed|got|picked up|took) the (?P<thing>\w+)(?: there)?\.")
DROP = re.compile(r"(?P<who>[A-Z]\w*) (?:dropped|put down|left|discarded) the (?P<thing>\w+)(?: there)?\.")
"""Every statement of the eight tasks; `who` may be a pronoun or "X and Y" in moves."""

ASK_PLACE = re.compile(r"Where is (?:the )?(?P<what>\w+)\?")
ASK_WHETHER = re.compile(r"Is (?P<who>\w+) in the (?P<place>\w+)\?")
ASK_CARRIED = re.compile(r"What is (?P<who>\w+) carrying\?")


class Unreadable(ValueError):
    """A sentence that this world does not know, or one that cannot be true in it."""


def thing_in(text: str) -> str | None:
    """The thing that a statement says is taken or put down."""
    found = TAKE.fullmatch(text) or DROP.fullmatch(text)
    return found["thing"] if found else None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the world says to a question. `answers`: every accepted form, the first is canonical.

    `slot` is the entry asked for, `places` where it has been (the current one first, each once), `earlier` the answers
    that held before and do not now, `evidence` the statements that it rests on.
    """

    answers: tuple[str, ...]
    slot: str
    places: tuple[str, ...]
    earlier: tuple[str, ...]
    evidence: tuple[int, ...]


@dataclass(slots=True)
class _Thing:
    """A person or a thing: where it is (or is not), and the statements that say so."""

    place: str | None = None
    absent: str | None = None
    said: int = 0
    places: list[str] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    handled: list[int] = field(default_factory=list)
    holder: str | None = None
    person: bool = False


class World:
    """One story, read statement by statement: `tell`, and `ask` at any point."""

    def __init__(self) -> None:
        self._things: dict[str, _Thing] = {}
        self._last: tuple[str, ...] = ()

    def tell(self, text: str, line: int) -> None:
        """Take in the statement number `line`. Raises `Unreadable`."""
        if found := MOVE.fullmatch(text):
            for name in self._people(found["who"]):
                self._put(name, found["place"], line)
        elif found := IS.fullmatch(text):
            [name] = self._people(found["who"])
            if not found["no"]:
                self._put(name, found["place"], line)
            else:
                self._put(name, None, line)
                self._things[name].absent = found["place"]
        elif found := TAKE.fullmatch(text):
            self._take(self._people(found["who"])[0], found["thing"], line)
        elif found := DROP.fullmatch(text):
            self._drop(self._people(found["who"])[0], found["thing"], line)
        else:
            raise Unreadable(f"{text!r} is no statement of the tasks that are known here")

    def ask(self, question: str) -> Reply | None:
        """The answer that follows from what was told; None where none does. Raises `Unreadable`."""
        if found := ASK_PLACE.fullmatch(question):
            return self._where(found["what"])
        if found := ASK_WHETHER.fullmatch(question):
            return self._whether(found["who"], found["place"])
        if found := ASK_CARRIED.fullmatch(question):
            return self._carried(found["who"])
        raise Unreadable(f"{question!r} is no question of the tasks that are known here")

    def entries(self) -> dict[str, str]:
        """The perfect memory by slot."""
        return {
            name.lower(): f"{name.lower()}: {told}" for name, thing in self._things.items() if (told := _says(thing))
        }

    def _people(self, who: str) -> tuple[str, ...]:
        if who in PRONOUNS:
            if len(self._last) != (2 if who == "they" else 1):
                raise Unreadable(f"{who!r} refers to nobody")
        else:
            self._last = tuple(who.split(" and "))
        return self._last

    def _person(self, name: str) -> _Thing:
        person = self._things.setdefault(name, _Thing())
        person.person = True
        return person

    def _put(self, name: str, place: str | None, line: int) -> None:
        """A person, and all that she holds, is at the place (None: it is not known where)."""
        person = self._person(name)
        for thing in (person, *(self._things[held] for held in person.holds)):
            thing.place, thing.absent, thing.said = place, None, line
            thing.places += [place] if place else []

    def _take(self, name: str, what: str, line: int) -> None:
        person, thing = self._person(name), self._things.setdefault(what, _Thing())
        if thing.holder is not None:
            raise Unreadable(f"{name} takes the {what}, which {thing.holder} holds")
        if person.place is None and thing.place is not None:
            self._put(name, thing.place, line)
        elif thing.place not in (None, person.place):
            raise Unreadable(f"{name} takes the {what}, which is elsewhere")
        thing.holder, thing.place, thing.handled = name, person.place, [line]
        thing.said = person.said
        if person.place:
            thing.places.append(person.place)
        self._load(person, [*person.holds, what], line)

    def _drop(self, name: str, what: str, line: int) -> None:
        person = self._person(name)
        if what not in person.holds:
            raise Unreadable(f"{name} puts down the {what} without holding it")
        thing = self._things[what]
        thing.holder, thing.handled = None, [line]
        self._load(person, [held for held in person.holds if held != what], line)

    def _load(self, person: _Thing, holds: list[str], line: int) -> None:
        person.holds = holds
        person.loads.append(_listed(holds))
        person.handled.append(line)

    def _where(self, name: str) -> Reply | None:
        thing = self._things.get(name)
        if thing is None or thing.place is None:
            return None
        lines = {thing.said} if thing.person else {*thing.handled, thing.said}
        return _reply((thing.place,), name, thing, thing.places, lines)

    def _whether(self, name: str, place: str) -> Reply | None:
        person = self._things.get(name)
        if person is None or (person.place is None and person.absent != place):
            return None
        answer = "yes" if person.place == place else "no"
        return _reply((answer,), name, person, [], {person.said})

    def _carried(self, name: str) -> Reply | None:
        person = self._things.get(name)
        if person is None or not person.handled:
            return None
        answers = tuple(map(_listed, permutations(person.holds)))
        return _reply(answers, name, person, person.loads, set(person.handled))


def _reply(answers: tuple[str, ...], name: str, thing: _Thing, history: list[str], lines: set[int]) -> Reply:
    now = [thing.place] if thing.place else []
    places: dict[str, None] = dict.fromkeys(now + thing.places[::-1])
    earlier = dict.fromkeys(value for value in history if value not in answers)
    return Reply(answers, name.lower(), tuple(places), tuple(earlier), tuple(sorted(lines)))


def _listed(things: list[str] | tuple[str, ...]) -> str:
    return ", ".join(things) or NOTHING


def _says(thing: _Thing) -> str | None:
    """What the entry of a person or thing says; None where it has none."""
    if not thing.person:
        return thing.place if thing.holder is None else None
    where = thing.place or (f"not {thing.absent}" if thing.absent else "")
    if where and not thing.holds:
        return where
    has = f"has {_listed(thing.holds)}"
    return f"{where}; {has}" if where else has
