"""World of bAbI's stories: the effect of each statement, and the answer that follows.

It reads the official sentences of tasks 1, 2, 6, 8, 9, 11, 12 and 13 (moves, things taken and put down, negation,
"Afterwards she", "Then they", "X and Y") and derives every answer from them. So official answers can be checked, and
the answers of renamed, joined stories are known.

It also holds the entries of a perfect memory. There is one for each person, `mary: kitchen; has football, milk` (or
`mary: not kitchen`, `mary: has milk`, `mary: has nothing`). There is one for each thing that lies somewhere, `football:
kitchen`. So every question is answered by one entry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import permutations

WOMEN = ("Mary", "Sandra", "Julie")
MEN = ("John", "Daniel", "Bill", "Fred", "Jeff")
NOTHING = "nothing"
PRONOUNS = ("he", "she", "they")

_SEQUENCE_WORDS = r"(?:Then|Afterwards|After that|Following that) "
MOVE = re.compile(
    rf"(?:{_SEQUENCE_WORDS})?(?P<who>[A-Z]\w*(?: and [A-Z]\w*)?|he|she|they) "
    r"(?:went back|went|travelled|journeyed|moved) to the (?P<place>\w+)\."
)
IS = re.compile(r"(?P<who>[A-Z]\w*) is (?P<no>no longer |not )?in the (?P<place>\w+)\.")
TAKE = re.compile(r"(?P<who>[A-Z]\w*) (?:grabbed|got|picked up|took) the (?P<thing>\w+)(?: there)?\.")
DROP = re.compile(r"(?P<who>[A-Z]\w*) (?:dropped|put down|left|discarded) the (?P<thing>\w+)(?: there)?\.")
"""Every statement of the eight tasks; `who` may be a pronoun or "X and Y" in moves."""

ASK_PLACE = re.compile(r"Where is (?:the )?(?P<what>\w+)\?")
ASK_WHETHER = re.compile(r"Is (?P<who>\w+) in the (?P<place>\w+)\?")
ASK_CARRIED = re.compile(r"What is (?P<who>\w+) carrying\?")


class UnreadableStatement(ValueError):
    """A sentence that this world does not know, or that cannot be true in it."""


def handled_thing(text: str) -> str | None:
    """Return the thing that a statement says is taken or put down, or None."""
    match = TAKE.fullmatch(text) or DROP.fullmatch(text)
    return match["thing"] if match else None


@dataclass(frozen=True, slots=True)
class StoryAnswer:
    """Hold the answer to a question.

    Attributes:
        answers: Every accepted form; the first is canonical.
        slot: Entry that is asked for.
        places: Locations so far, the current one first, each once.
        earlier: Answers that held before and do not hold now.
        evidence: Numbers of the supporting statements.
    """

    answers: tuple[str, ...]
    slot: str
    places: tuple[str, ...]
    earlier: tuple[str, ...]
    evidence: tuple[int, ...]


@dataclass(slots=True)
class _Entity:
    """Hold a person or thing, its location, and the statements that say so."""

    location: str | None = None
    absent_from: str | None = None
    statement_line: int = 0
    location_history: list[str] = field(default_factory=list)
    carried: list[str] = field(default_factory=list)
    carried_history: list[str] = field(default_factory=list)
    handling_lines: list[int] = field(default_factory=list)
    holder: str | None = None
    is_person: bool = False


class BabiStory:
    """Follow one story: `tell` it statement by statement, `ask` at any point."""

    def __init__(self) -> None:
        self._things: dict[str, _Entity] = {}
        self._last: tuple[str, ...] = ()

    def tell(self, text: str, line: int) -> None:
        """Apply the statement number `line`. Raises `UnreadableStatement`."""
        if match := MOVE.fullmatch(text):
            for name in self._resolve_people(match["who"]):
                self._move(name, match["place"], line)
        elif match := IS.fullmatch(text):
            [name] = self._resolve_people(match["who"])
            if not match["no"]:
                self._move(name, match["place"], line)
            else:
                self._move(name, None, line)
                self._things[name].absent_from = match["place"]
        elif match := TAKE.fullmatch(text):
            self._take(self._resolve_people(match["who"])[0], match["thing"], line)
        elif match := DROP.fullmatch(text):
            self._drop(self._resolve_people(match["who"])[0], match["thing"], line)
        else:
            raise UnreadableStatement(f"{text!r} is no statement of the tasks that are known here")

    def ask(self, question: str) -> StoryAnswer | None:
        """Return the answer that follows from the statements so far, or None. Raises `UnreadableStatement`."""
        if match := ASK_PLACE.fullmatch(question):
            return self._answer_location(match["what"])
        if match := ASK_WHETHER.fullmatch(question):
            return self._answer_yes_no(match["who"], match["place"])
        if match := ASK_CARRIED.fullmatch(question):
            return self._answer_carried(match["who"])
        raise UnreadableStatement(f"{question!r} is no question of the tasks that are known here")

    def entries(self) -> dict[str, str]:
        """Return the entries of a perfect memory by slot."""
        return {
            name.lower(): f"{name.lower()}: {content}"
            for name, thing in self._things.items()
            if (content := _entry_content(thing))
        }

    def _resolve_people(self, subject: str) -> tuple[str, ...]:
        if subject in PRONOUNS:
            if len(self._last) != (2 if subject == "they" else 1):
                raise UnreadableStatement(f"{subject!r} refers to nobody")
        else:
            self._last = tuple(subject.split(" and "))
        return self._last

    def _person(self, name: str) -> _Entity:
        person = self._things.setdefault(name, _Entity())
        person.is_person = True
        return person

    def _move(self, name: str, location: str | None, line: int) -> None:
        """Move a person, and all that the person carries, to a location (None: unknown)."""
        person = self._person(name)
        for thing in (person, *(self._things[name_of_thing] for name_of_thing in person.carried)):
            thing.location, thing.absent_from, thing.statement_line = location, None, line
            thing.location_history += [location] if location else []

    def _take(self, name: str, thing_name: str, line: int) -> None:
        person, thing = self._person(name), self._things.setdefault(thing_name, _Entity())
        if thing.holder is not None:
            raise UnreadableStatement(f"{name} takes the {thing_name}, which {thing.holder} holds")
        if person.location is None and thing.location is not None:
            self._move(name, thing.location, line)
        elif thing.location not in (None, person.location):
            raise UnreadableStatement(f"{name} takes the {thing_name}, which is elsewhere")
        thing.holder, thing.location, thing.handling_lines = name, person.location, [line]
        thing.statement_line = person.statement_line
        if person.location:
            thing.location_history.append(person.location)
        self._set_carried(person, [*person.carried, thing_name], line)

    def _drop(self, name: str, thing_name: str, line: int) -> None:
        person = self._person(name)
        if thing_name not in person.carried:
            raise UnreadableStatement(f"{name} puts down the {thing_name} without holding it")
        thing = self._things[thing_name]
        thing.holder, thing.handling_lines = None, [line]
        self._set_carried(person, [carried_name for carried_name in person.carried if carried_name != thing_name], line)

    def _set_carried(self, person: _Entity, holds: list[str], line: int) -> None:
        person.carried = holds
        person.carried_history.append(_join_names(holds))
        person.handling_lines.append(line)

    def _answer_location(self, name: str) -> StoryAnswer | None:
        thing = self._things.get(name)
        if thing is None or thing.location is None:
            return None
        lines = {thing.statement_line} if thing.is_person else {*thing.handling_lines, thing.statement_line}
        return _build_reply((thing.location,), name, thing, thing.location_history, lines)

    def _answer_yes_no(self, name: str, location: str) -> StoryAnswer | None:
        person = self._things.get(name)
        if person is None or (person.location is None and person.absent_from != location):
            return None
        answer = "yes" if person.location == location else "no"
        return _build_reply((answer,), name, person, [], {person.statement_line})

    def _answer_carried(self, name: str) -> StoryAnswer | None:
        person = self._things.get(name)
        if person is None or not person.handling_lines:
            return None
        answers = tuple(map(_join_names, permutations(person.carried)))
        return _build_reply(answers, name, person, person.carried_history, set(person.handling_lines))


def _build_reply(
    answers: tuple[str, ...], name: str, thing: _Entity, history: list[str], lines: set[int]
) -> StoryAnswer:
    current = [thing.location] if thing.location else []
    places: dict[str, None] = dict.fromkeys(current + thing.location_history[::-1])
    earlier = dict.fromkeys(value for value in history if value not in answers)
    return StoryAnswer(answers, name.lower(), tuple(places), tuple(earlier), tuple(sorted(lines)))


def _join_names(things: list[str] | tuple[str, ...]) -> str:
    return ", ".join(things) or NOTHING


def _entry_content(thing: _Entity) -> str | None:
    """Return the content of the entry of a person or thing, or None."""
    if not thing.is_person:
        return thing.location if thing.holder is None else None
    location = thing.location or (f"not {thing.absent_from}" if thing.absent_from else "")
    if location and not thing.carried:
        return location
    has = f"has {_join_names(thing.carried)}"
    return f"{location}; {has}" if location else has
