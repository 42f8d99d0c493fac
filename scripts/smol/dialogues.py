"""Rows from made-up conversations of two people over months: facts, events, plans, and much talk that holds nothing.

Kinds of facts, values and talk stand in `facts.txt`, `pools.txt` and `talk.txt`. State comes first, text second: who
has which facts is planned, sentences and gold calls follow. Gold contents are short sentences in the third person with
the name. Relative times are resolved against the date of the chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from memalpha.agent.prompts import ABSTAIN, order_notes
from memalpha.store.state import MemoryState
from memalpha.tasks.synthetic.phrases import pseudo_word
from memalpha.types import Chunk, Hit, MemoryEntry, Operation, SpeakerTurn
from smol.dates import draw_past, draw_planned
from smol.kinds import FactKind, fill_fields, fill_fields_plain, load_kinds, load_pools, load_talk
from smol.rows import SCHEMA, VIEW, SmolRow, apply_new, operation_call, reader_row, writer_row

PSEUDO = 0.3
"""Share of pseudo-words in the pools that allow them."""
RESTATED = 0.08
"""Share of chunks in which a stored fact is said again."""
UNKNOWN_ENDS = 0.03
"""Share of chunks in which a fact ends that the memory does not hold."""
UNKNOWN_CHANGES = 0.12
"""Share of new facts that are told as the change of a fact that the memory does not hold."""
USER_CHATS = 0.12
"""Share of conversations between "user" and "assistant"; only the user has facts."""
USER_EXCLUDED = ("job", "city", "car", "instrument", "hobby", "sport", "language", "allergy", "favfood", "favband")
"""Kinds that a user's chat leaves out: the demo world notes them as `key: value`."""
READER_QUESTIONS = 2
"""Reader questions of a conversation, at most."""
NOTES = (1, 8)
"""Fewest and most notes of a reader row."""

_RELATIVES = ("sister", "brother", "mum", "dad", "cousin", "best friend", "neighbor")
_LOWERED = (
    "The",
    "My",
    "Our",
    "Last",
    "Yesterday",
    "Today",
    "Tomorrow",
    "On",
    "This",
    "There's",
    "No",
    "We",
    "Next",
    "It's",
    "It",
)
_ME = re.compile(r"\b(I|me|my|My|I'm|I've|myself|we|We|our|Our|we're)\b")


@dataclass(slots=True)
class Fact:
    """Hold one stored fact with its values; `spoken_date` answers "when"."""

    kind: FactKind
    owner: str
    values: dict[str, str]
    content: str
    spoken_date: str = ""


class Conversation:
    """Plan and write one conversation, chunk by chunk, with the memory of a perfect writer."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.is_user_chat = rng.random() < USER_CHATS
        self.speakers = ["user", "assistant"] if self.is_user_chat else [self._name(), self._name()]
        self.owners = {"user": "The user"} if self.is_user_chat else {name: name for name in self.speakers}
        self.day = date(2021, 1, 1) + timedelta(days=rng.randrange(1500))
        self.state = MemoryState.empty(SCHEMA, unique_contents=True)
        self.facts: dict[str, Fact] = {}  # by content
        self.said: list[str] = []  # talk of this chunk
        self.has_clock = not self.is_user_chat and rng.random() < 0.6

    def _name(self) -> str:
        values, _ = load_pools()["person"]
        return pseudo_word(self.rng).capitalize() if self.rng.random() < 0.35 else self.rng.choice(values)

    def _draw(self, pool: str, taken: Sequence[str]) -> str:
        values, may_be_pseudo = load_pools()[pool]
        for _ in range(50):
            if may_be_pseudo and self.rng.random() < PSEUDO:
                word = pseudo_word(self.rng).capitalize()
                value = f'"{word}"' if pool == "title" else word
            else:
                value = self.rng.choice(values)
            if value not in taken and value not in self.speakers:
                return value
        return value

    def draw_fact(self, speaker: str, kind: FactKind | None = None, old: Fact | None = None) -> tuple[Fact, str]:
        """Draw a new fact, or the change of `old`, of a speaker; return it with its sentence."""
        rng = self.rng
        kind = kind or rng.choice(self._kinds(speaker))
        owner = old.owner if old else self.owners[speaker]
        taken = [value for fact in self.facts.values() for value in fact.values.values()]
        values = {pool: self._draw(pool, taken) for pool in kind.pools}
        values |= {f"old.{name}": value for name, value in (old.values if old else {}).items()}
        is_unknown_change = bool(old is None and kind.news and rng.random() < UNKNOWN_CHANGES)
        if is_unknown_change:
            values |= {f"old.{pool}": self._draw(pool, [*taken, *values.values()]) for pool in kind.pools}
        sentence = rng.choice(kind.news if old or is_unknown_change else kind.says)
        when, stated, spoken = "", "", ""
        if kind.mode in "EP":
            drawer = draw_planned if kind.mode == "P" else draw_past
            when, stated, spoken = drawer(rng, self.day)
            if kind.mode == "E" and "{When}" not in sentence and rng.random() < 0.15:
                when, stated, spoken = "", "", self.day.isoformat()
        content = fill_fields(kind.entry, values, n=owner, date=stated)
        names = {"n": owner, "when": when, "When": when[:1].upper() + when[1:]}
        text = fill_fields(sentence, values, **names)
        new_values = {name: value for name, value in values.items() if not name.startswith("old.")}
        return Fact(kind, owner, new_values, content, spoken), text

    def _kinds(self, speaker: str) -> list[FactKind]:
        """Return the kinds that the speaker may state anew: a state only if it is not stored."""
        stored = {fact.kind.key for fact in self.facts.values() if fact.owner == self.owners[speaker]}
        return [
            kind
            for kind in load_kinds()
            if (kind.mode in "EL" or kind.key not in stored) and not (self.is_user_chat and kind.key in USER_EXCLUDED)
        ]

    def prefill(self, number: int) -> None:
        """Store facts of both speakers that were told before the first chunk."""
        for _ in range(number):
            fact, _ = self.draw_fact(self.rng.choice(list(self.owners)))
            self._store(fact)
            if self.rng.random() < 0.4:
                self.day += timedelta(days=self.rng.randint(1, 12))
            if self.rng.random() < 0.35 and len(self.owners) == 2:  # the same kind of fact of the other speaker
                other = next(name for name in self.speakers if self.owners[name] != fact.owner)
                if fact.kind in self._kinds(other):
                    self._store(self.draw_fact(other, fact.kind)[0])

    def _store(self, fact: Fact) -> Operation:
        category = "episodic" if fact.kind.mode in "EP" else "semantic"
        operation = Operation("insert", category=category, content=fact.content, timestamp=self.day.isoformat())
        self.state = apply_new(self.state, operation)
        self.facts[fact.content] = fact
        return operation

    def _entry_id(self, fact: Fact) -> str:
        return next(entry.id for entry in self.state.list() if entry.content == fact.content)

    # Chunks

    def chunk_row(self) -> SmolRow:
        """Write the next chunk with nothing to three facts; return its row."""
        rng = self.rng
        self.day += timedelta(days=rng.randint(1, 20))
        before, changes = self.state.list(), []
        told = rng.choice((0, 0, 0, 1, 1, 1, 2, 2, 3))
        changed_kinds: set[tuple[str, str]] = set()
        operations: list[Operation] = []
        for _ in range(told):
            speaker = rng.choice(list(self.owners))
            text, operation, fact = self._tell(speaker, before, changed_kinds)
            if fact is not None:
                changes.append((speaker, text))
                operations.append(operation)
        statements, restated_ids = self._empty_statements(before, changed_kinds)
        turns = self._turns([*changes, *statements])
        clock = f"T{rng.randint(8, 22):02}:{rng.randrange(60):02}" if self.has_clock else ""
        chunk = Chunk(turns=tuple(turns), timestamp=f"{self.day.isoformat()}{clock}")
        calls = [operation_call(operation) for operation in operations]
        ids = {operation.id for operation in operations if operation.id} | restated_ids
        return writer_row("dialogue", chunk, self._view(before, ids, chunk), calls)

    def _empty_statements(
        self, before: Sequence[MemoryEntry], changed: set[tuple[str, str]]
    ) -> tuple[list[tuple[str, str]], set[str]]:
        """Draw statements that change nothing: a stored fact said again, or the end of one that is not stored.

        Returns:
            (speaker, sentence) pairs, and the ids of the entries that have to be in view.
        """
        rng = self.rng
        speaker = rng.choice(list(self.owners))
        owner = self.owners[speaker]
        if rng.random() < RESTATED:
            contents = {entry.content: entry.id for entry in before}
            stored = [
                fact
                for fact in self.facts.values()
                if fact.owner == owner
                and fact.kind.mode in "SL"
                and fact.kind.says
                and fact.content in contents
                and (owner, fact.kind.key) not in changed
            ]
            if stored:
                fact = rng.choice(stored)
                return [(speaker, fill_fields(rng.choice(fact.kind.says), fact.values))], {contents[fact.content]}
        if rng.random() < UNKNOWN_ENDS:
            kinds = [k for k in self._kinds(speaker) if k.ends and k.mode == "S" and (owner, k.key) not in changed]
            if kinds:
                kind = rng.choice(kinds)
                values = {f"old.{pool}": self._draw(pool, ()) for pool in kind.pools}
                return [(speaker, fill_fields(rng.choice(kind.ends), values))], set()
        return [], set()

    def _tell(
        self, speaker: str, before: Sequence[MemoryEntry], changed: set[tuple[str, str]]
    ) -> tuple[str, Operation, Fact | None]:
        """Draw a change, an end or a new fact of the speaker; apply it to the memory."""
        rng, owner = self.rng, self.owners[speaker]
        contents = {entry.content for entry in before}
        own = [fact for fact in self.facts.values() if fact.owner == owner and fact.content in contents]
        open_facts = [fact for fact in own if (owner, fact.kind.key) not in changed]
        roll = rng.random()
        for fact in rng.sample(open_facts, len(open_facts)):
            if roll < 0.3 and fact.kind.news:
                new, text = self.draw_fact(speaker, fact.kind, fact)
                id = self._entry_id(fact)
                operation = Operation("update", id=id, content=new.content, timestamp=self.day.isoformat())
                self.state = self.state.apply(operation)
                del self.facts[fact.content]
                self.facts[new.content] = new
                changed.add((owner, fact.kind.key))
                return text, operation, new
            if 0.3 <= roll < 0.4 and fact.kind.ends:
                values = {f"old.{name}": value for name, value in fact.values.items()}
                operation = Operation("delete", id=self._entry_id(fact))
                self.state = self.state.apply(operation)
                del self.facts[fact.content]
                changed.add((owner, fact.kind.key))
                return fill_fields(rng.choice(fact.kind.ends), values), operation, fact
        kinds = [kind for kind in self._kinds(speaker) if (owner, kind.key) not in changed]
        new, text = self.draw_fact(speaker, rng.choice(kinds))
        if new.content in self.facts:
            return "", Operation("insert"), None
        if self.owners[speaker] == speaker and rng.random() < 0.15:
            told = _about_relative(text, new.content, speaker, rng, self._name())
            if told is not None:
                text, content = told
                new = Fact(FactKind("other", new.kind.mode, ""), content.split(" ")[0], {}, content)
                if content in self.facts:
                    return "", Operation("insert"), None
        changed.add((owner, new.kind.key))
        return text, self._store(new), new

    def _turns(self, changes: Sequence[tuple[str, str]]) -> list[SpeakerTurn]:
        """Write the turns: the statements in order, with talk before, between and behind."""
        rng, turns = self.rng, []
        self.said.clear()
        size = max(len(changes) + rng.randint(0, 3), 2)
        speaker = changes[0][0] if changes and rng.random() < 0.6 else rng.choice(self.speakers)
        if rng.random() < 0.35:
            turns.append(self._talk(self._other(speaker), "hello"))
        queue = list(changes)
        while queue or len(turns) < size:
            if queue and (queue[0][0] == speaker or len(turns) >= size):
                speaker, text = queue.pop(0)
                turns.append(SpeakerTurn(speaker=speaker, text=self._dress(text, speaker)))
            else:
                roll = rng.random()
                kind = "react" if turns and roll < 0.4 else "chat" if roll < 0.62 else "question"
                kind = "hypothetical" if 0.82 < roll <= 0.9 else "photo" if roll > 0.95 else kind
                kind = "known" if 0.9 < roll <= 0.95 and self.facts and not self.is_user_chat else kind
                turns.append(self._talk(speaker, kind))
            speaker = self._other(speaker) if rng.random() < 0.9 else speaker
        if rng.random() < 0.15:
            turns.append(self._talk(speaker, "bye"))
        return turns

    def _other(self, speaker: str) -> str:
        return self.speakers[1 - self.speakers.index(speaker)]

    def _talk(self, speaker: str, kind: str) -> SpeakerTurn:
        rng, talk, other = self.rng, load_talk(), self._other(speaker)
        topics = [
            value
            for fact in self.facts.values()
            if fact.owner == other and fact.kind.mode == "S" and fact.kind.key in ("job", "pet", "study", "sport")
            for name, value in fact.values.items()
            if name in ("company", "petname", "subject", "sport")
        ]
        if kind == "known" and not topics:
            kind = "chat"
        fresh = [line for line in talk[kind] if line not in self.said]
        text = rng.choice(fresh or talk[kind])
        self.said.append(text)
        if kind == "react" and rng.random() < 0.4:
            text = f"{text} {rng.choice(talk['chat'] + talk['question'])}"
        return SpeakerTurn(speaker=speaker, text=self._named(text, other, rng.choice(topics) if topics else ""))

    def _named(self, text: str, other: str, topic: str = "") -> str:
        if self.is_user_chat:
            text = re.sub(r",? \{o\}|\{o\}[,!]? ?", "", text).strip() or "Hello!"
        text = text.replace("{hyp}", self.rng.choice(load_talk()["hyp"])).replace("{topic}", topic)
        text = text.replace("{o}", other)
        return text[:1].upper() + text[1:]

    def _dress(self, text: str, speaker: str) -> str:
        """Put talk before and behind a statement at times."""
        rng, talk, other = self.rng, load_talk(), self._other(speaker)
        if rng.random() < 0.45:
            lead = self._named(rng.choice(talk["lead"]), other)
            is_open = lead[-1] not in ".!?"
            text = f"{lead} {text[:1].lower() + text[1:] if is_open and text.split(' ')[0] in _LOWERED else text}"
        if rng.random() < 0.5:
            text = f"{text} {self._named(rng.choice(talk['tail']), other)}"
        if rng.random() < 0.15:
            text = f"{text} {self._named(rng.choice(talk['chat']), other)}"
        return text

    def _view(self, before: Sequence[MemoryEntry], ids: set[str], chunk: Chunk) -> list[MemoryEntry]:
        """Draw at most `VIEW` entries: all that the calls name, and others, in their order."""
        others = [entry for entry in before if entry.id not in ids]
        room = VIEW - len(ids)
        count = min(len(others), room if self.rng.random() < 0.5 else self.rng.randint(0, room))
        chosen = {entry.id for entry in self.rng.sample(others, count)} | ids
        return [entry for entry in before if entry.id in chosen]

    # Questions

    def question_row(self) -> SmolRow | None:
        """Ask about a stored fact, or about one that the notes do not hold."""
        rng = self.rng
        entries = self.state.list()
        facts = [fact for fact in self.facts.values() if fact.kind.asks or fact.kind.whens]
        if not facts:
            return None
        fact = rng.choice(facts)
        is_when = bool(fact.kind.whens and fact.spoken_date) and rng.random() < 0.5
        owner = fact.owner
        if not is_when and not fact.kind.asks:
            return None
        template, answer_field = (rng.choice(fact.kind.whens), "") if is_when else rng.choice(fact.kind.asks)
        is_answerable = rng.random() < 0.8
        if not is_answerable and rng.random() < 0.6 and len(self.owners) == 2:  # asked about the other speaker
            owner = next(name for name in self.speakers if self.owners[name] != fact.owner)
        question = fill_fields(template, fact.values, n="the user" if owner == "The user" else owner)
        notes = [entry for entry in entries if entry.content != fact.content]
        notes = rng.sample(notes, min(len(notes), rng.randint(*NOTES) - 1))
        if is_answerable or owner != fact.owner:
            notes += [entry for entry in entries if entry.content == fact.content]
        rng.shuffle(notes)
        answers: list[str] = []
        for entry in order_notes([Hit(entry, 0.0) for entry in notes]):
            other = self.facts.get(entry.content)
            if other is None or other.kind.key != fact.kind.key or other.owner != owner:
                continue
            if fill_fields(template, other.values, n="the user" if owner == "The user" else owner) == question:
                value = other.spoken_date if is_when else fill_fields_plain(answer_field, other.values)
                if value not in answers:
                    answers.append(value)
        if len(answers) > 1 and (is_when or fact.kind.mode == "S"):
            return None
        return reader_row("dialogue", question, notes, ", ".join(answers) or ABSTAIN)


def _about_relative(text: str, content: str, speaker: str, rng: Random, name: str) -> tuple[str, str] | None:
    """Turn "I ..." into a statement on a relative of the speaker; None if the sentence does not allow it.

    Only sentences that begin with "I" and a past tense or "work", and name the speaker nowhere else, are turned.
    """
    match = re.match(r"I (ran|won|bought|passed|visited|went|saw|lost|painted|adopted|published|gave|took) ", text)
    if match is None or _ME.search(text[match.end() :]):
        return None
    relation = rng.choice(_RELATIVES)
    words = f"{relation} {name}" if rng.random() < 0.6 else relation
    start = content.removeprefix(speaker)
    if start == content or start.startswith("'s"):
        return None
    return f"My {words} {text[2:]}", f"{speaker}'s {words}{start}"


def dialogue_rows(seed: int, index: int) -> Iterator[SmolRow]:
    """Yield the rows of conversation number `index`: its chunks, then questions on what was told."""
    rng = Random(f"smol|dialogue|{seed}|{index}")
    conversation = Conversation(rng)
    conversation.prefill(rng.choice((0, 0, 2, 4, 7, 10, 14)))
    for _ in range(rng.randint(3, 6)):
        yield conversation.chunk_row()
    for _ in range(READER_QUESTIONS):
        row = conversation.question_row()
        if row is not None:
            yield row
