"""Tasks from chats told in full: whole conversations of many voices, whose values change from one telling to the next.

The chats stand in `told/*.txt`:

    == user                          between a user (u) and an assistant (a); "== two": between two named people (1, 2)
    = 2024-09-02 10:15               a chunk begins, with its time
    u: got a {beast=puppy|kitten}!! {petcall} is {n=8|9|10} weeks old
    + pet: {petcall} the {beast}     written after this turn; "+e" is an event, "@2024-10-12" behind it its day
    a: Congratulations!
    = 2024-09-20 18:05
    u: sold the {car=Fiat|Volvo}, got a {car2=Kia|Mini} now
    ~ car: {car} -> {car2}           an entry that changes; "- car: {car2}" one that ends
    ? What is my pet called? | {petcall}
    ? What is my cat called? |       a question without an answer

`{name=one|two}` names alternatives where they are first used, and `{name}` is the one drawn. A name that is not
introduced so is a pool of `chats.txt`, with or without a number (`{town}`, `{town2}`). `{1}` and `{2}` are the people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from memalpha.agent.text_match import holds_answer
from memalpha.store.search.bm25 import words
from memalpha.types import Chunk, GoldOperation, Question, SpeakerTurn, Task
from smol.chats import Chat, task_rows
from smol.rows import SmolRow

_SLOT = re.compile(r"\{(\w+)(?:=([^{}]*))?\}")
_CHANGE = re.compile(r"(\+e?|~|-) ([^:]+): (.+?)(?: -> (.+?))?(?: @(\d{4}-\d\d-\d\d))?")
MAX_WORDS, MAX_CALLS = 90, 6
"""Most words and changes of a chunk."""


@dataclass(frozen=True, slots=True)
class ToldChat:
    """Hold one chat as it stands in its file: the name of the file and line, and the lines."""

    name: str
    lines: tuple[str, ...]

    def task(self, id: str, rng: Random) -> Task:
        """Draw the values and return the chat as a task.

        Raises:
            ValueError: If a line cannot be read or an entry says what its chunk does not; names the chat and the line.
        """
        people = _Values(rng)
        lines = [people.fill(line) for line in self.lines]
        chunks: list[Chunk] = []
        gold: list[GoldOperation] = []
        questions: list[Question] = []
        turns: list[SpeakerTurn] = []
        live: dict[str, str] = {}
        number, time = 0, ""

        def close() -> None:
            if time:
                chunks.append(Chunk(turns=tuple(turns), timestamp=time, index=len(chunks)))
                turns.clear()

        names = {"u": "user", "a": "assistant", "1": people.values["1"], "2": people.values["2"]}
        for line in lines:
            if match := re.fullmatch(r"= (\d{4}-\d\d-\d\d) (\d\d:\d\d)", line):
                close()
                time = f"{match[1]}T{match[2]}"
            elif match := re.fullmatch(r"([ua12]): (.+)", line):
                turns.append(SpeakerTurn(speaker=names[match[1]], text=match[2], id=f"t{number}"))
                number += 1
            elif match := re.fullmatch(r"\? (.+?) \|(.*)", line):
                answers = tuple(answer.strip() for answer in match[2].split("|") if answer.strip())
                questions.append(Question(id=f"q{len(questions)}", question=match[1], answers=answers))
            elif turns and (match := _CHANGE.fullmatch(line)):
                mark, topic, value, new, day = match.groups()
                content = f"{topic}: {new or value}"
                before = None if mark[0] == "+" else f"{topic}: {value}"
                if (mark == "~") != bool(new) or (before is not None and before not in live):
                    raise ValueError(f"{self.name}: no entry {before!r} to change: {line!r}; there are {sorted(live)}")
                category = live.pop(before) if before else "episodic" if mark == "+e" else "semantic"
                if mark != "-":
                    said = words(" ".join(f"{turn.speaker} {turn.text}" for turn in turns))
                    absent = [word for word in words(new or value) if word not in said]
                    if absent:
                        raise ValueError(f"{self.name}: not said in this chunk: {absent} of {line!r}")
                    if content in live:
                        raise ValueError(f"{self.name}: said twice: {line!r}")
                    live[content] = category
                gold.append(
                    GoldOperation(
                        kind={"+": "insert", "~": "update", "-": "delete"}[mark[0]],  # pyright: ignore[reportArgumentType]
                        chunk=len(chunks),
                        category=category,
                        content="" if mark == "-" else content,
                        replaces=before,
                        timestamp=day if mark[0] == "+" else None,
                        turn=turns[-1].id,
                    )
                )
            else:
                raise ValueError(f"{self.name}: cannot read {line!r}")
        close()
        for chunk in chunks:
            length = len(" ".join(turn.text for turn in chunk.turns).split())
            calls = sum(operation.chunk == chunk.index for operation in gold)
            if length > MAX_WORDS or calls > MAX_CALLS or not chunk.turns:
                raise ValueError(f"{self.name}: chunk of {chunk.timestamp} has {length} words and {calls} changes")
        asked = [question.model_copy(update={"meta": {"slot": _topic_of(question, live)}}) for question in questions]
        return Task(id=id, chunks=tuple(chunks), gold_operations=tuple(gold), questions=tuple(asked))


def _topic_of(question: Question, contents: Iterable[str]) -> str:
    """Return the topic of the entry that answers a question; "" if none does."""
    for content in contents:
        topic, _, value = content.partition(": ")
        if any(holds_answer(value, answer) for answer in question.answers):
            return topic
    return ""


class _Values:
    """Draw the values of one telling, each once."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.chat = rng, Chat(rng, "train")
        self.values = {"1": self.chat.draw("first")}
        self.values["2"] = self._other("first")

    def _other(self, pool: str) -> str:
        while (value := self.chat.draw(pool)) in self.values.values():
            pass
        return value

    def fill(self, line: str) -> str:
        """Fill the slots of a line."""
        return _SLOT.sub(self._draw, line)

    def _draw(self, match: re.Match[str]) -> str:
        name, alternatives = match.groups()
        if name not in self.values:
            self.values[name] = (
                self.rng.choice(alternatives.split("|")) if alternatives else self._other(name.rstrip("0123456789"))
            )
        return self.values[name]


@cache
def load_told() -> tuple[ToldChat, ...]:
    """Read all chats of `told/*.txt`."""
    chats = []
    for path in sorted((Path(__file__).parent / "told").glob("*.txt")):
        chats += _read(path)
    return tuple(chats)


def _read(path: Path) -> Iterator[ToldChat]:
    lines: list[str] = []
    start = 0
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), "== end"], 1):
        text = line.strip()
        if text.startswith("== "):
            if lines:
                yield ToldChat(f"{path.name}:{start}", tuple(lines))
            lines, start = [], number
        elif text and not text.startswith("#"):
            lines.append(text)


def told_rows(seed: int, index: int) -> Iterator[SmolRow]:
    """Yield the rows of telling number `index`: every chat is told once before one is told again."""
    chats = load_told()
    chat = chats[index % len(chats)]
    task = chat.task(f"told-{seed}-{index}", Random(f"smol|told|{seed}|{index}"))
    yield from task_rows("told", task, Random(f"smol|told rows|{seed}|{index}"))
