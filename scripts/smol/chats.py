"""Rows and tasks from short natural chats: facts in passing, in many voices, beside talk that holds nothing.

Wordings and values stand in `chats.txt`. A chat has two to six short chunks, between a user and an assistant or between
two named people. Facts come first, text second: what holds, changes, ends and is said again is planned, and sentences
and gold operations follow.

An entry is `topic: value` with the value's words as they were said (`dentist: Friday at 8:50`). In a chat of two people
the topic begins with the person's name, and a third person's topic with his (`Greta city: Lyon`). An entry about a day
has the day's date as its timestamp. A slip that is put right in the same breath gives the right value alone. A list is
one entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from random import Random

from memalpha.agent.prompts import ABSTAIN
from memalpha.store.state import MemoryState
from memalpha.tasks.synthetic.phrases import Split, pseudo_word, split_values
from memalpha.types import Chunk, GoldOperation, MemoryEntry, Operation, Question, SpeakerTurn, Task
from smol.dates import MONTHS, draw_past, draw_planned
from smol.rows import SCHEMA, VIEW, SmolRow, operation_call, reader_row, writer_row

TWO_PEOPLE = 0.3
"""Share of chats between two named people."""
PSEUDO = 0.15
"""Share of made-up words in the pools that allow them."""
NOTHING = 0.2
"""Share of chunks that hold nothing to keep."""
RESTATED = 0.06
"""Share of facts that are only said again."""
KEPT_SKIPS = 0.6
"""Share of the chunks without a call that give a row."""
GAPS = 0.25
"""Share of chats whose memory loses entries on the way, so that a change meets what is not there."""
HELD_OUT_EVERY = 5
"""Every fifth wording of a form is held out; a form with fewer than five has its last one in both splits."""

_FIELD = re.compile(r"\{(?:(old|bad|keep)\.)?(\w+)\}")
_ISO_DATE = r"\d{4}-\d\d-\d\d"
_PLANS = (("say", 0.5), ("new", 0.25), ("fix", 0.1), ("end", 0.15))


@dataclass(frozen=True, slots=True)
class ChatKind:
    """Describe a kind of fact.

    Attributes:
        key: Name of the kind.
        category: Category of its entries.
        topic: Template of an entry before the colon.
        value: Template of an entry after the colon.
        wordings: Templates by form: "say" states, "new" changes, "fix" puts a slip right, "end" ends, "ask" asks.
    """

    key: str
    category: str
    topic: str
    value: str
    wordings: dict[str, list[str]] = field(default_factory=dict)

    @property
    def lasting(self) -> list[str]:
        """Names of the fields that keep their values as long as the fact has its topic."""
        people = {"p", "kin", "kin2"} & set(re.findall(r"\w+", str(self.wordings)))
        return sorted({name for _, name in _FIELD.findall(self.topic)} | people)

    def select(self, form: str, split: Split) -> list[str]:
        """Return the wordings of one form: every fifth for "test", the others for "train".

        A form of fewer than five wordings has all for "train", and the last of them for "test", too.
        """
        texts = self.wordings.get(form, [])
        held_out = texts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
        return [text for text in texts if text not in held_out] if split == "train" else held_out or texts[-1:]


@cache
def load_chats() -> tuple[dict[str, tuple[tuple[str, ...], bool]], tuple[ChatKind, ...], dict[str, list[str]]]:
    """Read `chats.txt`: pools with True where made-up words may stand in, kinds, and talk by name."""
    pools, kinds, talk = {}, [], {}
    for line in (Path(__file__).parent / "chats.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("pool "):
            name, _, values = line.removeprefix("pool ").partition(": ")
            pools[name.lstrip("*")] = (tuple(values.split("; ")), name.startswith("*"))
        elif match := re.fullmatch(r"\[(\w+)\] (\w+) \| (.+) \| (.+)", line):
            kinds.append(ChatKind(match[1], match[2], match[3], match[4]))
        elif match := re.fullmatch(r"\[(\w+)\]", line):
            talk[match[1]] = []
        elif talk and line:
            talk[[*talk][-1]].append(line)
        elif line and not line.startswith("#"):
            form, _, text = line.partition(" ")
            kinds[-1].wordings.setdefault(form, []).append(text)
    return pools, tuple(kinds), talk


@dataclass(slots=True)
class Voice:
    """Hold how one person writes."""

    name: str
    lower: bool
    apostrophes: bool
    short: bool

    def write(self, text: str) -> str:
        """Put a text into this voice."""
        if self.short:
            text = re.sub(r"\byou\b", "u", re.sub(r"\byour\b", "ur", text))
        if not self.apostrophes:
            text = re.sub(r"\b(i|we|they|it|that|don|can|doesn|isn|wouldn|what)'(?=[a-z])", r"\1", text)
        if self.lower:
            return text.lower()
        text = re.sub(r"\bi\b(?!\.)", "I", text)
        return re.sub(r"([.!?] )([a-z])", lambda match: match[1] + match[2].upper(), text)


@dataclass(slots=True)
class ChatFact:
    """Hold a fact of one person: `fixed` values belong to the topic, `values` is None once it has ended."""

    kind: ChatKind
    voice: Voice
    prefix: str
    fixed: dict[str, str]
    values: dict[str, str] | None = None
    chunk: int = -1

    @property
    def topic(self) -> str:
        """Text of the entry before the colon."""
        topic = _fill(self.kind.topic, self.fixed)
        is_of_other = self.kind.topic.startswith("{p}")
        return topic if is_of_other or not self.prefix else f"{self.prefix} {topic}"

    @property
    def value(self) -> str:
        """Text of the entry after the colon, as the person writes."""
        assert self.values is not None
        text = _fill(self.kind.value, self.fixed | self.values).removeprefix("on ")
        return text.lower() if self.voice.lower else text

    @property
    def content(self) -> str:
        """The entry."""
        return f"{self.topic}: {self.value}"


def _fill(template: str, values: dict[str, str], **groups: dict[str, str]) -> str:
    return _FIELD.sub(lambda match: (groups[match[1]] if match[1] else values)[match[2]], template)


class Chat:
    """Plan and write one chat.

    Args:
        rng: Source of randomness.
        split: Wordings and values to draw from.
    """

    def __init__(self, rng: Random, split: Split) -> None:
        self.rng, self.split = rng, split
        self.pools, self.kinds, self.talk = load_chats()
        self.is_user_chat = rng.random() >= TWO_PEOPLE
        names = ["user", "assistant"] if self.is_user_chat else [self.draw("first"), self.draw("first")]
        while not self.is_user_chat and names[0] == names[1]:
            names[1] = self.draw("first")
        self.voices = [Voice(name, rng.random() < 0.5, rng.random() < 0.75, rng.random() < 0.12) for name in names]
        self.now = datetime(rng.randint(2015, 2026), rng.randint(1, 12), rng.randint(1, 28), rng.randint(7, 22), 15)
        self.facts: dict[tuple[str, str, str], ChatFact] = {}
        self.gold: list[GoldOperation] = []
        self.turn = 0

    def draw(self, pool: str) -> str:
        """Draw a value of a pool, or a made-up time, price, code, age or day."""
        rng = self.rng
        if pool == "kin2":
            return rng.choice(("son", "daughter", "little brother", "niece", "nephew", "godson"))
        pool = {"p": "first", "town2": "town", "item2": "item", "item3": "item"}.get(pool, pool)
        if pool in self.pools:
            values, is_open = self.pools[pool]
            if is_open and rng.random() < PSEUDO:
                return pseudo_word(rng).capitalize()
            return rng.choice(split_values(values, self.split))
        minute = rng.choice(("00", "15", "30", "45", "10", "20", "50"))
        made = {
            "time": lambda: rng.choice(
                (f"{rng.randint(7, 20)}:{minute}", f"{rng.randint(1, 11)}{rng.choice(('am', 'pm'))}")
            ),
            "price": lambda: rng.choice(("${}", "€{}", "{} euros", "£{}", "{} bucks")).format(rng.randint(8, 1900)),
            "pin": lambda: str(rng.randint(1000, 9999)),
            "code": lambda: f"{pseudo_word(rng).capitalize()}{rng.randint(10, 9999)}",
            "num": lambda: str(rng.randint(1, 240)),
            "age": lambda: str(rng.randint(2, 16)),
            "monthday": lambda: f"{rng.choice(MONTHS)} {rng.randint(1, 28)}",
        }
        return made[pool]()

    def fields(self, kind: ChatKind, texts: str) -> dict[str, str]:
        """Draw all plain fields of a text; `when` and `past` are left to the day."""
        names = {name for prefix, name in _FIELD.findall(texts) if not prefix and name not in ("when", "past")}
        values: dict[str, str] = {}
        for name in sorted(names):
            values[name] = self.draw(name)
            while name[-1] in "23" and list(values.values()).count(values[name]) > 1:
                values[name] = self.draw(name)
        return values

    def say(self, voice: Voice, chunk: int) -> str:
        """Write one sentence of a person about a fact, and note its gold operation."""
        rng = self.rng
        mine = [fact for fact in self.facts.values() if fact.voice is voice and fact.values is not None]
        form = rng.choices([name for name, _ in _PLANS], [weight for _, weight in _PLANS])[0]
        if mine and rng.random() < RESTATED:
            fact = rng.choice(mine)
            if not {"when", "past"} & set(fact.values or ()):
                return self.sentence(fact, rng.choice(fact.kind.select("say", self.split)), fact.values or {})
        changeable = []
        if form in ("new", "end"):
            changeable = [fact for fact in mine if fact.chunk < chunk and fact.kind.select(form, self.split)]
        if not changeable:
            return self.state(voice, chunk, "fix" if form == "fix" else "say")
        fact = rng.choice(changeable)
        old, before = fact.values or {}, fact.content
        template = rng.choice(fact.kind.select(form, self.split))
        drawn = self.fields(fact.kind, template)
        values = old | {name: value for name, value in drawn.items() if name in old}
        day = self.set_day(fact, values, template)
        text = self.sentence(fact, template, values | drawn, old=old, keep=old)
        if form == "end":
            fact.values = None
            self.note("delete", chunk, fact, "", before)
        else:
            fact.values = values
            if fact.content != before:
                self.note("update", chunk, fact, fact.content, before, day)
        return text

    def state(self, voice: Voice, chunk: int, form: str) -> str:
        """Write a fact that is new, or one that was said before and is said anew without a word of change."""
        rng = self.rng
        kind = rng.choice([kind for kind in self.kinds if kind.select(form, self.split)])
        fixed = {name: self.draw(name) for name in kind.lasting}
        fixed = {name: value for name, value in fixed.items() if f"{{{name}}}" not in kind.value}
        key = (voice.name, kind.key, _fill(kind.topic, fixed))
        if voice.lower:
            fixed = {name: value.lower() for name, value in fixed.items()}
        fact = self.facts.get(key)
        if fact is None or fact.values is None:
            fact = ChatFact(kind, voice, "" if self.is_user_chat else voice.name, fixed)
        template = rng.choice(kind.select(form, self.split))
        drawn = self.fields(kind, kind.value + template)
        values = {name: value for name, value in drawn.items() if f"{{{name}}}" in kind.value}
        before = fact.content if fact.values is not None else None
        day = self.set_day(fact, values, template)
        bad = {name: self.draw(name) for prefix, name in _FIELD.findall(template) if prefix == "bad"}
        while any(values.get(name) == value for name, value in bad.items()):
            bad = {name: self.draw(name) for name in bad}
        fact.values = values
        text = self.sentence(fact, template, drawn | values, bad=bad)
        self.facts[key] = fact
        if before is None:
            self.note("insert", chunk, fact, fact.content, None, day)
        elif before != fact.content:
            self.note("update", chunk, fact, fact.content, before, day)
        return text

    def set_day(self, fact: ChatFact, values: dict[str, str], template: str) -> str | None:
        """Draw the day that a sentence names into `values`; return its date if it is one."""
        for name, draw in (("when", draw_planned), ("past", draw_past)):
            if f"{{{name}}}" in template:
                words, _, answer = draw(self.rng, self.now.date())
                while "{time}" in template + fact.kind.value and not re.fullmatch(_ISO_DATE, answer):
                    words, _, answer = draw(self.rng, self.now.date())
                values[name] = words
                return answer if re.fullmatch(_ISO_DATE, answer) else None
        return None

    def sentence(self, fact: ChatFact, template: str, values: dict[str, str], **groups: dict[str, str]) -> str:
        """Fill a wording and put it into the person's voice; values keep their spelling."""
        marked = fact.voice.write(_FIELD.sub(lambda match: match[0].upper().replace(".", "\x00"), template))
        lowered = {name.lower(): value for name, value in (values | fact.fixed).items()}
        text = re.sub(
            r"\{(?:(\w+)\x00)?(\w+)\}",
            lambda match: (groups[match[1].lower()] if match[1] else lowered)[match[2].lower()],
            marked,
        )
        return text.lower() if fact.voice.lower else text

    def note(
        self, kind: str, chunk: int, fact: ChatFact, content: str, before: str | None, day: str | None = None
    ) -> None:
        """Add a gold operation at the current turn."""
        fact.chunk = chunk
        self.gold.append(
            GoldOperation(
                kind=kind,  # pyright: ignore[reportArgumentType]
                chunk=chunk,
                category=fact.kind.category,
                content=content,
                replaces=before,
                timestamp=day if kind == "insert" else None,
                turn=f"t{self.turn}",
            )
        )

    def talk_line(self, name: str, voice: Voice | None = None) -> str:
        """Draw a line that holds nothing."""
        line = self.rng.choice(self.talk[name])
        text = _fill(line, {field: self.draw(field) for _, field in _FIELD.findall(line)})
        return text if voice is None else voice.write(text)

    def user_turn(self, voice: Voice, chunk: int, facts: int) -> str:
        """Write a turn with some facts and, at times, talk around them."""
        rng = self.rng
        parts = [self.say(voice, chunk) for _ in range(facts)]
        if not parts or rng.random() < 0.2:
            parts.insert(rng.randint(0, len(parts)), self.talk_line("skip", voice))
        opener = voice.write(self.talk_line("opener"))
        if rng.random() < 0.25 and parts[0].split()[0].lower() not in opener.lower():
            parts[0] = f"{opener} {parts[0]}"
        text = parts[0]
        for part in parts[1:]:
            is_closed = text[-1] in ".!?)" or not text[-1].isalnum()
            joint = " " if is_closed else rng.choice((". ", ". ", ", ", " and ", "! ", "... "))
            is_start = joint not in (", ", " and ") and not voice.lower
            text += joint + (part[:1].upper() + part[1:] if is_start else part)
        if rng.random() < 0.15:
            text += " " + self.talk_line("tail", voice)
        return text if voice.lower or rng.random() < 0.2 else text[:1].upper() + text[1:]

    def task(self, id: str) -> Task:
        """Write all chunks and the questions."""
        rng, chunks = self.rng, []
        for index in range(rng.randint(2, 6)):
            turns: list[SpeakerTurn] = []
            budget = 0 if rng.random() < NOTHING else rng.choice((1, 1, 2, 2, 3, 4))
            for _ in range(rng.choice((1, 1, 2, 3)) if self.is_user_chat else rng.choice((1, 2, 2, 3))):
                speaker = self.voices[0] if self.is_user_chat else rng.choice(self.voices)
                facts = min(budget, rng.choice((0, 1, 1, 2, 2, 3)))
                budget -= facts
                turns.append(self.said(speaker.name, self.user_turn(speaker, index, facts)))
                other = self.voices[1] if speaker is self.voices[0] else self.voices[0]
                if rng.random() < 0.6:
                    line = self.talk_line("reply") if self.is_user_chat else self.talk_line("friend", other)
                    turns.append(self.said(other.name, line))
            chunks.append(Chunk(turns=tuple(turns), timestamp=self.now.isoformat(timespec="minutes"), index=index))
            self.now += timedelta(days=rng.choice((0, 0, 1, 2, 5, 9, 30)), hours=rng.randint(1, 9))
        return Task(id=id, chunks=tuple(chunks), gold_operations=tuple(self.gold), questions=tuple(self.questions()))

    def said(self, speaker: str, text: str) -> SpeakerTurn:
        """Return a turn with the next id."""
        turn = SpeakerTurn(speaker=speaker, text=text, id=f"t{self.turn}")
        self.turn += 1
        return turn

    def questions(self) -> Iterator[Question]:
        """Ask for facts that hold, for some that ended, and for one that was never said."""
        facts = list(self.facts.values())
        self.rng.shuffle(facts)
        for number, fact in enumerate(facts[:6]):
            answers = () if fact.values is None else (fact.value,)
            yield Question(id=f"q{number}", question=self.ask(fact), answers=answers, meta={"slot": fact.topic})

    def ask(self, fact: ChatFact) -> str:
        """Word a question about a fact; in a chat of two people it names the person."""
        template = self.rng.choice(fact.kind.select("ask", self.split))
        drawn = self.fields(fact.kind, str(fact.kind.wordings["ask"]))
        text = _fill(template, drawn | (fact.values or {}) | fact.fixed)
        name = fact.prefix
        if name:
            words = (("do I", f"does {name}"), ("am I", f"is {name}"), ("my", f"{name}'s"), ("I", name))
            for word, new in words:
                text = re.sub(rf"\b{word}\b", new, text)
        return text


def chat_task(seed: int, index: int, split: Split = "train") -> Task:
    """Return chat number `index`; equal arguments give equal chats."""
    return Chat(Random(f"smol|chats|{split}|{seed}|{index}"), split).task(f"chat-{split}-{seed}-{index}")


def chat_tasks(count: int, seed: int = 0, *, split: Split = "train") -> list[Task]:
    """Return the first chats of a seed."""
    return [chat_task(seed, index, split) for index in range(count)]


def chat_rows(seed: int, index: int) -> Iterator[SmolRow]:
    """Yield the writer rows of chat number `index`, and reader rows of some of its questions."""
    yield from task_rows("chats", chat_task(seed, index), Random(f"smol|chat rows|{seed}|{index}"))


def task_rows(part: str, task: Task, rng: Random) -> Iterator[SmolRow]:
    """Yield the writer rows of a chat, and reader rows of two questions; `meta["slot"]` names the topic asked for.

    Args:
        part: Part of the mixture.
        task: Chat with gold operations.
        rng: Source of randomness: which entries a memory loses on the way, and which chunks without a call give a row.
    """
    state, has_gaps = MemoryState.empty(SCHEMA, unique_contents=True), rng.random() < GAPS
    for chunk in task.chunks:
        view, calls = state.list(), []
        for operation in task.gold_at(chunk.index):
            old = next((entry.id for entry in state.list() if entry.content == operation.replaces), None)
            if operation.kind == "delete" and old is None:
                continue
            kind = "update" if operation.kind == "update" and old is not None else operation.kind
            kind = "insert" if kind == "update" and old is None else kind
            call = Operation(
                kind=kind,
                category=operation.category if kind == "insert" else None,
                content=operation.content or None,
                id=None if kind == "insert" else old,
            )
            if call.content and state.find(operation.category, call.content) is not None:
                continue
            calls.append(operation_call(call, operation.timestamp))
            state = state.apply(replace(call, timestamp=operation.timestamp or chunk.timestamp))
        if calls or rng.random() < KEPT_SKIPS:
            yield writer_row(part, chunk, view[-VIEW:], calls)
        for entry in state.list() if has_gaps else ():
            if rng.random() < 0.15:
                state = state.apply(Operation("delete", id=entry.id))
    notes = state.list()
    by_topic = {entry.content.partition(": ")[0] for entry in notes}
    for question in task.questions[:2]:
        is_known = question.meta["slot"] in by_topic and question.answers
        answer = question.answers[0] if is_known else ABSTAIN
        shown = _with(notes, question.meta["slot"], rng) if is_known else notes[-8:]
        yield reader_row(part, question.question, shown, answer)


def _with(notes: list[MemoryEntry], topic: str, rng: Random) -> list[MemoryEntry]:
    """Return at most eight notes, that of the topic among them, in their order."""
    chosen = {entry.id for entry in rng.sample(notes, min(len(notes), 7))}
    return [entry for entry in notes if entry.id in chosen or entry.content.startswith(f"{topic}: ")]
